"""REPLACE against a worker that ends the run to be replaced at the same moment: on two connections, with real locks."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from engine import AGAIN, AT, MINUTE, Holder, Job, Planned, add_job, ending_of, lease, timers_of, until_blocked
from evertick.store import outcomes
from evertick.store.database import connect
from evertick.store.lanes import Leased


@pytest.fixture
async def worker(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def watcher(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def holder(connection: asyncpg.Connection) -> Holder:
    holder = Holder(connection)
    await holder.take(7)
    return holder


@pytest.fixture
async def job(connection: asyncpg.Connection) -> Job:
    return await add_job(connection)


async def running(holder: Holder, job: Job) -> Leased:
    await holder.fire(Planned(job, policy="REPLACE"))
    [leased] = await lease(holder.connection, job)
    return leased


def replacement(job: Job) -> Planned:
    return Planned(job, AT + MINUTE, policy="REPLACE")


async def open_runs(connection: asyncpg.Connection) -> list[object]:
    return [row["fire_at"] for row in await connection.fetch("SELECT fire_at FROM open_runs ORDER BY fire_at")]


async def test_a_success_that_is_being_recorded_stands(
    connection: asyncpg.Connection, worker: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job)
    async with worker.transaction():
        await outcomes.record(worker, "w", [ending_of(leased)], [leased.lease_id])
        firing = asyncio.create_task(holder.fire(replacement(job)))
        await until_blocked(watcher, connection)
    assert (await firing).runs == 1
    assert await connection.fetchval("SELECT result::text FROM outcomes") == "success"
    assert await open_runs(connection) == [AT + MINUTE]


async def test_a_retry_that_is_being_recorded_stays_open_for_the_next_tick_to_replace(
    connection: asyncpg.Connection, worker: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job)
    async with worker.transaction():
        await outcomes.record(worker, "w", [ending_of(leased, "failed", AGAIN)], [leased.lease_id])
        firing = asyncio.create_task(holder.fire(replacement(job)))
        await until_blocked(watcher, connection)
    await firing
    assert await timers_of(connection, job) == [("tick", AT + 2 * MINUTE), ("retry", AT)]
    assert await open_runs(connection) == [AT, AT + MINUTE]
    await holder.fire(Planned(job, AT + 2 * MINUTE, policy="REPLACE"))
    assert await timers_of(connection, job) == [("tick", AT + 3 * MINUTE)]
    assert await open_runs(connection) == [AT + 2 * MINUTE]


async def test_a_worker_that_comes_while_its_run_is_being_replaced_is_stale(
    connection: asyncpg.Connection, worker: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job)
    async with connection.transaction():
        await holder.fire(replacement(job))
        assert (await outcomes.record(worker, "w", [ending_of(leased, "failed", AGAIN)], [])).busy
    recorded = await outcomes.record(worker, "w", [ending_of(leased, "failed", AGAIN)], [])
    assert recorded.stale == {(leased.lane_id, leased.seq)}
    assert await timers_of(connection, job) == [("tick", AT + 2 * MINUTE)]
    assert await connection.fetchval("SELECT result::text FROM outcomes") == "cancelled"


@pytest.mark.parametrize("ending", ["success", "failed"])
async def test_replacing_and_recording_the_same_run_never_deadlock(
    connection: asyncpg.Connection,
    worker: asyncpg.Connection,
    watcher: asyncpg.Connection,
    holder: Holder,
    job: Job,
    *,
    ending: str,
) -> None:
    """The worker is held up, by its lease's row, between the outcome and whatever else it writes."""
    leased = await running(holder, job)
    then = AGAIN if ending == "failed" else None
    async with watcher.transaction():
        await watcher.execute("SELECT FROM leases FOR UPDATE")
        recording = asyncio.create_task(
            outcomes.record(worker, "w", [ending_of(leased, ending, then)], [leased.lease_id])
        )
        await until_blocked(watcher, worker)
        firing = asyncio.create_task(holder.fire(replacement(job)))
        await until_blocked(watcher, connection)
    assert await recording == (set(), set())
    assert (await firing).runs == 1
