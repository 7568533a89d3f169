"""Use cases against firing, recording and each other, each held up at the one moment that matters."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from engine import until
from evertick.domain.retry import Retry
from evertick.store.database import Session, connect
from evertick.store.jobs import jobs
from evertick.usecases import transactions
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import JobNotFound, NameTaken, RunFinished
from evertick.usecases.jobs import create_many
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.edit import edit, put
from evertick.usecases.jobs.lifecycle import delete, pause
from evertick.usecases.jobs.reading import get
from evertick.usecases.runs.reading import get_run, job_runs
from evertick.usecases.runs.requests import cancel, trigger
from usecases.world import WORKER, World, at, key_of

LATER = Retry(2, timedelta(hours=1))


@asynccontextmanager
async def uncommitted(world: World) -> AsyncIterator[None]:
    """What the world's own connection does within is seen by nobody, and locked for all, until the end."""
    async with world.connection.transaction():
        yield


async def until_blocks(world: World, connection: asyncpg.Connection | None = None, waiting: int = 1) -> None:
    """Wait until others wait for the locks of a connection."""
    pid = (connection or world.connection).get_server_pid()

    async def blocked() -> bool:
        count = await world.pool.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))", pid
        )
        return bool(count >= waiting)

    await until(blocked)


@pytest.fixture
async def blocker(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(database_url)
    yield connection
    await connection.close()


async def test_an_edit_waits_for_the_tick_that_is_being_fired_and_takes_nothing_from_it(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    async with uncommitted(world):
        assert await world.fire() == 1
        editing = asyncio.create_task(edit(tenant, job.job_id, {"schedule": "*/5 * * * *"}))
        await until_blocks(world)
    assert (await editing).next_run_at == at(5)
    assert await world.gaps_of(job) == []
    assert [entry.scheduled_at for entry in (await job_runs(tenant, job.job_id)).items] == [at(1)]
    await world.set_clock(at(5))
    assert await world.fire() == 0  # kept out by the first, which the edit did not forget


async def test_an_edit_that_waits_for_a_jobs_last_tick_gives_it_a_timer_again(
    world: World, tenant: TenantContext
) -> None:
    job = await create(tenant, {"schedule": at(1).isoformat(), "target": WORKER})
    await world.set_clock(at(1))
    async with uncommitted(world):
        assert await world.fire() == 1
        editing = asyncio.create_task(edit(tenant, job.job_id, {"schedule": "*/5 * * * *"}))
        await until_blocks(world)
    edited = await editing
    assert (edited.status, edited.next_run_at) == ("active", at(5))
    assert await world.timers_of(job) == [("tick", at(5), True)]


async def test_firing_passes_over_a_job_that_is_being_edited_and_what_was_planned_before_is_void(
    world: World, tenant: TenantContext, blocker: asyncpg.Connection
) -> None:
    job = await world.minutely(name="a")
    await world.set_clock(at(1))
    plan = await world.plan()
    async with blocker.transaction():
        # Whoever has the name but has not committed keeps the edit waiting, in the middle of its transaction.
        await jobs.lock(blocker, 1, key_of(await world.minutely(name="c")))
        await blocker.execute("UPDATE jobs SET name = 'b' WHERE name = 'c'")
        editing = asyncio.create_task(edit(tenant, job.job_id, {"name": "b", "concurrent_policy": "ALLOW"}))
        await until_blocks(world, blocker)
        assert await world.fire(plan) == 0
        await blocker.execute("UPDATE jobs SET name = 'd' WHERE name = 'b'")
    assert (await editing).next_run_at == at(1)
    assert await world.fire(plan) == 0  # planned by the rule of before
    assert await world.fire() == 1


async def test_after_a_pause_nothing_fires_even_if_it_was_planned(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    plan = await world.plan()
    await pause(tenant, job.job_id)
    assert await world.fire(plan) == 0
    assert await world.timers_of(job) == [("tick", at(1), False)]


async def test_a_pause_waits_for_the_tick_that_is_being_fired_and_stops_the_next(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    async with uncommitted(world):
        assert await world.fire() == 1
        pausing = asyncio.create_task(pause(tenant, job.job_id))
        await until_blocks(world)
    assert (await pausing).status == "paused"
    assert await world.timers_of(job) == [("tick", at(2), False)]


async def test_a_cancellation_that_comes_second_to_a_failure_withdraws_the_retry(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.fire()
    leased = await world.lease()
    run_id = str((await job_runs(tenant, job.job_id)).items[0].run_id)
    async with uncommitted(world):
        assert await world.record(leased, "failed", LATER) == 1
        cancelling = asyncio.create_task(cancel(tenant, run_id))
        await until_blocks(world)
    await cancelling
    detail = await get_run(tenant, run_id)
    assert (detail.run.status, [each.result for each in detail.attempts]) == ("cancelled", ["failed"])
    assert await world.count("open_runs", "withdrawals") == [0, 1]
    assert await world.timers_of(job) == [("tick", at(2), True)]


async def test_a_cancellation_that_comes_second_to_a_success_is_refused(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.fire()
    leased = await world.lease()
    run_id = str((await job_runs(tenant, job.job_id)).items[0].run_id)
    async with uncommitted(world):
        await world.record(leased)
        cancelling = asyncio.create_task(cancel(tenant, run_id))
        await until_blocks(world)
    with pytest.raises(RunFinished, match="success"):
        await cancelling


async def test_a_run_that_is_fired_while_it_is_cancelled_is_cancelled(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    run_id = await trigger(tenant, job.job_id)
    async with uncommitted(world):
        assert await world.fire() == 1
        cancelling = asyncio.create_task(cancel(tenant, run_id))
        await until_blocks(world)
    await cancelling
    detail = await get_run(tenant, run_id)
    assert (detail.run.status, [each.result for each in detail.attempts]) == ("cancelled", ["cancelled"])
    assert await world.count("open_runs", "withdrawals") == [0, 0]


async def test_a_deletion_removes_the_retry_of_a_failure_that_it_waited_for(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.fire()
    leased = await world.lease()
    async with uncommitted(world):
        await world.record(leased, "failed", LATER)
        deleting = asyncio.create_task(delete(tenant, job.job_id))
        await until_blocks(world)
    await deleting
    assert await world.count("timers", "open_runs", "withdrawals") == [0, 0, 1]


async def test_a_failure_that_meets_a_deletion_is_not_retried(
    world: World, tenant: TenantContext, blocker: asyncpg.Connection
) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.fire()
    leased = await world.lease()
    async with blocker.transaction():
        await blocker.execute("SELECT FROM timers FOR UPDATE")
        deleting = asyncio.create_task(delete(tenant, job.job_id))
        await until_blocks(world, blocker)
        assert await world.record(leased, "failed", LATER) == 0  # busy: it waits for nobody
    await deleting
    assert await world.record(leased, "failed", LATER) == 1
    assert await world.count("timers", "open_runs", "withdrawals") == [0, 0, 1]
    assert [entry.status for entry in (await job_runs(tenant, job.job_id)).items] == ["cancelled"]


async def test_a_deletion_removes_what_a_firing_that_it_waited_for_has_queued(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely(concurrent_policy="QUEUE")
    await world.set_clock(at(1))
    assert await world.fire() == 1
    await world.set_clock(at(2))
    async with uncommitted(world):
        assert await world.fire() == 0
        deleting = asyncio.create_task(delete(tenant, job.job_id))
        await until_blocks(world)
    await deleting
    assert await world.count("timers", "withdrawals") == [0, 1]
    assert [entry.status for entry in (await job_runs(tenant, job.job_id)).items] == ["cancelled", "pending"]


async def test_a_trigger_that_waited_for_a_deletion_finds_no_job(
    world: World, tenant: TenantContext, blocker: asyncpg.Connection
) -> None:
    job = await world.minutely()
    async with blocker.transaction():
        await blocker.execute("SELECT FROM timers FOR UPDATE")
        deleting = asyncio.create_task(delete(tenant, job.job_id))
        await until_blocks(world, blocker)
        triggering = asyncio.create_task(trigger(tenant, job.job_id))
        await until(
            lambda: world.pool.fetchval("SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        )
    await deleting
    with pytest.raises(JobNotFound):
        await triggering
    assert await world.count("timers", "requested_runs") == [0, 0]


async def test_the_second_who_creates_a_name_waits_for_the_first_and_is_refused(
    world: World, tenant: TenantContext, blocker: asyncpg.Connection
) -> None:
    await world.minutely(name="a")
    async with blocker.transaction():
        await blocker.execute("UPDATE jobs SET name = 'b'")
        creating = asyncio.create_task(create(tenant, {"name": "b", "schedule": "@daily", "target": WORKER}))
        await until_blocks(world, blocker)
    with pytest.raises(NameTaken):
        await creating
    assert await world.count("jobs", "job_versions", "timers") == [1, 1, 1]


async def test_many_who_put_one_job_make_one_job(world: World) -> None:
    puts = await asyncio.gather(*(put(world.tenant(), "a", {"schedule": "@daily", "target": WORKER}) for _ in range(8)))
    assert sum(each.is_new for each in puts) == 1
    assert len({each.job.job_id for each in puts}) == 1
    assert {each.job.spec_version for each in puts} == {1}


async def test_triggers_at_once_are_runs_of_their_own(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    run_ids = await asyncio.gather(*(trigger(tenant, job.job_id, force=True) for _ in range(30)))
    assert len(set(run_ids)) == 30
    assert await world.count("requested_runs") == [30]


async def test_edits_at_once_are_one_after_the_other(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    edited = await asyncio.gather(*(edit(tenant, job.job_id, {"payload": number}) for number in range(8)))
    assert sorted(each.spec_version for each in edited) == list(range(2, 10))
    assert (await get(tenant, job.job_id)).spec_version == 9


async def test_work_that_a_deadlock_undid_is_done_again(world: World, tenant: TenantContext) -> None:
    keys = [key_of(await world.minutely()) for _ in range(2)]
    both_have_one = asyncio.Barrier(2)
    tries: list[int] = []

    async def lock(connection: Session, first: int, second: int) -> None:
        await connection.execute("SET LOCAL deadlock_timeout = '10ms'")
        tries.append(first)
        await jobs.lock(connection, 1, first)
        if len(tries) <= 2:
            await both_have_one.wait()
        await jobs.lock(connection, 1, second)

    await asyncio.gather(
        tenant.in_transaction(lambda connection: lock(connection, *keys)),
        tenant.in_transaction(lambda connection: lock(connection, *reversed(keys))),
    )
    assert len(tries) >= 3  # more if it took its first row again before the other had it


async def test_batches_that_bring_the_same_rules_in_another_order_do_not_deadlock(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create_many, "PART_SIZE", 1)
    monkeypatch.setattr(transactions, "LONG_SECONDS", -1.0)  # a deadlock would be told
    await world.connection.execute(
        """
        CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_advisory_xact_lock_shared(4711);
            RETURN NULL;
        END $$;
        CREATE TRIGGER wait_for_test AFTER INSERT ON rules FOR EACH ROW EXECUTE FUNCTION wait_for_test();
        """
    )
    schedules = ["1 2 * * *", "3 4 * * *"]
    await world.connection.execute("SELECT pg_advisory_lock(4711)")
    creating = [
        asyncio.create_task(
            create_many.create_many(world.tenant(), [{"schedule": each, "target": WORKER} for each in order])
        )
        for order in (schedules, schedules[::-1])
    ]
    await until(
        lambda: world.connection.fetchval(
            "SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
    )
    await world.connection.execute("SELECT pg_advisory_unlock(4711)")
    for verdicts in await asyncio.gather(*creating):
        assert all(verdict.job_id for verdict in verdicts)
