"""Firing waits for no user: whatever a session has locked, the call returns while the lock is held, and others fire."""

from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from engine import AGAIN, AT, MINUTE, Holder, Job, Planned, add_job, finish, gaps_of, lease, retry_timer, timers_of
from evertick.store.engine import timers
from evertick.store.engine.timers import Fired, Quarantined
from evertick.store.jobs import runs

NEIGHBOURS = 20


@pytest.fixture
async def holder(connection: asyncpg.Connection) -> Holder:
    holder = Holder(connection)
    await holder.take(7, 8)
    await connection.execute("SET lock_timeout = '1s'")  # what is held is held until the test lets go of it
    return holder


@pytest.fixture
async def neighbours(connection: asyncpg.Connection) -> list[Job]:
    return [await add_job(connection, partition=8) for _ in range(NEIGHBOURS)]


async def begin(holder: Holder, job: Job, neighbours: list[Job], policy: str = "REPLACE") -> None:
    """The first run of the job, by its policy, and of its neighbours under REPLACE."""
    await holder.fire(Planned(job, policy=policy), *(Planned(each, policy="REPLACE") for each in neighbours))


async def fire_all(holder: Holder, planned: Planned, neighbours: list[Job]) -> Fired:
    return await holder.fire(planned, *(Planned(each, AT + MINUTE, policy="REPLACE") for each in neighbours))


def replacing(job: Job) -> Planned:
    return Planned(job, AT + MINUTE, policy="REPLACE")


async def results(connection: asyncpg.Connection, job: Job) -> list[str | None]:
    rows = await connection.fetch(
        "SELECT result::text FROM attempts LEFT JOIN outcomes USING (lane_id, seq) WHERE job_id = $1 ORDER BY seq",
        job.job_id,
    )
    return [row["result"] for row in rows]


async def cancel(second: asyncpg.Connection, job: Job) -> None:
    """What the use case does, up to its commit."""
    await runs.lock(second, job.job_id, AT)
    [*_, latest] = await runs.attempts(second, job.job_id, AT, 0)
    assert await runs.cancel_attempt(second, latest.run, "cancelled by request")


def locking(sql: str) -> Callable[[asyncpg.Connection, Job], Awaitable[object]]:
    async def lock(second: asyncpg.Connection, job: Job) -> None:
        assert await second.fetch(sql, job.job_id)

    return lock


LOCKS = {
    "its timer": locking("SELECT 1 FROM timers WHERE job_id = $1 AND kind = 'tick' FOR UPDATE"),
    "its open run": locking("SELECT 1 FROM open_runs WHERE job_id = $1 FOR UPDATE"),
    "its open run, about to go": locking("DELETE FROM open_runs WHERE job_id = $1 RETURNING 1"),
    "its partition": locking("SELECT 1 FROM partitions WHERE partition = $1 & 255 FOR UPDATE"),
    "all of a cancellation": cancel,
}


@pytest.mark.parametrize("held", LOCKS)
async def test_a_job_of_which_something_is_locked_is_busy_and_the_others_fire(  # noqa: PLR0917 - who takes part
    connection: asyncpg.Connection,
    second: asyncpg.Connection,
    holder: Holder,
    job: Job,
    neighbours: list[Job],
    held: str,
) -> None:
    await begin(holder, job, neighbours)
    transaction = second.transaction()
    await transaction.start()
    await LOCKS[held](second, job)
    fired = await fire_all(holder, replacing(job), neighbours)
    assert (fired.runs, list(fired.busy), list(fired.refused)) == (NEIGHBOURS, [1], [])
    assert await timers_of(connection, job) == [("tick", AT + MINUTE)]
    assert await results(connection, job) == [None]
    await transaction.rollback()
    assert (await holder.fire(replacing(job))).runs == 1
    assert await results(connection, job) == ["cancelled", None]


async def test_a_locked_job_fires_all_the_same(
    second: asyncpg.Connection, holder: Holder, job: Job, neighbours: list[Job]
) -> None:
    await begin(holder, job, neighbours)
    async with second.transaction():
        await second.execute("SELECT FROM jobs WHERE job_id = $1 FOR UPDATE", job.job_id)
        assert (await fire_all(holder, replacing(job), neighbours)).runs == NEIGHBOURS + 1


async def test_a_cancellation_of_a_run_that_has_no_row_of_its_own_is_not_waited_for(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, job: Job, neighbours: list[Job]
) -> None:
    """It was fired under SKIP, and the policy is REPLACE by now."""
    await begin(holder, job, neighbours, "SKIP")
    assert await connection.fetchval("SELECT count(*) FROM open_runs WHERE job_id = $1", job.job_id) == 0
    async with second.transaction():
        await cancel(second, job)
        fired = await fire_all(holder, replacing(job), neighbours)
        assert (fired.runs, list(fired.busy)) == (NEIGHBOURS, [1])
    assert (await holder.fire(replacing(job))).runs == 1
    assert await results(connection, job) == ["cancelled", None]


