import asyncio
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
from evertick.domain.attempt import NotRecorded
from evertick.domain.retry import GiveUp, GiveUpReason, Retry
from evertick.store import statements
from evertick.store.engine import outcomes
from evertick.store.engine.lanes import Leased

HOUR = timedelta(hours=1)
NONE = NotRecorded(set(), set())
CANCEL = statements.load("runs")["cancel_attempt"].values(bool)


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
    assert await outcomes.record(connection, "w", [ending], [leased.lease_id]) == NONE
    row = await connection.fetchrow("SELECT * FROM outcomes")
    assert row is not None
    assert (row["result"], row["is_final"], row["worker"]) == ("success", True, "w")
    assert (row["code"], row["error"], row["excerpt"]) == (200, "none", "ok")
    assert (row["started_at"], row["finished_at"]) == (AT, AT)
    assert await count(connection, "leases") == await count(connection, "open_runs") == 0
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick"]


@pytest.mark.parametrize(
    "said",
    [
        [(None, None), (None, None)],
        [(None, "topic orders"), (None, None)],
        [(204, None), (None, "")],
        [(200, "ok"), (201, "created")],
    ],
)
async def test_successes_keep_their_codes_and_excerpts_whichever_of_them_have_any(
    connection: asyncpg.Connection, holder: Holder, job: Job, said: list[tuple[int | None, str | None]]
) -> None:
    attempts = [await running(holder, job), await running(holder, await add_job(connection))]
    endings = [
        ending_of(leased)._replace(code=code, excerpt=excerpt)
        for leased, (code, excerpt) in zip(attempts, said, strict=True)
    ]
    assert await outcomes.record(connection, "w", endings, []) == NONE
    rows = await connection.fetch("SELECT * FROM outcomes")
    found = {(row["lane_id"], row["seq"]): (row["code"], row["excerpt"]) for row in rows}
    assert [found[each.token] for each in attempts] == said
    assert {(row["result"], row["is_final"], row["error"], row["output"]) for row in rows} == {
        ("success", True, None, None)
    }


async def test_a_lease_that_is_not_done_stays(connection: asyncpg.Connection, holder: Holder, job: Job) -> None:
    leased = await running(holder, job)
    await outcomes.record(connection, "w", [ending_of(leased)], [])
    assert await count(connection, "leases") == 1


async def test_leases_may_end_without_an_outcome(connection: asyncpg.Connection, holder: Holder, job: Job) -> None:
    leased = await running(holder, job)
    assert await outcomes.record(connection, "w", [], [leased.lease_id]) == NONE
    assert await count(connection, "leases") == 0


async def test_a_failure_with_attempts_left_leaves_a_retry_timer_and_an_open_run(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job, "SKIP")
    assert await count(connection, "open_runs") == 0  # the tick's timer speaks for it
    before_at = await connection.fetchval("SELECT clock_at()")
    await outcomes.record(connection, "w", [ending_of(leased, "failed", Retry(2, HOUR))], [leased.lease_id])
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
    await finish(connection, job, "deferred", Retry(1, timedelta(0)))
    await holder.fire(await retry_timer(connection, job))
    rows = await connection.fetch("SELECT attempt FROM attempts ORDER BY seq")
    assert [row["attempt"] for row in rows] == [1, 1]


async def test_a_failure_without_attempts_left_is_a_dead_letter(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job)
    await outcomes.record(connection, "w", [ending_of(leased, "failed", GiveUp(4, GiveUpReason.EXHAUSTED))], [])
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
    assert (await outcomes.record(connection, "v", late, [])).stale == {(leased.lane_id, leased.seq)}
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick"]
    assert [kind for kind, _ in await timers_of(connection, neighbour)] == ["tick", "retry"]
    assert await connection.fetchval("SELECT worker FROM outcomes WHERE seq = $1", leased.seq) == "w"


