"""What becomes of a tick while earlier runs of its job are unfinished, policy by policy."""

from dataclasses import replace
from datetime import datetime

import asyncpg
import pytest

from engine import (
    AGAIN,
    AT,
    MINUTE,
    Holder,
    Job,
    Planned,
    add_job,
    add_timer,
    finish,
    gaps_of,
    lease,
    retry_timer,
    runs_of,
    timers_of,
)


def at(minutes: int) -> datetime:
    return AT + minutes * MINUTE


def tick(job: Job, minutes: int, policy: str, limit: int = 1, reason: str = "tick") -> Planned:
    return Planned(job, at(minutes), policy=policy, limit=limit, reason=reason)


async def waiting(connection: asyncpg.Connection, job: Job) -> list[Planned]:
    """The plans for a job's runs that wait their turn."""
    rows = await connection.fetch(
        "SELECT fire_at, due_at FROM timers WHERE job_id = $1 AND kind = 'queued' ORDER BY fire_at", job.job_id
    )
    return [Planned(job, row["fire_at"], kind="queued", policy="QUEUE", due_at=row["due_at"]) for row in rows]


async def later(connection: asyncpg.Connection, planned: Planned) -> Planned:
    """The same timer again, when it may have been put off and that time has passed."""
    due_at = await connection.fetchval(
        "UPDATE timers SET due_at = least(due_at, clock_at()) WHERE job_id = $1 AND kind = $2 AND fire_at = $3"
        " RETURNING due_at",
        *(planned.job.job_id, planned.kind, planned.fire_at),
    )
    return replace(planned, due_at=due_at)


async def fire_times(connection: asyncpg.Connection, job: Job) -> list[datetime]:
    return [fire_at for fire_at, _, _ in await runs_of(connection, job)]


async def results(connection: asyncpg.Connection, job: Job) -> list[tuple[datetime, str | None]]:
    rows = await connection.fetch(
        "SELECT fire_at, result::text FROM attempts LEFT JOIN outcomes USING (lane_id, seq) WHERE job_id = $1"
        " ORDER BY seq",
        job.job_id,
    )
    return [tuple(row) for row in rows]


