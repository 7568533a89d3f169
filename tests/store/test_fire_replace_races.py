"""REPLACE against a worker that ends the run to be replaced at the same moment: on two connections, with real locks.

The lock of a run's row in open_runs guards its outcome, and who records has it first. Firing does not wait for that.
"""

import asyncpg

from engine import AGAIN, AT, MINUTE, Holder, Job, Planned, ending_of, lease, timers_of
from evertick.domain.retry import Retry
from evertick.store.engine import outcomes
from evertick.store.engine.lanes import Leased


async def running(holder: Holder, job: Job) -> Leased:
    await holder.fire(Planned(job, policy="REPLACE"))
    [leased] = await lease(holder.connection, job)
    return leased


def replacement(job: Job) -> Planned:
    return Planned(job, AT + MINUTE, policy="REPLACE")


async def record(second: asyncpg.Connection, leased: Leased, result: str, then: Retry | None = None) -> None:
    await second.execute("SELECT FROM open_runs WHERE job_id = $1 FOR UPDATE", leased.job_id)
    await outcomes.record(second, "w", [ending_of(leased, result, then)], [leased.lease_id])


async def open_runs(connection: asyncpg.Connection) -> list[object]:
    return [row["fire_at"] for row in await connection.fetch("SELECT fire_at FROM open_runs ORDER BY fire_at")]


async def test_a_success_that_is_being_recorded_stands(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job)
    async with second.transaction():
        await record(second, leased, "success")
        assert list((await holder.fire(replacement(job))).busy) == [1]
    assert (await holder.fire(replacement(job))).runs == 1
    assert await connection.fetchval("SELECT result::text FROM outcomes") == "success"
    assert await open_runs(connection) == [AT + MINUTE]


async def test_a_retry_that_is_being_recorded_is_replaced_when_it_stands(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job)
    async with second.transaction():
        await record(second, leased, "failed", AGAIN)
        assert list((await holder.fire(replacement(job))).busy) == [1]
    assert await timers_of(connection, job) == [("tick", AT + MINUTE), ("retry", AT)]
    assert (await holder.fire(replacement(job))).runs == 1
    assert await timers_of(connection, job) == [("tick", AT + 2 * MINUTE)]
    assert await open_runs(connection) == [AT + MINUTE]


async def test_a_worker_that_comes_while_its_run_is_being_replaced_is_stale(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job)
    async with connection.transaction():
        await holder.fire(replacement(job))
        assert (await outcomes.record(second, "w", [ending_of(leased, "failed", AGAIN)], [])).busy
    recorded = await outcomes.record(second, "w", [ending_of(leased, "failed", AGAIN)], [])
    assert recorded.stale == {(leased.lane_id, leased.seq)}
    assert await timers_of(connection, job) == [("tick", AT + 2 * MINUTE)]
    assert await connection.fetchval("SELECT result::text FROM outcomes") == "cancelled"
