"""What a job's answer says of its latest run, and of its failures in a row."""

from datetime import timedelta

from evertick.contract.job import Job
from evertick.domain.ids import format_run_id
from evertick.domain.retry import GiveUp, GiveUpReason, Retry
from evertick.domain.schedule.instants import to_us
from evertick.store.jobs.jobs import MAX_ATTEMPTS
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.reading import get, list_jobs
from evertick.usecases.runs.requests import cancel, trigger
from usecases.world import WORKER, World, at, key_of

DEAD = GiveUp(1, GiveUpReason.EXHAUSTED)
RETRY = Retry(2, timedelta(seconds=10))


def last_run(job: Job) -> tuple[object, ...]:
    return job.last_run_at, job.last_run_status, job.consecutive_failures


async def fail(world: World, minute: int) -> None:
    """The tick of a minute fires and dies."""
    await world.set_clock(at(minute))
    assert await world.fire() == 1
    assert await world.record(await world.lease(), "failed", DEAD) == 1


async def test_a_job_that_never_ran_has_no_last_run(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    assert last_run(job) == (None, None, 0)
    assert await get(tenant, job.job_id) == job


async def test_the_last_run_has_the_status_that_the_list_of_runs_gives_it(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.fire()
    assert last_run(await get(tenant, job.job_id)) == (at(1), "pending", 0)
    leased = await world.lease()
    assert last_run(await get(tenant, job.job_id)) == (at(1), "running", 0)
    await world.record(leased, "failed", RETRY)
    assert last_run(await get(tenant, job.job_id)) == (at(1), "retrying", 0)
    await world.set_clock(at(1, 10))
    await world.fire()
    await world.record(await world.lease())
    assert last_run(await get(tenant, job.job_id)) == (at(1), "success", 0)


async def test_failures_are_counted_by_run_since_the_last_success(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.run_all()
    await fail(world, 2)
    assert last_run(await get(tenant, job.job_id)) == (at(2), "dead", 1)
    # A run that is retried counts once.
    await world.set_clock(at(3))
    await world.fire()
    await world.record(await world.lease(), "failed", RETRY)
    await world.set_clock(at(3, 10))
    await world.fire()
    assert last_run(await get(tenant, job.job_id)) == (at(3), "pending", 1)
    await world.record(await world.lease(), "timed_out", DEAD)
    assert last_run(await get(tenant, job.job_id)) == (at(3), "dead", 2)
    await world.set_clock(at(4))
    await world.run_all()
    assert last_run(await get(tenant, job.job_id)) == (at(4), "success", 0)


async def test_a_cancelled_run_neither_counts_nor_ends_a_row_of_failures(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await fail(world, 1)
    await world.set_clock(at(2))
    await world.fire()
    await cancel(tenant, format_run_id(key_of(job), to_us(at(2))))
    assert last_run(await get(tenant, job.job_id)) == (at(2), "cancelled", 1)


async def test_a_run_by_hand_is_a_last_run_too(world: World, tenant: TenantContext) -> None:
    job = await create(tenant, {"schedule": "manual", "target": WORKER})
    await trigger(tenant, job.job_id)
    await world.run_all()
    assert last_run(await get(tenant, job.job_id)) == (at(0, 30), "success", 0)


async def test_each_job_of_a_list_has_its_own_last_run(world: World, tenant: TenantContext) -> None:
    failing, idle = await world.minutely(), await create(tenant, {"schedule": "manual", "target": WORKER})
    await fail(world, 1)
    await fail(world, 2)
    found = {job.job_id: last_run(job) for job in (await list_jobs(tenant)).items}
    assert found == {failing.job_id: (at(2), "dead", 2), idle.job_id: (None, None, 0)}


async def test_the_count_of_failures_stops_at_a_limit(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await fail(world, 1)
    await world.connection.execute(
        "WITH more AS ("
        "    INSERT INTO attempts (lane_id, seq, job_id, fire_at, due_at, spec_version, epoch, reason, attempt)"
        "    SELECT lane_id, seq + n, job_id, fire_at + n * interval '1 ms', due_at, 1, epoch, reason, 1"
        "      FROM attempts, generate_series(1, $1) AS n RETURNING lane_id, seq)"
        " INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final)"
        " SELECT lane_id, seq, clock_at(), 'lost', true FROM more",
        2 * MAX_ATTEMPTS,
    )
    assert (await get(tenant, job.job_id)).consecutive_failures == MAX_ATTEMPTS
