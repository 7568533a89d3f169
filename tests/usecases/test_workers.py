"""Who serves what, and what is said of runs that wait for a worker."""

from datetime import timedelta

from evertick.contract.job import Job
from evertick.contract.runs import Attempt, Gap, Run
from evertick.store.engine import lanes, workers
from evertick.store.engine.workers import Announcement, PullingWorker
from evertick.usecases.context import TenantContext
from evertick.usecases.diagnosis import Level, on_workers
from evertick.usecases.runs import reading, requests
from evertick.usecases.tenants import queues
from evertick.usecases.workers import list_workers
from usecases.world import MINUTE, World, at


async def only_run(tenant: TenantContext, job: Job) -> Run:
    (run,) = (await reading.job_runs(tenant, job.job_id)).items
    assert isinstance(run, Run)
    return run


BILLING = Announcement("billing-1", "worker", "1.0", ["mail"], ["send", "forget"], None)


async def test_workers_are_listed_with_what_they_serve(world: World, tenant: TenantContext) -> None:
    await workers.announce(world.pool, BILLING, MINUTE)
    await workers.note(world.pool, [PullingWorker(1, "1/remote", "mail", '["send"]')], MINUTE)
    await workers.note(world.pool, [PullingWorker(2, "2/theirs", "mail", None)], MINUTE)
    listed = (await list_workers(tenant)).items
    assert [(each.worker_id, each.role, each.is_alive) for each in listed] == [
        ("billing-1", "worker", True),
        ("remote", "remote_worker", True),
    ]
    assert [each.queues[0].handlers for each in listed] == [("forget", "send"), ("send",)]
    first = await list_workers(tenant, limit=1)
    assert (await list_workers(tenant, limit=1, cursor=first.next)).items == listed[1:]


async def test_how_much_a_worker_of_all_tenants_finishes_is_told_to_their_host_alone(
    world: World, tenant: TenantContext
) -> None:
    await workers.announce(world.pool, BILLING._replace(finished_per_second=2.5), MINUTE)
    await workers.announce(world.pool, BILLING._replace(worker="own", tenant_id=1, finished_per_second=0.5), MINUTE)

    async def rates() -> list[float | None]:
        return [each.finished_per_second for each in (await list_workers(tenant)).items]

    assert await rates() == [2.5, 0.5]
    await world.connection.execute("UPDATE tenants SET is_host = false")
    assert await rates() == [None, 0.5]


async def test_a_worker_is_not_alive_after_its_last_heartbeat_and_then_forgotten(
    world: World, tenant: TenantContext
) -> None:
    await workers.announce(world.pool, BILLING, MINUTE)
    await workers.note(world.pool, [PullingWorker(1, "1/remote", "mail", None)], MINUTE)
    await world.set_clock(at(1))
    await workers.note_heartbeats(world.pool, ["1/remote", "1/unknown"], MINUTE)
    await world.set_clock(at(1, 45))
    assert [(each.worker_id, each.is_alive) for each in (await list_workers(tenant)).items] == [
        ("billing-1", False),
        ("remote", True),
    ]
    await world.set_clock(at(12))
    await workers.forget(world.pool)
    assert [each.worker_id for each in (await list_workers(tenant)).items] == ["remote"]
    await workers.leave(world.pool, "1/remote")
    assert (await list_workers(tenant)).items == ()


async def test_a_tenant_that_invents_workers_gets_no_more_than_so_many_rows(
    world: World, tenant: TenantContext
) -> None:
    named = [PullingWorker(1, f"1/w{number}", "mail", None) for number in range(workers.MAX_ROWS)]
    await workers.note(world.pool, named, MINUTE)
    await workers.note(world.pool, [PullingWorker(1, "1/more", "mail", None), named[0]], MINUTE)
    assert await world.connection.fetchval("SELECT count(*) FROM workers") == workers.MAX_ROWS
    await workers.note(world.pool, [PullingWorker(2, "2/other", "mail", None)], MINUTE)
    assert await world.connection.fetchval("SELECT count(*) FROM workers WHERE tenant_id = 2") == 1


