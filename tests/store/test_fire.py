from datetime import timedelta

import asyncpg
import pytest

from engine import (
    AT,
    MINUTE,
    Holder,
    Planned,
    add_job,
    add_timer,
    finish,
    firing_of,
    gaps_of,
    retry_timer,
    runs_of,
    timers_of,
)
from evertick.domain.retry import Retry
from evertick.store.engine import timers

HOUR_AHEAD = timedelta(hours=1)


async def ledger(connection: asyncpg.Connection) -> list[int]:
    """How much was written: attempts, open runs, gaps, timers that moved, jobs that finished."""
    row = await connection.fetchrow(
        "SELECT (SELECT count(*) FROM attempts), (SELECT count(*) FROM open_runs), (SELECT count(*) FROM gaps),"
        " (SELECT count(*) FROM timers WHERE fire_at <> $1), (SELECT count(*) FROM finished_jobs)",
        AT,
    )
    assert row is not None
    return list(row)


async def test_a_tick_runs_and_its_timer_moves(connection: asyncpg.Connection, holder: Holder) -> None:
    job = await add_job(connection, fire_at=AT, due_at=AT + MINUTE / 2)
    fired = await holder.fire(Planned(job, due_at=AT + MINUTE / 2))
    assert (fired.runs, list(fired.refused), list(fired.lane_ids)) == (1, [], [job.lane_id])
    attempt = await connection.fetchrow("SELECT * FROM attempts")
    assert attempt is not None
    assert attempt["epoch"] == holder.epochs[job.partition]
    assert (attempt["lane_id"], attempt["seq"], attempt["job_id"]) == (job.lane_id, fired.last_seq, job.job_id)
    assert (attempt["fire_at"], attempt["due_at"], attempt["reason"]) == (AT, AT + MINUTE / 2, "tick")
    timer = await connection.fetchrow("SELECT fire_at, due_at, last_lane, last_seq FROM timers")
    assert timer is not None
    assert tuple(timer) == (AT + MINUTE, AT + MINUTE, job.lane_id, fired.last_seq)


async def test_neighbours_that_were_not_planned_stay(connection: asyncpg.Connection, holder: Holder) -> None:
    due, neighbour = await add_job(connection), await add_job(connection)
    await add_timer(connection, due, "manual", AT, "manual")
    await holder.fire(Planned(due))
    assert await timers_of(connection, due) == [("tick", AT + MINUTE), ("manual", AT)]
    assert await timers_of(connection, neighbour) == [("tick", AT)]
    assert await runs_of(connection, neighbour) == []


async def test_jobs_of_many_partitions_fire_in_one_statement(connection: asyncpg.Connection, holder: Holder) -> None:
    jobs = [await add_job(connection, partition=partition, priority=partition % 3) for partition in range(0, 256, 5)]
    fired = await holder.fire(*[Planned(job) for job in jobs])
    assert fired.runs == len(jobs)
    rows = await connection.fetch("SELECT lane_id, seq, job_id FROM attempts ORDER BY seq")
    assert [(row["lane_id"], row["job_id"]) for row in rows] == [(job.lane_id, job.job_id) for job in jobs]


@pytest.mark.parametrize(
    ("change", "stands_at"),
    [
        ("UPDATE timers SET due_at = 'infinity'", AT),
        ("UPDATE timers SET due_at = due_at - interval '1 second'", AT),
        ("UPDATE timers SET fire_at = fire_at + interval '2 hours'", AT + timedelta(hours=2)),
        ("UPDATE timers SET rule_id = rule_id + 1", AT),
        ("DELETE FROM timers", None),
    ],
    ids=["paused", "moved", "rescheduled", "edited", "deleted"],
)
async def test_a_timer_that_is_not_as_planned_any_more_is_not_touched(
    connection: asyncpg.Connection, holder: Holder, change: str, stands_at: object
) -> None:
    job, neighbour = await add_job(connection), await add_job(connection, partition=8)
    await connection.execute(f"{change} WHERE job_id = $1", job.job_id)
    fired = await holder.fire(Planned(job, gaps=[(AT, AT, 1, "dst")]), Planned(neighbour))
    assert list(fired.refused) == [1]
    assert await timers_of(connection, job) == ([("tick", stands_at)] if stands_at else [])
    assert await runs_of(connection, job) == []
    assert await gaps_of(connection, job) == []
    assert await runs_of(connection, neighbour) == [(AT, "tick", 1)]


