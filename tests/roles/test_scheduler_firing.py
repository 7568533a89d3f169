"""Firing through trouble: answers that are lost, jobs that change under it, rules that make no sense."""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from engine import AT, MINUTE, Job, add_job, add_timer, finish, runs_of, until
from evertick.domain.fairness import QUANTUM
from evertick.domain.policies import ConcurrentPolicy, MissedWindow
from evertick.domain.rule import Policies
from evertick.roles.scheduler import Scheduler, state
from evertick.store.database import is_transient
from hooked_pool import Run, hooked

ALL = Policies(
    missed_window=MissedWindow.RUN_ALL, max_missed=5, concurrent_policy=ConcurrentPolicy.ALLOW, max_concurrent=100
)


CLOCK = "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS"


async def kill_the_firing(connection: asyncpg.Connection) -> None:
    """End the session of a firing that is under way in the server."""
    await until(
        lambda: connection.fetchval(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE query LIKE '/* timers.fire %' AND state = 'active' AND wait_event = 'PgSleep'"
        )
    )


async def assert_in_order(connection: asyncpg.Connection, job: Job) -> None:
    """Later ticks have larger seqs, and epochs never fall."""
    rows = await connection.fetch("SELECT fire_at, epoch FROM attempts WHERE job_id = $1 ORDER BY seq", job.job_id)
    assert [row["fire_at"] for row in rows] == sorted({row["fire_at"] for row in rows})
    assert [row["epoch"] for row in rows] == sorted(row["epoch"] for row in rows)