async def test_a_replaced_run_whose_retry_is_locked_is_busy(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, job: Job, neighbours: list[Job]
) -> None:
    await begin(holder, job, [])
    await finish(connection, job, "failed", AGAIN)
    await begin(holder, job, neighbours)
    async with second.transaction():
        await second.execute("SELECT FROM timers WHERE job_id = $1 AND kind = 'retry' FOR UPDATE", job.job_id)
        fired = await fire_all(holder, replacing(job), neighbours)
        assert (fired.runs, list(fired.busy)) == (NEIGHBOURS, [1])
    assert (await holder.fire(replacing(job))).runs == 1
    assert await timers_of(connection, job) == [("tick", AT + 2 * MINUTE)]


async def test_a_retry_whose_run_is_locked_is_busy(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, job: Job, neighbours: list[Job]
) -> None:
    await begin(holder, job, [], "SKIP")
    await finish(connection, job, "failed", AGAIN)
    await begin(holder, job, neighbours)
    retry = await retry_timer(connection, job)
    async with second.transaction():
        await second.execute("SELECT FROM open_runs WHERE job_id = $1 FOR UPDATE", job.job_id)
        fired = await fire_all(holder, retry, neighbours)
        assert (fired.runs, list(fired.busy)) == (NEIGHBOURS, [1])
        assert await results(connection, job) == ["failed"]
    assert (await holder.fire(retry)).runs == 1


async def test_a_gap_that_is_locked_is_not_joined(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, job: Job, neighbours: list[Job]
) -> None:
    await holder.fire_ticks(Planned(job), 2)
    await begin(holder, job, neighbours)
    locked = (AT + MINUTE, AT + MINUTE, 1, "overlap")
    async with second.transaction():
        await second.execute("SELECT FROM gaps WHERE job_id = $1 FOR UPDATE", job.job_id)
        assert (await fire_all(holder, Planned(job, AT + 2 * MINUTE), neighbours)).runs == NEIGHBOURS
    await holder.fire(Planned(job, AT + 3 * MINUTE))
    assert await gaps_of(connection, job) == [locked, (AT + 2 * MINUTE, AT + 3 * MINUTE, 2, "overlap")]


async def test_what_was_changed_and_not_only_locked_is_refused(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await connection.execute("UPDATE timers SET due_at = 'infinity' WHERE job_id = $1", job.job_id)
    fired = await holder.fire(Planned(job))
    assert (list(fired.refused), list(fired.busy)) == ([1], [])


async def test_withdrawing_and_replacing_one_run_do_not_deadlock(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    """The user has the retry's timer and is about to take the run's row; firing would take them the other way round."""
    await begin(holder, job, [])
    await finish(connection, job, "failed", AGAIN)
    [*_, waiting] = await runs.attempts(connection, job.job_id, AT, 0)
    async with second.transaction():
        await second.execute("SELECT FROM timers WHERE job_id = $1 AND kind = 'retry' FOR UPDATE", job.job_id)
        assert list((await holder.fire(replacing(job))).busy) == [1]
        assert await runs.withdraw(second, waiting.run)
    assert (await holder.fire(replacing(job))).runs == 1
    assert await connection.fetchval("SELECT count(*) FROM withdrawals") == 1


@pytest.mark.parametrize("table", ["jobs", "timers"])
async def test_a_job_to_be_quarantined_that_is_locked_is_left_for_later(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, job: Job, table: str
) -> None:
    other = await add_job(holder.connection)
    broken = {each.job_id: each.rule_id for each in (job, other)}
    async with second.transaction():
        await second.execute(f"SELECT FROM {table} WHERE job_id = $1 FOR UPDATE", job.job_id)
        assert await timers.quarantine(connection, broken, "broken") == Quarantined(1, [job.job_id])
    statuses = (
        "SELECT job_id, status::text, due_at = 'infinity' AS rests FROM jobs JOIN timers USING (job_id) ORDER BY 1"
    )
    assert [tuple(row) for row in await connection.fetch(statuses)] == [
        (job.job_id, "active", False),
        (other.job_id, "paused", True),
    ]
    assert await timers.quarantine(connection, broken, "broken") == Quarantined(1, [])
    assert {row["status"] for row in await connection.fetch(statuses)} == {"paused"}


async def test_a_job_that_was_mended_meanwhile_is_not_quarantined(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    assert holder.epochs
    assert await timers.quarantine(connection, {job.job_id: job.rule_id + 1}, "broken") == Quarantined(0, [])
    assert await connection.fetchval("SELECT status::text FROM jobs") == "active"


async def test_a_worker_that_ends_a_run_at_this_moment_has_its_row_and_is_not_waited_for(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, job: Job, neighbours: list[Job]
) -> None:
    await begin(holder, job, neighbours)
    [leased] = [each for each in await lease(connection, job) if each.job_id == job.job_id]
    async with second.transaction():
        await second.execute("SELECT FROM open_runs WHERE job_id = $1 FOR UPDATE", job.job_id)
        await second.execute(
            "INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final)"
            " VALUES ($1, $2, now(), 'success', true)",
            *(leased.lane_id, leased.seq),
        )
        await second.execute("DELETE FROM open_runs WHERE job_id = $1", job.job_id)
        fired = await fire_all(holder, replacing(job), neighbours)
        assert (fired.runs, list(fired.busy)) == (NEIGHBOURS, [1])
    assert (await holder.fire(replacing(job))).runs == 1
    assert await results(connection, job) == ["success", None]