async def test_skip_leaves_out_ticks_until_the_run_has_ended(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire_ticks(tick(job, 0, "SKIP"), 3)
    assert await gaps_of(connection, job) == [(at(1), at(2), 2, "overlap")]
    await finish(connection, job)
    await holder.fire(tick(job, 3, "SKIP"))
    assert await fire_times(connection, job) == [at(0), at(3)]


async def test_skip_sees_a_run_open_while_it_waits_for_its_retry_and_while_that_runs(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire(tick(job, 0, "SKIP"))
    await finish(connection, job, "failed", AGAIN)
    await holder.fire(tick(job, 1, "SKIP"))
    await holder.fire(await retry_timer(connection, job))
    await holder.fire(tick(job, 2, "SKIP"))
    assert await gaps_of(connection, job) == [(at(1), at(2), 2, "overlap")]
    await finish(connection, job)
    fired = await holder.fire(tick(job, 3, "SKIP"))
    assert (fired.runs, list(fired.passed)) == (1, [])
    skipped = await holder.fire(tick(job, 4, "SKIP"))
    assert (skipped.runs, list(skipped.passed)) == (0, [1])


async def test_skip_does_not_wait_for_an_attempt_that_history_has_dropped(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    """A yearly job's last outcome is gone when history is kept for 90 days."""
    await holder.fire(tick(job, 0, "SKIP"))
    await finish(connection, job)
    await connection.execute("TRUNCATE attempts, outcomes")
    assert (await holder.fire(tick(job, 1, "SKIP"))).runs == 1


@pytest.mark.parametrize("kind", ["manual", "replay"])
async def test_runs_asked_for_by_hand_count_as_open_but_are_never_kept_waiting(
    connection: asyncpg.Connection, holder: Holder, job: Job, kind: str
) -> None:
    await holder.fire(tick(job, 0, "SKIP"))
    await add_timer(connection, job, kind, AT - MINUTE, kind)
    assert (await holder.fire(Planned(job, AT - MINUTE, kind=kind))).runs == 1
    [first, _] = await lease(connection, job)
    assert first.fire_at == at(0)
    await connection.execute(
        "INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final) VALUES ($1, $2, now(), 'success', true)",
        *(first.lane_id, first.seq),
    )
    assert (await holder.fire(tick(job, 1, "SKIP"))).runs == 0
    assert await gaps_of(connection, job) == [(at(1), at(1), 1, "overlap")]


async def test_allow_runs_as_many_as_it_says_and_skips_beyond(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire_ticks(tick(job, 0, "ALLOW", 2), 4)
    assert await fire_times(connection, job) == [at(0), at(1)]
    assert await gaps_of(connection, job) == [(at(2), at(3), 2, "overlap")]
    assert await finish(connection, job) == 2
    await holder.fire_ticks(tick(job, 4, "ALLOW", 2), 3)
    assert await fire_times(connection, job) == [at(0), at(1), at(4), at(5)]


async def test_allow_counts_a_run_between_two_attempts(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire(tick(job, 0, "ALLOW", 2))
    await finish(connection, job, "failed", AGAIN)
    await holder.fire_ticks(tick(job, 1, "ALLOW", 2), 2)
    assert await fire_times(connection, job) == [at(0), at(1)]


async def test_queue_lets_one_wait_and_skips_the_next(connection: asyncpg.Connection, holder: Holder, job: Job) -> None:
    await holder.fire_ticks(tick(job, 0, "QUEUE"), 4)
    assert await timers_of(connection, job) == [("tick", at(4)), ("queued", at(1))]
    assert await gaps_of(connection, job) == [(at(2), at(3), 2, "overlap")]
    [second] = await waiting(connection, job)
    assert list((await holder.fire(second)).waiting) == [1]
    await finish(connection, job)
    assert (await holder.fire(await later(connection, second))).runs == 1
    assert await runs_of(connection, job) == [(at(0), "tick", 1), (at(1), "tick", 1)]
    assert await timers_of(connection, job) == [("tick", at(4))]


async def test_queue_lets_whoever_waits_go_first_and_never_two_wait(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire_ticks(tick(job, 0, "QUEUE"), 2)
    await finish(connection, job)
    third = tick(job, 2, "QUEUE")
    assert list((await holder.fire(third)).waiting) == [1]  # there is room, but for the one before
    [second] = await waiting(connection, job)
    assert second.fire_at == at(1)
    assert (await holder.fire(second)).runs == 1
    await holder.fire(await later(connection, third))
    assert [planned.fire_at for planned in await waiting(connection, job)] == [at(2)]
    await finish(connection, job)
    assert (await holder.fire(*await waiting(connection, job))).runs == 1
    assert await fire_times(connection, job) == [at(0), at(1), at(2)]


async def test_queue_counts_a_run_that_waits_for_a_later_tick_too(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    """The clock was set back, or the schedule was: the tick comes before the one that waits."""
    await holder.fire(tick(job, 0, "QUEUE"))
    await add_timer(connection, job, "queued", at(5), "tick")
    await holder.fire(tick(job, 1, "QUEUE"))
    assert await timers_of(connection, job) == [("tick", at(2)), ("queued", at(5))]
    assert await gaps_of(connection, job) == [(at(1), at(1), 1, "overlap")]


async def test_a_last_tick_that_waits_its_turn_still_runs(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire(tick(job, 0, "QUEUE"))
    await holder.fire(replace(tick(job, 1, "QUEUE"), is_last=True))
    assert await timers_of(connection, job) == [("queued", at(1))]
    await finish(connection, job)
    assert (await holder.fire(*await waiting(connection, job))).runs == 1


async def test_replace_cancels_the_running_attempt(connection: asyncpg.Connection, holder: Holder, job: Job) -> None:
    await holder.fire(tick(job, 0, "REPLACE"))
    [running] = await lease(connection, job)
    await holder.fire(tick(job, 1, "REPLACE"))
    assert await results(connection, job) == [(at(0), "cancelled"), (at(1), None)]
    assert await connection.fetchval("SELECT array_agg(fire_at) FROM open_runs") == [at(1)]
    assert await connection.fetchval("SELECT is_final FROM outcomes WHERE seq = $1", running.seq)


async def test_replace_withdraws_a_run_that_waits_for_its_retry(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire(tick(job, 0, "REPLACE"))
    await finish(connection, job, "failed", AGAIN)
    await holder.fire(tick(job, 1, "REPLACE"))
    assert await results(connection, job) == [(at(0), "failed"), (at(1), None)]
    assert await timers_of(connection, job) == [("tick", at(2))]
    withdrawn = await connection.fetch("SELECT job_id, fire_at, reason::text FROM withdrawals")
    assert [tuple(row) for row in withdrawn] == [(job.job_id, at(0), "tick")]
    assert await connection.fetchval("SELECT array_agg(fire_at) FROM open_runs") == [at(1)]


async def test_replace_leaves_what_has_ended_and_other_jobs_alone(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    neighbour = await add_job(connection)
    await holder.fire(tick(job, 0, "REPLACE"), tick(neighbour, 0, "REPLACE"))
    await finish(connection, job)
    await holder.fire(tick(neighbour, 1, "REPLACE"))
    await holder.fire(tick(job, 1, "REPLACE"))
    assert await results(connection, job) == [(at(0), "success"), (at(1), None)]
    assert await results(connection, neighbour) == [(at(0), "success"), (at(1), None)]


@pytest.mark.parametrize(("policy", "limit"), [("SKIP", 1), ("ALLOW", 1), ("QUEUE", 1)])
async def test_a_tick_of_an_outage_waits_instead_of_being_skipped(
    connection: asyncpg.Connection, holder: Holder, job: Job, policy: str, limit: int
) -> None:
    await holder.fire(tick(job, 0, policy, limit))
    missed = [(at(1), at(2), 2, "missed")]
    catch_up = replace(tick(job, 1, policy, limit, "catch_up"), run_at=at(3), gaps=missed)
    fired = await holder.fire(catch_up)
    assert (list(fired.waiting), fired.runs) == ([1], 0)
    assert await gaps_of(connection, job) == []
    await finish(connection, job)
    assert (await holder.fire(await later(connection, catch_up))).runs == 1
    assert await gaps_of(connection, job) == missed


@pytest.mark.parametrize(("policy", "limit", "runs"), [("ALLOW", 1, 0), ("ALLOW", 2, 1), ("QUEUE", 1, 0)])
async def test_a_run_fired_under_skip_counts_after_an_edit_to_another_policy(
    connection: asyncpg.Connection, holder: Holder, job: Job, *, policy: str, limit: int, runs: int
) -> None:
    await holder.fire(tick(job, 0, "SKIP"))
    assert (await holder.fire(tick(job, 1, policy, limit))).runs == runs


async def test_a_run_fired_under_skip_is_cancelled_after_an_edit_to_replace(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire(tick(job, 0, "SKIP"))
    await holder.fire(tick(job, 1, "REPLACE"))
    assert await results(connection, job) == [(at(0), "cancelled"), (at(1), None)]


async def test_a_run_that_waited_its_turn_keeps_the_reason_of_its_tick(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire(tick(job, 0, "QUEUE"))
    await holder.fire(tick(job, 1, "QUEUE", reason="late"))
    await finish(connection, job)
    await holder.fire(*await waiting(connection, job))
    assert (await runs_of(connection, job))[-1] == (at(1), "late", 1)