@pytest.mark.parametrize("then", [AGAIN, GiveUp(1, GiveUpReason.EXHAUSTED)], ids=["retry", "dead"])
async def test_of_two_who_record_at_once_the_first_wins(
    connection: asyncpg.Connection,
    second: asyncpg.Connection,
    watcher: asyncpg.Connection,
    holder: Holder,
    job: Job,
    *,
    then: Retry | GiveUp,
) -> None:
    leased = await running(holder, job, "SKIP")
    async with connection.transaction():
        assert await outcomes.record(connection, "w", [ending_of(leased)], []) == NONE
        reaping = asyncio.create_task(outcomes.record(second, "reaper", [ending_of(leased, "lost", then)], []))
        await until_blocked(watcher, second)
    assert (await reaping).stale == {(leased.lane_id, leased.seq)}
    assert await connection.fetchval("SELECT array_agg(result::text) FROM outcomes") == ["success"]
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick"]
    assert await count(connection, "dead_letters") == 0


async def test_when_the_first_is_rolled_back_the_second_wins(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job, "SKIP")
    transaction = connection.transaction()
    await transaction.start()
    await outcomes.record(connection, "w", [ending_of(leased)], [])
    reaping = asyncio.create_task(outcomes.record(second, "reaper", [ending_of(leased, "lost", AGAIN)], []))
    await until_blocked(watcher, second)
    await transaction.rollback()
    assert await reaping == NONE
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick", "retry"]


async def test_a_user_who_cancels_and_a_worker_race_for_the_outcome(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job, "SKIP")
    async with second.transaction():
        assert await CANCEL.one(
            second,
            lane_id=leased.lane_id,
            seq=leased.seq,
            job_id=leased.job_id,
            fire_at=leased.fire_at,
            started_at=None,
            worker=None,
            error="cancelled by hand",
        )
        recording = asyncio.create_task(outcomes.record(connection, "w", [ending_of(leased, "failed", AGAIN)], []))
        await until_blocked(watcher, connection)
    assert (await recording).stale == {(leased.lane_id, leased.seq)}
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick"]
    assert await count(connection, "open_runs") == 0


async def test_attempts_are_recorded_in_one_order_so_that_nobody_deadlocks(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder
) -> None:
    first, last = [ending_of(await running(holder, await add_job(connection), "SKIP")) for _ in range(2)]
    async with connection.transaction():
        await outcomes.record(connection, "w", [first], [])
        racing = asyncio.create_task(outcomes.record(second, "v", [last, first], []))
        await until_blocked(watcher, second)  # by the first, before it has touched the last
        assert await outcomes.record(connection, "w", [last], []) == NONE
    assert (await racing).stale == {(each.lane_id, each.seq) for each in (first, last)}


@pytest.mark.parametrize("policy", ["SKIP", "ALLOW"])
async def test_nothing_follows_in_a_deleted_job_but_its_run_is_withdrawn(
    connection: asyncpg.Connection, holder: Holder, job: Job, policy: str
) -> None:
    leased = await running(holder, job, policy)
    await connection.execute("UPDATE jobs SET status = 'deleted'")
    await connection.execute("DELETE FROM timers")
    assert await outcomes.record(connection, "w", [ending_of(leased, "failed", AGAIN)], [leased.lease_id]) == NONE
    assert await timers_of(connection, job) == []
    rows = await connection.fetch("SELECT job_id, fire_at, spec_version, reason::text FROM withdrawals")
    assert [tuple(row) for row in rows] == [(job.job_id, AT, 1, "tick")]
    assert await count(connection, "open_runs") == await count(connection, "leases") == 0


@pytest.mark.parametrize("then", [AGAIN, GiveUp(1, GiveUpReason.EXHAUSTED)], ids=["retry", "dead"])
async def test_a_job_that_is_being_deleted_holds_up_its_own_attempts_only(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, job: Job, *, then: Retry | GiveUp
) -> None:
    leased = await running(holder, job, "SKIP")
    neighbour = await running(holder, await add_job(connection), "SKIP")
    endings = [ending_of(leased, "failed", then), ending_of(neighbour, "failed", then)]
    leases = [leased.lease_id, neighbour.lease_id]
    async with second.transaction():
        await second.execute("SELECT FROM jobs WHERE job_id = $1 FOR UPDATE", job.job_id)
        await second.execute("UPDATE jobs SET status = 'deleted' WHERE job_id = $1", job.job_id)
        recorded = await outcomes.record(connection, "w", endings, leases)
        assert recorded == NotRecorded(set(), {(leased.lane_id, leased.seq)})
        assert await connection.fetchval("SELECT array_agg(seq) FROM outcomes") == [neighbour.seq]
        assert await connection.fetchval("SELECT array_agg(lease_id) FROM leases") == [leased.lease_id]
    assert await outcomes.record(connection, "w", endings[:1], leases) == NONE
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick"]
    assert await count(connection, "withdrawals") == (then == AGAIN)
    assert await count(connection, "leases") == 0


