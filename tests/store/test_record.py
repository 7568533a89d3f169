import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from engine import (
    AGAIN,
    AT,
    Holder,
    Job,
    Planned,
    add_job,
    ending_of,
    finish,
    lease,
    retry_timer,
    timers_of,
    until_blocked,
)
from evertick.store import outcomes, statements
from evertick.store.database import connect
from evertick.store.lanes import Leased
from evertick.store.outcomes import Again, Dead

HOUR = timedelta(hours=1)
CANCEL = statements.load("runs")["cancel_attempt"]


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[asyncpg.Connection]:
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


async def running(holder: Holder, job: Job, policy: str = "ALLOW") -> Leased:
    await holder.fire(Planned(job, policy=policy))
    [leased] = await lease(holder.connection, job)
    return leased


async def count(connection: asyncpg.Connection, table: str) -> int:
    return int(await connection.fetchval(f"SELECT count(*) FROM {table}"))


async def test_a_success_ends_the_run_and_lets_go_of_the_lease(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job)
    ending = ending_of(leased)._replace(code=200, error="none", excerpt="ok")
    assert await outcomes.record(connection, "w", [ending], [leased.lease_id]) == set()
    row = await connection.fetchrow("SELECT * FROM outcomes")
    assert row is not None
    assert (row["result"], row["is_final"], row["worker"]) == ("success", True, "w")
    assert (row["code"], row["error"], row["excerpt"]) == (200, "none", "ok")
    assert (row["started_at"], row["finished_at"]) == (AT, AT)
    assert await count(connection, "leases") == await count(connection, "open_runs") == 0
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick"]


async def test_a_lease_that_is_not_done_stays(connection: asyncpg.Connection, holder: Holder, job: Job) -> None:
    leased = await running(holder, job)
    await outcomes.record(connection, "w", [ending_of(leased)], [])
    assert await count(connection, "leases") == 1


async def test_leases_may_end_without_an_outcome(connection: asyncpg.Connection, holder: Holder, job: Job) -> None:
    leased = await running(holder, job)
    assert await outcomes.record(connection, "w", [], [leased.lease_id]) == set()
    assert await count(connection, "leases") == 0


async def test_a_failure_with_attempts_left_leaves_a_retry_timer_and_an_open_run(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job, "SKIP")
    assert await count(connection, "open_runs") == 0  # the tick's timer speaks for it
    before_at = await connection.fetchval("SELECT clock_at()")
    await outcomes.record(connection, "w", [ending_of(leased, "failed", Again(2, HOUR))], [leased.lease_id])
    timer = await connection.fetchrow("SELECT * FROM timers WHERE kind = 'retry'")
    assert timer is not None
    assert (timer["job_id"], timer["fire_at"], timer["attempt"], timer["reason"]) == (job.job_id, AT, 2, "tick")
    assert (timer["queue_id"], timer["priority"], timer["partition"]) == (job.queue_id, job.priority, 7)
    assert timedelta(0) < timer["due_at"] - before_at - HOUR < timedelta(seconds=10)
    row = await connection.fetchrow("SELECT job_id, fire_at, lane_id, seq FROM open_runs")
    assert row is not None
    assert tuple(row) == (job.job_id, AT, leased.lane_id, leased.seq)
    assert not await connection.fetchval("SELECT is_final FROM outcomes")