async def test_a_timer_that_the_database_does_not_find_due_yet_is_early(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    soon_at = await connection.fetchval("SELECT clock_at() + interval '1 hour'")
    job = await add_job(connection, fire_at=soon_at)
    fired = await holder.fire(Planned(job, soon_at))
    assert (fired.runs, list(fired.refused), list(fired.early)) == (0, [], [1])
    assert fired.now_at < soon_at - HOUR_AHEAD + MINUTE
    assert await timers_of(connection, job) == [("tick", soon_at)]
    assert (await ledger(connection))[:3] == [0, 0, 0]


async def test_the_last_tick_removes_the_timer_and_the_job_is_finished(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    job = await add_job(connection, "now")
    await holder.fire(Planned(job, is_last=True))
    assert await timers_of(connection, job) == []
    assert await runs_of(connection, job) == [(AT, "tick", 1)]
    assert [tuple(row) for row in await connection.fetch("SELECT job_id FROM finished_jobs")] == [(job.job_id,)]


async def test_a_last_tick_that_is_missed_finishes_the_job_too(connection: asyncpg.Connection, holder: Holder) -> None:
    job = await add_job(connection, "now")
    await holder.fire(Planned(job, runs=False, reason=None, is_last=True, gaps=[(AT, AT, 1, "missed")]))
    assert await ledger(connection) == [0, 0, 1, 0, 1]


async def test_missed_ticks_are_a_gap_written_with_the_move(connection: asyncpg.Connection, holder: Holder) -> None:
    job = await add_job(connection)
    missed = (AT, AT + 3 * MINUTE, 4, "missed")
    swallowed = (AT, AT, 1, "dst")
    plan = Planned(job, run_at=AT + 4 * MINUTE, reason="catch_up", gaps=[missed, swallowed])
    await holder.fire(plan)
    again = await holder.fire(plan)
    assert list(again.refused) == [1]
    assert await gaps_of(connection, job) == [missed, swallowed]
    assert await runs_of(connection, job) == [(AT + 4 * MINUTE, "catch_up", 1)]


async def test_jobs_that_share_a_plan_fire_and_leave_their_gaps_alike(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    alike = [await add_job(connection, partition=partition) for partition in (7, 8, 7)]
    alone = await add_job(connection)
    missed, swallowed = (AT, AT, 1, "missed"), (AT + MINUTE, AT + MINUTE, 1, "dst")
    [(shared, _), (other, _)] = firing_of([Planned(alike[0], gaps=[missed, swallowed]), Planned(alone)])
    firing = [(shared, [job.job_id for job in alike]), (other, [alone.job_id])]
    fired = await timers.fire(connection, holder.node, holder.epochs, holder.last_seq, firing)
    assert (fired.runs, list(fired.refused)) == (4, [])
    for job in alike:
        assert await runs_of(connection, job) == [(AT, "tick", 1)]
        assert await timers_of(connection, job) == [("tick", AT + MINUTE)]
        assert await gaps_of(connection, job) == [missed, swallowed]
    assert await gaps_of(connection, alone) == []


async def test_a_tick_with_nothing_left_to_run_only_leaves_its_gap(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    job = await add_job(connection)
    fired = await holder.fire(Planned(job, runs=False, reason=None, gaps=[(AT, AT, 1, "missed")]))
    assert (fired.runs, list(fired.refused), list(fired.lane_ids)) == (0, [], [])
    assert await ledger(connection) == [0, 0, 1, 1, 0]


async def test_a_retry_keeps_its_runs_fire_time_and_reason(connection: asyncpg.Connection, holder: Holder) -> None:
    job = await add_job(connection)
    await holder.fire(Planned(job, reason="late"))
    await finish(connection, job, "failed", Retry(2, timedelta(0)))
    await holder.fire(await retry_timer(connection, job))
    await finish(connection, job, "failed", Retry(3, timedelta(0)))
    await holder.fire(await retry_timer(connection, job))
    assert await runs_of(connection, job) == [(AT, "late", 1), (AT, "late", 2), (AT, "late", 3)]
    assert await timers_of(connection, job) == [("tick", AT + MINUTE)]


@pytest.mark.parametrize("kind", ["manual", "replay"])
async def test_a_run_that_was_asked_for_leaves_the_tick_alone(
    connection: asyncpg.Connection, holder: Holder, kind: str
) -> None:
    job = await add_job(connection)
    await add_timer(connection, job, kind, AT - MINUTE, kind)
    await holder.fire(Planned(job, AT - MINUTE, kind=kind))
    assert await timers_of(connection, job) == [("tick", AT)]
    assert await runs_of(connection, job) == [(AT - MINUTE, kind, 1)]


async def test_nothing_planned_still_tells_the_time(connection: asyncpg.Connection, holder: Holder) -> None:
    before_at = await connection.fetchval("SELECT clock_at()")
    fired = await holder.fire()
    assert before_at < fired.now_at < await connection.fetchval("SELECT clock_at()")
    assert (fired.runs, fired.last_seq, list(fired.refused)) == (0, holder.last_seq, [])


async def test_a_job_whose_rule_cannot_be_read_is_paused(connection: asyncpg.Connection, holder: Holder) -> None:
    broken, neighbour = await add_job(connection), await add_job(connection)
    await timers.quarantine(connection, {broken.job_id: broken.rule_id}, "rule 1 cannot be read")
    rows = await connection.fetch(
        "SELECT job.status::text, job.pause_reason, timer.due_at = 'infinity' FROM jobs job JOIN timers timer"
        " USING (job_id) ORDER BY job.job_id"
    )
    assert [tuple(row) for row in rows] == [("paused", "rule 1 cannot be read", True), ("active", None, False)]
    assert (await holder.fire(Planned(broken), Planned(neighbour))).runs == 1


@pytest.mark.parametrize("is_missing", [False, True])
async def test_a_job_that_has_another_rule_by_now_is_not_paused(
    connection: asyncpg.Connection, *, is_missing: bool
) -> None:
    job = await add_job(connection)
    planned = {job.job_id: job.rule_id + 1}
    assert not (await timers.quarantine(connection, planned, "gone", is_missing=is_missing)).paused
    assert await connection.fetchval("SELECT status::text FROM jobs") == "active"


async def test_a_job_is_paused_for_a_missing_rule_only_while_it_is_missing(connection: asyncpg.Connection) -> None:
    job = await add_job(connection)
    planned = {job.job_id: job.rule_id}
    assert not (await timers.quarantine(connection, planned, "gone", is_missing=True)).paused
    await connection.execute("DELETE FROM rules")
    assert (await timers.quarantine(connection, planned, "gone", is_missing=True)).paused
    assert await connection.fetchval("SELECT status::text FROM jobs") == "paused"