async def test_a_queue_names_its_handlers_and_those_that_nobody_serves(world: World, tenant: TenantContext) -> None:
    await world.minutely(name="served")
    await world.minutely(name="unserved", target={"type": "worker", "queue": "mail", "handler": "renamed"})
    await workers.announce(world.pool, BILLING, MINUTE)
    (mail,) = (await queues.list_queues(tenant)).items
    assert [(each.handler, each.workers) for each in mail.handlers] == [("forget", 1), ("renamed", 0), ("send", 1)]
    assert (mail.workers, mail.unserved) == (1, ["renamed"])
    assert await queues.get_queue(tenant, "mail") == mail


async def test_a_run_says_that_no_worker_serves_its_handler(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.fire()
    await world.set_clock(at(1, 30))
    run = await only_run(tenant, job)
    assert run.waiting == "no worker serves handler 'send' on queue 'mail'"
    assert (await reading.get_run(tenant, run.run_id)).waiting == run.waiting
    assert (await reading.tenant_runs(tenant)).items == (run,)
    await workers.announce(world.pool, BILLING, timedelta(hours=1))
    run = await only_run(tenant, job)
    assert run.waiting is None, "a worker may be about to take it"
    await world.set_clock(at(21))
    run = await only_run(tenant, job)
    assert run.waiting == "no worker took it for 20 min"
    await world.lease()
    run = await only_run(tenant, job)
    assert (run.status, run.waiting, run.worker_id) == ("running", None, "worker-1")


async def test_a_run_has_the_name_of_its_job_its_handler_and_its_queue(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(name="report")
    await world.set_clock(at(1))
    await world.fire()
    run = await only_run(tenant, job)
    assert (run.name, run.handler, run.queue) == ("report", "send", "mail")
    assert (await reading.tenant_runs(tenant)).items == (run,)
    detail = await reading.get_run(tenant, run.run_id)
    assert (detail.name, detail.handler, detail.queue) == ("report", "send", "mail")
    waiting = await reading.get_run(tenant, await requests.trigger(tenant, job.job_id, force=True))
    assert (waiting.name, waiting.handler, waiting.queue) == ("report", "send", None)


async def test_heartbeats_tell_since_when_an_attempt_runs_and_a_cancelled_one_keeps_it(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.fire()
    (leased,) = await world.lease()
    run = await only_run(tenant, job)
    assert (run.status, run.started_at) == ("running", None)
    started = [(leased.lease_id, leased.seq, at(1, 5))]
    await lanes.extend(world.connection, "worker-1", MINUTE, [leased.lease_id], started)
    shown: Run | Attempt
    for shown in (
        await only_run(tenant, job),
        (await reading.tenant_runs(tenant)).items[0],
        (await reading.get_run(tenant, run.run_id)).attempts[0],
    ):
        assert (shown.started_at, shown.worker_id) == (at(1, 5), "worker-1")
    await requests.cancel(tenant, run.run_id)
    (attempt,) = (await reading.get_run(tenant, run.run_id)).attempts
    assert (attempt.status, attempt.started_at, attempt.worker_id) == ("cancelled", at(1, 5), "worker-1")


async def test_a_tick_that_was_skipped_says_behind_which_run(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    for minute in (1, 2, 3):
        await world.set_clock(at(minute))
        await world.fire()
    gap, run = (await reading.job_runs(tenant, job.job_id)).items
    assert isinstance(gap, Gap)
    assert (gap.reason, gap.count, gap.behind) == ("overlap", 2, run.run_id)


async def test_the_doctor_warns_of_a_queue_with_work_that_nobody_serves(world: World) -> None:
    await world.minutely()
    await world.set_clock(at(1))
    await world.fire()
    await world.set_clock(at(6))
    found = on_workers([], await workers.idle_queues(world.pool, 60), at(6))
    assert found.level is Level.WARNING
    assert "no worker serves queue mail of default: 1 attempt in it, the oldest due 5 min ago" in found.what
    await workers.announce(world.pool, BILLING, MINUTE)
    alive = await workers.alive(world.pool)
    assert on_workers(alive, await workers.idle_queues(world.pool, 60), at(6))[1:] == (
        Level.OK,
        "1 worker on mail",
        None,
    )
