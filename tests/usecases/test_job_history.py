"""A job over time: its days, its versions, and what a resume would do."""

from datetime import timedelta

from evertick.domain.policies import Missed
from evertick.usecases import audit
from evertick.usecases.context import TenantContext, unit_of_work
from evertick.usecases.job_history import Change, Histories, versions
from evertick.usecases.jobs.edit import edit
from evertick.usecases.jobs.lifecycle import pause, resume, resume_choices
from usecases.world import World, at


async def test_versions_say_what_changed_and_who_changed_it(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    async with unit_of_work(tenant) as inside:
        await edit(inside, job.job_id, {"max_retries": 7, "target": {"type": "worker", "handler": "other"}})
        await audit.record(inside, "key_1", "edit_job", job.job_id)
    newest, first = await versions(tenant, job.job_id)
    assert (newest.spec_version, newest.actor) == (2, "key_1")
    assert set(newest.changes or ()) == {
        Change("max_retries", None, "7"),
        Change("target.handler", "send", "other"),
        Change("target.queue", "mail", None),
    }
    assert (first.spec_version, first.actor, first.changes) == (1, None, None)


async def test_each_choice_of_a_resume_says_how_many_runs_it_starts(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await pause(tenant, job.job_id)
    await world.set_clock(at(3, 30))
    choices = await resume_choices(tenant, job.job_id)
    assert [tuple(choice) for choice in choices] == [
        (Missed.SKIP, 0, 3),
        (Missed.RUN_ONCE, 1, 2),
        (Missed.RUN_ALL, 3, 0),
    ]
    await resume(tenant, job.job_id, Missed.RUN_ALL)
    assert len(await world.run_all()) == 3


async def test_a_day_has_its_runs_and_its_gaps(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    for minute in (1, 2):
        await world.set_clock(at(minute))
        await world.run_all()
    await pause(tenant, job.job_id)
    await world.set_clock(at(5, 30))
    await resume(tenant, job.job_id)
    found = await Histories().get(tenant, job)
    today = found.days[-1]
    assert (today.runs, today.gaps, today.is_counted, today.is_partial) == (2, ("paused",), True, False)
    assert len(found.latest) == 3
    assert found.days[-2].at == today.at - timedelta(days=1)
    assert not found.days[-2].is_counted
