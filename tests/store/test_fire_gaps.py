"""Ticks that one attempt keeps out are one gap, as long as nothing else lies between them."""

from datetime import datetime

import asyncpg

from engine import AT, MINUTE, Holder, Job, Planned, add_job, add_timer, finish, gaps_of


def at(minutes: int) -> datetime:
    return AT + minutes * MINUTE


def tick(job: Job, minutes: int, policy: str = "SKIP") -> Planned:
    return Planned(job, at(minutes), policy=policy)


async def fire_queued(holder: Holder, job: Job) -> None:
    row = await holder.connection.fetchrow(
        "SELECT fire_at, due_at FROM timers WHERE job_id = $1 AND kind = 'queued'", job.job_id
    )
    assert row is not None
    fired = await holder.fire(Planned(job, row["fire_at"], kind="queued", policy="QUEUE", due_at=row["due_at"]))
    assert fired.runs == 1


async def test_ticks_that_one_attempt_keeps_out_are_one_row(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire_ticks(tick(job, 0), 6)
    assert await gaps_of(connection, job) == [(at(1), at(5), 5, "overlap")]


async def test_a_run_in_between_begins_a_new_row(connection: asyncpg.Connection, holder: Holder, job: Job) -> None:
    await holder.fire_ticks(tick(job, 0), 2)
    await finish(connection, job)
    await holder.fire_ticks(tick(job, 2), 2)
    assert await gaps_of(connection, job) == [(at(1), at(1), 1, "overlap"), (at(3), at(3), 1, "overlap")]


async def test_another_gap_in_between_begins_a_new_row(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire_ticks(tick(job, 0), 2)
    missed = (at(2), at(2), 1, "missed")
    await holder.fire(Planned(job, at(2), runs=False, reason=None, gaps=[missed]))
    await holder.fire(tick(job, 3))
    assert await gaps_of(connection, job) == [(at(1), at(1), 1, "overlap"), missed, (at(3), at(3), 1, "overlap")]


async def test_a_plan_with_missed_ticks_does_not_widen_the_gap_before_them(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire_ticks(tick(job, 0), 2)
    missed = (at(2), at(4), 3, "missed")
    await holder.fire(Planned(job, at(2), run_at=at(5), gaps=[missed]))
    assert await gaps_of(connection, job) == [(at(1), at(1), 1, "overlap"), missed, (at(5), at(5), 1, "overlap")]


async def test_another_gap_of_a_job_that_never_ran_is_not_joined(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    missed = (at(0), at(0), 1, "missed")
    await holder.fire(Planned(job, at(0), runs=False, reason=None, gaps=[missed]))
    await add_timer(connection, job, "manual", AT - MINUTE, "manual")
    await holder.fire(Planned(job, AT - MINUTE, kind="manual"))
    await holder.fire(tick(job, 1))
    assert await gaps_of(connection, job) == [missed, (at(1), at(1), 1, "overlap")]


async def test_a_manual_run_that_keeps_out_a_job_that_never_ran_makes_one_row(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await add_timer(connection, job, "manual", AT - MINUTE, "manual")
    await holder.fire(Planned(job, AT - MINUTE, kind="manual"))
    await holder.fire_ticks(tick(job, 0), 3)
    assert await gaps_of(connection, job) == [(at(0), at(2), 3, "overlap")]


async def test_a_run_that_waits_its_turn_begins_a_new_row(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire_ticks(tick(job, 0, "QUEUE"), 3)  # runs, waits, is skipped
    await finish(connection, job)
    await fire_queued(holder, job)
    await holder.fire_ticks(tick(job, 3, "QUEUE"), 3)  # waits, is skipped, is skipped
    assert await gaps_of(connection, job) == [(at(2), at(2), 1, "overlap"), (at(4), at(5), 2, "overlap")]


async def test_a_run_that_waited_its_turn_and_runs_by_now_begins_a_new_row(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire_ticks(tick(job, 0, "QUEUE"), 3)
    await finish(connection, job)
    await fire_queued(holder, job)
    await holder.fire(tick(job, 3, "QUEUE"))
    await finish(connection, job)
    await fire_queued(holder, job)
    await holder.fire(tick(job, 4, "SKIP"))  # the policy was edited
    assert await gaps_of(connection, job) == [(at(2), at(2), 1, "overlap"), (at(4), at(4), 1, "overlap")]


async def test_a_run_that_was_withdrawn_while_it_waited_its_turn_begins_a_new_row(
    connection: asyncpg.Connection, holder: Holder, job: Job
) -> None:
    await holder.fire_ticks(tick(job, 0, "QUEUE"), 3)
    await finish(connection, job)
    await fire_queued(holder, job)
    await holder.fire(tick(job, 3, "QUEUE"))
    await connection.execute("DELETE FROM timers WHERE kind = 'queued'")
    await connection.execute("INSERT INTO withdrawals VALUES ($1, $2, now(), 1, 'tick')", job.job_id, at(3))
    await holder.fire(tick(job, 4, "SKIP"))  # the policy was edited
    assert await gaps_of(connection, job) == [(at(2), at(2), 1, "overlap"), (at(4), at(4), 1, "overlap")]


async def test_gaps_of_other_jobs_are_not_joined(connection: asyncpg.Connection, holder: Holder, job: Job) -> None:
    neighbour = await add_job(connection)
    await holder.fire(tick(job, 0), tick(neighbour, 0))
    await holder.fire(tick(job, 1), tick(neighbour, 1))
    await holder.fire(tick(neighbour, 2))
    assert await gaps_of(connection, job) == [(at(1), at(1), 1, "overlap")]
    assert await gaps_of(connection, neighbour) == [(at(1), at(2), 2, "overlap")]
