"""Pausing, resuming and deleting jobs."""

from datetime import timedelta

import pytest

from evertick.domain.policies import Missed
from evertick.domain.retry import Retry
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import JobNotFound, VersionConflict
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.lifecycle import delete, pause, resume
from evertick.usecases.jobs.reading import get, get_by_name
from evertick.usecases.runs.reading import get_run, job_runs
from evertick.usecases.runs.requests import trigger
from usecases.world import WORKER, World, at, key_of


async def test_a_paused_job_does_not_fire(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    paused = await pause(tenant, job.job_id, "holiday")
    assert (paused.status, paused.next_run_at) == ("paused", None)
    assert (paused.paused_at, paused.pause_reason) == (at(0, 30), "holiday")
    await world.set_clock(at(5))
    assert await world.fire() == 0
    assert await pause(tenant, job.job_id, "again") == paused


async def test_a_resume_skips_what_the_pause_swallowed(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await pause(tenant, job.job_id)
    await world.set_clock(at(3, 30))
    world.woken.clear()
    resumed = await resume(tenant, job.job_id)
    assert (resumed.status, resumed.next_run_at, resumed.paused_at) == ("active", at(4), None)
    assert await world.gaps_of(job) == [(at(1), at(3), 3, "paused")]
    assert world.woken == [key_of(job)]
    await world.set_clock(at(4))
    assert [leased.fire_at for leased in await world.run_all()] == [at(4)]


async def test_a_resume_in_time_changes_nothing_but_the_pause(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await pause(tenant, job.job_id)
    await resume(tenant, job.job_id)
    assert await get(tenant, job.job_id) == job
    assert await world.timers_of(job) == [("tick", at(1), True)]
    assert await resume(tenant, job.job_id, Missed.RUN_ALL) == job
    assert await world.gaps_of(job) == []


async def test_a_resume_may_run_the_newest(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await pause(tenant, job.job_id)
    await world.set_clock(at(3, 30))
    await resume(tenant, job.job_id, Missed.RUN_ONCE)
    assert await world.gaps_of(job) == [(at(1), at(2), 2, "paused")]
    assert [(leased.fire_at, leased.reason) for leased in await world.run_all()] == [(at(3), "catch_up")]


async def test_runs_that_an_earlier_resume_asked_for_wait_while_the_job_is_paused_again(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely()
    await pause(tenant, job.job_id)
    await world.set_clock(at(3, 30))
    await resume(tenant, job.job_id, Missed.RUN_ALL)
    await pause(tenant, job.job_id)
    assert await world.run_all() == []
    await resume(tenant, job.job_id)
    assert [leased.fire_at for leased in await world.run_all()] == [at(1), at(2), at(3)]


async def test_a_resume_may_run_all_one_after_the_other_up_to_the_jobs_limit(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely(max_missed=3, missed_window="SKIP")
    await pause(tenant, job.job_id)
    await world.set_clock(at(5, 30))
    resumed = await resume(tenant, job.job_id, Missed.RUN_ALL)
    assert resumed.next_run_at == at(6)
    assert await world.gaps_of(job) == [(at(1), at(2), 2, "paused")]
    assert await world.fire() == 1
    assert await world.fire() == 0  # the first is open
    await world.record(await world.lease())
    await world.set_clock(at(5, 35))
    assert [leased.fire_at for leased in await world.run_all()] == [at(4), at(5)]


async def test_what_is_caught_up_waits_for_the_attempt_that_was_open_before_the_pause(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    assert await world.fire() == 1
    opened = await world.lease()
    await pause(tenant, job.job_id)
    await world.set_clock(at(2, 30))
    await resume(tenant, job.job_id, Missed.RUN_ONCE)
    assert await world.fire() == 0
    await world.record(opened)
    await world.set_clock(at(2, 35))
    assert await world.fire() == 1


async def test_a_jittered_tick_has_passed_when_its_fire_time_has(world: World, tenant: TenantContext) -> None:
    job = await create(tenant, {"schedule": "@hourly", "target": WORKER, "jitter_seconds": 1800})
    due_at = await world.connection.fetchval("SELECT due_at FROM timers")
    await pause(tenant, job.job_id)
    await world.set_clock(at(60) - timedelta(seconds=1))
    assert (await resume(tenant, job.job_id)).next_run_at == at(60)
    assert await world.connection.fetchval("SELECT due_at FROM timers") == due_at
    await pause(tenant, job.job_id)
    await world.set_clock(at(60))
    assert (await resume(tenant, job.job_id)).next_run_at == at(120)
    assert await world.connection.fetchval("SELECT due_at FROM timers") == due_at + timedelta(hours=1)
    assert await world.gaps_of(job) == [(at(60), at(60), 1, "paused")]


async def test_a_jittered_tick_that_is_not_due_yet_is_a_gap_of_the_job_that_is_deleted(
    world: World, tenant: TenantContext
) -> None:
    job = await create(tenant, {"schedule": "@hourly", "target": WORKER, "jitter_seconds": 1800})
    await world.set_clock(at(60))
    assert await world.fire() == 0
    await delete(tenant, job.job_id)
    assert await world.gaps_of(job) == [(at(60), at(60), 1, "missed")]


@pytest.mark.parametrize(("missed", "runs", "gaps"), [(Missed.SKIP, 0, 1), (Missed.RUN_ONCE, 1, 0)])
async def test_a_one_off_that_passed_in_a_pause_is_over(
    world: World, tenant: TenantContext, missed: Missed, runs: int, gaps: int
) -> None:
    job = await create(tenant, {"schedule": at(1).isoformat(), "target": WORKER})
    await pause(tenant, job.job_id)
    await world.set_clock(at(500))
    assert (await resume(tenant, job.job_id, missed)).status == "finished"
    assert len(await world.run_all()) == runs
    assert len(await world.gaps_of(job)) == gaps


async def test_a_manual_job_can_be_paused_and_resumed(world: World, tenant: TenantContext) -> None:
    job = await create(tenant, {"schedule": "manual", "target": WORKER})
    assert (await pause(tenant, job.job_id)).status == "paused"
    assert (await resume(tenant, job.job_id, Missed.RUN_ALL)).status == "active"
    assert await world.count("timers", "gaps", "finished_jobs") == [0, 0, 0]


async def test_jumps_of_the_clocks_within_a_pause_are_gaps(world: World, tenant: TenantContext) -> None:
    jump = at(0).replace(year=2027, month=3, day=14, hour=7)  # 02:00 in New York
    await world.set_clock(jump - timedelta(days=2))
    job = await world.minutely(schedule="30 2 * * *", timezone="America/New_York", dst_gap="skip")
    await pause(tenant, job.job_id)
    await world.set_clock(jump + timedelta(days=2))
    await resume(tenant, job.job_id)
    assert [(first, reason) for first, _, _, reason in await world.gaps_of(job)] == [
        (jump - timedelta(hours=47, minutes=30), "paused"),
        (jump, "dst"),
    ]


async def test_a_deleted_job_is_gone_and_its_name_is_free(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(name="a")
    await delete(tenant, job.job_id, expected_version=1)
    for asking in (get(tenant, job.job_id), get_by_name(tenant, "a"), delete(tenant, job.job_id)):
        with pytest.raises(JobNotFound):
            await asking
    assert await world.timers_of(job) == []
    await world.minutely(name="a")


async def test_a_deletion_of_another_version_is_refused(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    with pytest.raises(VersionConflict):
        await delete(tenant, job.job_id, expected_version=2)
    with pytest.raises(JobNotFound):
        await delete(world.tenant(2), job.job_id)
    assert await get(tenant, job.job_id) == job


async def test_ticks_that_a_deletion_finds_unfired_are_a_gap(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await world.set_clock(at(2))
    await delete(tenant, job.job_id)
    assert await world.gaps_of(job) == [(at(1), at(2), 2, "missed")]


async def test_runs_that_wait_are_cancelled_with_their_job_and_open_ones_finish(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.fire()
    await world.record(await world.lease(), "failed", Retry(2, timedelta(hours=1)))
    running = await trigger(tenant, job.job_id, force=True)
    await world.fire()
    leased = await world.lease()
    waiting = await trigger(tenant, job.job_id, force=True)
    await delete(tenant, job.job_id)
    assert await world.count("timers", "open_runs", "withdrawals") == [0, 1, 2]
    history = await job_runs(tenant, job.job_id)
    assert [entry.status for entry in history.items] == ["cancelled", "running", "cancelled"]
    assert (await get_run(tenant, waiting)).run.status == "cancelled"
    assert await world.record(leased) == 1
    assert (await get_run(tenant, running)).run.status == "success"
    assert await world.count("open_runs") == [0]


async def test_a_finished_job_can_be_deleted(world: World, tenant: TenantContext) -> None:
    job = await create(tenant, {"schedule": at(1).isoformat(), "target": WORKER})
    await world.set_clock(at(1))
    await world.run_all()
    await delete(tenant, job.job_id)
    assert await world.count("finished_jobs") == [0]
    assert [entry.status for entry in (await job_runs(tenant, job.job_id)).items] == ["success"]