async def test_a_job_that_is_being_edited_holds_up_nothing(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    leased = await running(holder, job)
    async with second.transaction():
        await second.execute("SELECT FROM jobs FOR NO KEY UPDATE")
        await second.execute("UPDATE jobs SET spec_version = 2")
        assert await outcomes.record(connection, "w", [ending_of(leased, "failed", AGAIN)], []) == NONE
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick", "retry"]


@pytest.mark.parametrize("then", [None, AGAIN], ids=["success", "retry"])
async def test_who_cancels_a_listed_run_holds_up_its_own_attempt_only(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, job: Job, *, then: Retry | None
) -> None:
    leased, neighbour = await running(holder, job), await running(holder, await add_job(connection))
    endings = [ending_of(leased, "failed" if then else "success", then), ending_of(neighbour)]
    leases = [leased.lease_id, neighbour.lease_id]
    async with second.transaction():
        await second.execute("SELECT FROM open_runs WHERE job_id = $1 FOR UPDATE", job.job_id)
        recorded = await outcomes.record(connection, "w", endings, leases)
        assert recorded == NotRecorded(set(), {(leased.lane_id, leased.seq)})
        assert await CANCEL.one(
            second,
            lane_id=leased.lane_id,
            seq=leased.seq,
            job_id=leased.job_id,
            fire_at=leased.fire_at,
            started_at=None,
            worker=None,
            error="cancelled by hand",
        )
    assert await connection.fetchval("SELECT array_agg(lease_id) FROM leases") == [leased.lease_id]
    recorded = await outcomes.record(connection, "w", endings[:1], leases)
    assert recorded == NotRecorded({(leased.lane_id, leased.seq)}, set())
    assert await count(connection, "leases") == await count(connection, "open_runs") == 0
    assert [kind for kind, _ in await timers_of(connection, job)] == ["tick"]


async def test_a_lease_is_let_go_by_its_holder_only(connection: asyncpg.Connection, holder: Holder, job: Job) -> None:
    """After a fail-over that lost the newest commits, a worker may name a lease that is another's by now."""
    leased = await running(holder, job)
    gone = ending_of(leased)._replace(seq=leased.seq - 1)
    await outcomes.record(connection, "another", [gone], [leased.lease_id])
    assert await connection.fetchval("SELECT array_agg(worker) FROM leases") == ["w"]
    await outcomes.record(connection, "another", [], [leased.lease_id], holder="w")
    assert await count(connection, "leases") == 0


@pytest.mark.parametrize("then", [AGAIN, GiveUp(1, GiveUpReason.EXHAUSTED)], ids=["retry", "dead"])
@pytest.mark.parametrize("lost", ["attempt", "place"])
async def test_nothing_follows_an_attempt_that_a_failover_lost(
    connection: asyncpg.Connection, holder: Holder, job: Job, *, then: Retry | GiveUp, lost: str
) -> None:
    leased = await running(holder, job)
    ending = ending_of(leased, "failed", then)
    other = await add_job(connection)
    ending = ending._replace(seq=leased.seq - 1) if lost == "attempt" else ending._replace(job_id=other.job_id)
    assert (await outcomes.record(connection, "w", [ending], [])).stale == {(ending.lane_id, ending.seq)}
    assert await count(connection, "outcomes") == await count(connection, "dead_letters") == 0
    assert await connection.fetchval("SELECT count(*) FROM timers WHERE kind = 'retry'") == 0


async def test_a_late_ending_of_an_earlier_attempt_does_not_close_a_run_that_goes_on(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    first = await running(holder, job)
    await outcomes.record(connection, "w", [ending_of(first, "failed", AGAIN)], [])
    await holder.fire(await retry_timer(connection, job))
    await connection.execute("DELETE FROM outcomes")  # as if the first one's outcome were yet to come
    await outcomes.record(connection, "w", [ending_of(first)], [])
    assert await count(connection, "open_runs") == 1
    await finish(connection, job)
    assert await count(connection, "open_runs") == 0