async def test_a_deferred_attempt_comes_again_under_its_number(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire(Planned(job))
    await finish(connection, job, "deferred", Again(1, timedelta(0)))
    await holder.fire(await retry_timer(connection, job))
    rows = await connection.fetch("SELECT attempt FROM attempts ORDER BY seq")
    assert [row["attempt"] for row in rows] == [1, 1]


async def test_a_failure_without_attempts_left_is_a_dead_letter(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job)
    await outcomes.record(connection, "w", [ending_of(leased, "failed", Dead(4, "exhausted"))], [])
    row = await connection.fetchrow(
        "SELECT job_id, fire_at, tenant_id, lane_id, seq, attempt, reason FROM dead_letters"
    )
    assert row is not None
    assert tuple(row) == (job.job_id, AT, 1, leased.lane_id, leased.seq, 4, "exhausted")
    assert await connection.fetchval("SELECT is_final FROM outcomes")
    assert await count(connection, "open_runs") == 0
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick"]


async def test_a_retry_that_succeeds_closes_the_run(connection: asyncpg.Connection, holder: Holder, job: Job) -> None:
    await holder.fire(Planned(job))
    await finish(connection, job, "failed", AGAIN)
    await holder.fire(await retry_timer(connection, job))
    assert await count(connection, "open_runs") == 1
    await finish(connection, job)
    assert await count(connection, "open_runs") == 0


async def test_the_second_to_record_is_stale_and_nothing_follows(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    neighbour = await add_job(connection)
    leased = await running(holder, job)
    other = await running(holder, neighbour)
    await outcomes.record(connection, "w", [ending_of(leased)], [])
    late = [ending_of(leased, "failed", AGAIN), ending_of(other, "failed", AGAIN)]
    assert await outcomes.record(connection, "v", late, []) == {(leased.lane_id, leased.seq)}
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick"]
    assert [kind for kind, _ in await timers_of(connection, neighbour)] == ["tick", "retry"]
    assert await connection.fetchval("SELECT worker FROM outcomes WHERE seq = $1", leased.seq) == "w"


@pytest.mark.parametrize("then", [AGAIN, Dead(1, "exhausted")], ids=["retry", "dead"])
async def test_of_two_who_record_at_once_the_first_wins(
    connection: asyncpg.Connection,
    second: asyncpg.Connection,
    watcher: asyncpg.Connection,
    holder: Holder,
    job: Job,
    *,
    then: Again | Dead,
) -> None:
    leased = await running(holder, job)
    async with connection.transaction():
        assert not await outcomes.record(connection, "w", [ending_of(leased)], [])
        reaping = asyncio.create_task(outcomes.record(second, "reaper", [ending_of(leased, "lost", then)], []))
        await until_blocked(watcher, second)
    assert await reaping == {(leased.lane_id, leased.seq)}
    assert await connection.fetchval("SELECT array_agg(result::text) FROM outcomes") == ["success"]
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick"]
    assert await count(connection, "dead_letters") == 0


async def test_when_the_first_is_rolled_back_the_second_wins(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job)
    transaction = connection.transaction()
    await transaction.start()
    await outcomes.record(connection, "w", [ending_of(leased)], [])
    reaping = asyncio.create_task(outcomes.record(second, "reaper", [ending_of(leased, "lost", AGAIN)], []))
    await until_blocked(watcher, second)
    await transaction.rollback()
    assert await reaping == set()
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick", "retry"]


async def test_a_user_who_cancels_and_a_worker_race_for_the_outcome(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job)
    async with second.transaction():
        assert await CANCEL.fetchval(
            second,
            lane_id=leased.lane_id,
            seq=leased.seq,
            job_id=leased.job_id,
            fire_at=leased.fire_at,
            error="cancelled by hand",
        )
        recording = asyncio.create_task(outcomes.record(connection, "w", [ending_of(leased, "failed", AGAIN)], []))
        await until_blocked(watcher, connection)
    assert await recording == {(leased.lane_id, leased.seq)}
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick"]
    assert await count(connection, "open_runs") == 0


async def test_attempts_are_recorded_in_one_order_so_that_nobody_deadlocks(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder
) -> None:
    first, last = [ending_of(await running(holder, await add_job(connection))) for _ in range(2)]
    async with connection.transaction():
        await outcomes.record(connection, "w", [first], [])
        racing = asyncio.create_task(outcomes.record(second, "v", [last, first], []))
        await until_blocked(watcher, second)  # by the first, before it has touched the last
        assert not await outcomes.record(connection, "w", [last], [])
    assert await racing == {(each.lane_id, each.seq) for each in (first, last)}


@pytest.mark.parametrize("policy", ["SKIP", "ALLOW"])
async def test_nothing_follows_in_a_deleted_job_but_its_run_is_withdrawn(
    connection: asyncpg.Connection, holder: Holder, job: Job, policy: str
) -> None:
    leased = await running(holder, job, policy)
    await connection.execute("UPDATE jobs SET status = 'deleted'")
    await connection.execute("DELETE FROM timers")
    assert not await outcomes.record(connection, "w", [ending_of(leased, "failed", AGAIN)], [leased.lease_id])
    assert await timers_of(connection, job) == []
    rows = await connection.fetch("SELECT job_id, fire_at, spec_version, reason::text FROM withdrawals")
    assert [tuple(row) for row in rows] == [(job.job_id, AT, 1, "tick")]
    assert await count(connection, "open_runs") == await count(connection, "leases") == 0


async def test_a_job_that_is_being_deleted_holds_up_the_retry_until_it_is_gone(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job)
    async with second.transaction():
        await second.execute("UPDATE jobs SET status = 'deleted'")
        recording = asyncio.create_task(outcomes.record(connection, "w", [ending_of(leased, "failed", AGAIN)], []))
        await until_blocked(watcher, connection)
    assert await recording == set()
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick"]
    assert await count(connection, "withdrawals") == 1