async def test_a_firing_whose_session_is_killed_fires_everything_once_afterwards(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    job, elsewhere = await add_job(connection, "* * * * *", ALL), await add_job(connection, "now", partition=8)
    await node.loading.step()
    await connection.execute(f"{CLOCK} 'SELECT clock_timestamp() FROM pg_sleep(600)'")
    firing = asyncio.create_task(node.firing.fire_batch())
    await kill_the_firing(connection)
    with pytest.raises((asyncpg.PostgresError, OSError)) as ended:
        await firing
    await connection.execute(f"{CLOCK} 'SELECT clock_timestamp()'")
    assert is_transient(ended.value)
    assert node.state.ownership.in_doubt
    assert await node.firing.fire_batch() == 0  # nothing, until what was sent is fenced off
    before = node.state.ownership.epochs[7]
    await node.join()
    assert node.state.ownership.epochs[7] == before + 1
    assert not node.state.ownership.in_doubt
    while await node.firing.fire_batch():
        pass
    assert [reason for _, reason, _ in await runs_of(connection, job)][:5] == ["catch_up"] * 5
    assert await runs_of(connection, elsewhere) == [(AT, "catch_up", 1)]
    await assert_in_order(connection, job)


async def test_a_firing_whose_answer_is_lost_after_it_was_done_is_not_done_again(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    job, once = await add_job(connection, "* * * * *", ALL), await add_job(connection, "now", partition=8)
    pool = node.state.firing

    async def unheard(fire: Run, _: object) -> None:
        await fire()
        raise ConnectionResetError

    await node.loading.step()
    node.state.firing = hooked(pool, "timers.fire", unheard)
    with pytest.raises(ConnectionResetError):
        await node.firing.fire_batch()
    node.state.firing = pool
    assert node.state.ownership.in_doubt
    sent = await connection.fetchval("SELECT max(seq) FROM attempts")
    await node.join()
    assert node.state.ownership.last_seq >= sent
    for _ in range(2):
        while await node.firing.fire_batch():
            pass
        node.loading.woken(None)
        await node.loading.step()
    assert await runs_of(connection, once) == [(AT, "catch_up", 1)]
    assert len(await runs_of(connection, job)) >= 5
    await assert_in_order(connection, job)


async def test_a_deadlock_is_no_doubt_and_the_same_is_tried_again(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    job = await add_job(connection, "now")
    pool = node.state.firing

    async def refused(*_: object) -> None:
        raise asyncpg.DeadlockDetectedError

    await node.loading.step()
    node.state.firing = hooked(pool, "timers.fire", refused)
    with pytest.raises(asyncpg.DeadlockDetectedError):
        await node.firing.fire_batch()
    node.state.firing = pool
    assert not node.state.ownership.in_doubt
    await node.firing.fire_batch()
    assert await runs_of(connection, job) == [(AT, "catch_up", 1)]


async def test_a_job_that_was_paused_unheard_is_tried_once_and_not_over_and_over(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    await add_job(connection)
    await node.loading.step()
    await connection.execute("UPDATE timers SET due_at = 'infinity'")
    tried = [await node.firing.fire_batch() for _ in range(3)]
    assert tried == [1, 0, 0]
    assert (node.firing.counters.refused, len(node.state.pending)) == (1, 0)


async def test_a_job_that_was_edited_unheard_does_not_go_on_by_its_old_schedule(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    """Both schedules have the tick that is due, but not the one after it."""
    now_at = await connection.fetchval("SELECT date_trunc('minute', clock_at())")
    job = await add_job(connection, "* * * * *", fire_at=now_at)
    await node.loading.step()
    other = await add_job(connection, "0 0 1 1 *", partition=9)
    await connection.execute("UPDATE timers SET rule_id = $2 WHERE job_id = $1", job.job_id, other.rule_id)
    await node.firing.fire_batch()
    await node.fire_due()
    [next_at] = [
        row["fire_at"] for row in await connection.fetch("SELECT fire_at FROM timers WHERE job_id = $1", job.job_id)
    ]
    assert (next_at.month, next_at.day, next_at.hour, next_at.minute) == (1, 1, 0, 0)
    assert [fire_at for fire_at, _, _ in await runs_of(connection, job)] == [now_at]


async def test_a_job_with_a_corrupt_rule_is_paused_with_the_reason_and_its_neighbours_fire(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    broken, neighbour = await add_job(connection, "0 3 * * *"), await add_job(connection, "now")
    await connection.execute("UPDATE rules SET canonical = '{\"spec\": 7' WHERE rule_id = $1", broken.rule_id)
    await node.fire_due()
    assert await runs_of(connection, neighbour) == [(AT, "catch_up", 1)]
    row = await connection.fetchrow(
        "SELECT status::text, pause_reason, due_at = 'infinity' AS rests FROM jobs JOIN timers USING (job_id)"
    )
    assert row is not None
    assert (row["status"], row["rests"]) == ("paused", True)
    assert row["pause_reason"].startswith(f"rule {broken.rule_id} cannot be read: JSONDecodeError")
    assert await node.fire_due() == 0


async def test_a_rule_that_was_not_there_at_first_is_read_when_it_comes(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    job = await add_job(connection, "now")
    kept = await connection.fetchrow("DELETE FROM rules WHERE rule_id = $1 RETURNING digest, canonical", job.rule_id)
    assert kept is not None
    await node.loading.step()
    assert node.state.rule_cache.is_missing(job.rule_id)
    await connection.execute("INSERT INTO rules (digest, canonical) VALUES ($1, $2)", *kept)
    await node.fire_due()
    assert await runs_of(connection, job) == [(AT, "catch_up", 1)]


async def test_a_job_whose_rule_is_missing_is_paused_with_the_reason(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    job = await add_job(connection, "now")
    await connection.execute("DELETE FROM rules")
    await node.fire_due()
    assert await connection.fetchval("SELECT status::text FROM jobs") == "paused"
    reason = await connection.fetchval("SELECT pause_reason FROM jobs")
    assert reason == f"rule {job.rule_id} is missing"


async def test_more_rules_than_are_kept_pause_nobody(
    connection: asyncpg.Connection, node: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MAX_RULES", 4)
    jobs = [await add_job(connection, f"{minute} * * * *") for minute in range(3)]
    await node.loading.step()
    jobs += [await add_job(connection, f"{minute} * * * *") for minute in range(3, 6)]
    node.loading.woken(frozenset(job.job_id for job in jobs))
    await node.loading.step()
    await node.firing.fire_batch()
    assert await connection.fetchval("SELECT count(*) FROM jobs WHERE status = 'paused'") == 0
    assert [len(await runs_of(connection, job)) for job in jobs] == [1] * 6


async def test_a_run_that_finds_no_room_is_tried_again_a_little_later(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    job = await add_job(connection, "* * * * *", Policies(missed_window=MissedWindow.RUN_ALL, max_missed=3))
    await node.loading.step()
    await node.firing.fire_batch()
    await node.firing.fire_batch()
    assert (len(await runs_of(connection, job)), node.firing.counters.waited) == (1, 1)
    assert 0 < await node.firing.step() <= 1
    await finish(connection, job)
    await until(node.firing.fire_batch)
    assert len(await runs_of(connection, job)) == 2


async def test_a_tick_that_is_due_soon_stays_in_memory_and_a_distant_one_does_not(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    now_at = await connection.fetchval("SELECT date_trunc('minute', clock_at())")
    soon, late = await add_job(connection, fire_at=now_at), await add_job(connection, "0 0 1 1 *", fire_at=now_at)
    await node.loading.step()
    await node.firing.fire_batch()
    assert [timer.job_id for timer in node.state.pending] == [soon.job_id]
    next_at = await connection.fetchval("SELECT fire_at FROM timers WHERE job_id = $1", soon.job_id)
    assert next_at in {now_at + MINUTE, now_at + 2 * MINUTE}
    assert len(await runs_of(connection, late)) == 1
    assert await node.firing.step() <= timedelta(minutes=2).total_seconds()


@pytest.mark.parametrize("tick_at", [AT, AT - MINUTE], ids=["manual first", "tick first"])
async def test_many_manual_runs_of_one_job_fire_in_one_statement(
    connection: asyncpg.Connection, node: Scheduler, tick_at: datetime
) -> None:
    """Not with its tick: overlap would not see them."""
    job = await add_job(connection, "* * * * *", Policies(missed_window=MissedWindow.SKIP), fire_at=tick_at)
    for number in range(100):
        await add_timer(connection, job, "manual" if number % 2 else "replay", AT + number * MINUTE, "manual")
    await node.loading.step()
    tried = [await node.firing.fire_batch() for _ in range(3)]
    assert sorted(tried) == [0, 1, 100]
    runs = [fire_at for fire_at, reason, _ in await runs_of(connection, job) if reason == "manual"]
    assert sorted(runs) == [AT + number * MINUTE for number in range(100)]


async def test_many_retries_of_one_job_fire_in_one_statement(connection: asyncpg.Connection, node: Scheduler) -> None:
    allowed = Policies(concurrent_policy=ConcurrentPolicy.ALLOW, max_concurrent=100)
    job = await add_job(connection, policies=allowed, fire_at=await connection.fetchval("SELECT clock_at() + '1 day'"))
    for number in range(50):
        await add_timer(connection, job, "retry", AT + number * MINUTE, "tick")
    await node.loading.step()
    assert [await node.firing.fire_batch() for _ in range(2)] == [50, 0]
    assert len(await runs_of(connection, job)) == 50
    assert await connection.fetchval("SELECT count(*) FROM open_runs") == 50


async def test_manual_runs_of_one_job_that_meet_a_lock_are_split_until_they_fire(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    job = await add_job(connection, fire_at=await connection.fetchval("SELECT clock_at() + interval '1 day'"))
    for number in range(4):
        await add_timer(connection, job, "manual", AT + number * MINUTE, "manual")
    sent: list[int] = []

    async def times_out_at_first(read: Run, values: Mapping[str, Any]) -> object:
        sent.append(len(values["job_ids"]))
        if len(sent) <= 2:
            raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
        return await read()

    node.state.firing = hooked(node.state.firing, "timers.fire", times_out_at_first)
    await node.loading.step()
    await node.firing.fire_batch()
    assert sent == [4, 2, 1, 1, 2]
    assert len(await runs_of(connection, job)) == 4


async def test_while_one_tenant_has_much_due_what_another_has_fires_in_statements_of_its_own(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    now_at = await connection.fetchval("SELECT clock_at()")
    large = [await add_job(connection, "now", fire_at=now_at) for _ in range(QUANTUM + 1)]
    small = [await add_job(connection, "now", fire_at=now_at, tenant_id=2 + number) for number in range(2)]
    await node.loading.step()
    assert await node.firing.fire_batch() == 2
    assert [len(await runs_of(connection, job)) for job in small] == [1, 1]
    late = await add_job(connection, "now", fire_at=now_at, tenant_id=4)
    node.loading.woken(frozenset({late.job_id}))
    await node.loading.step()
    assert await node.firing.fire_batch() == len(large) + 1, "every second statement is for all"
    assert await node.firing.fire_batch() == 0
