"""The hybrid logical clock: seqs of a lane grow in the order of their commits, whoever holds it, whatever the time."""

from itertools import pairwise

import asyncpg

from engine import AT, MINUTE, Holder, Job, Planned, add_job, finish, lease

HOUR_US = 3_600_000_000


async def now_us(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT microseconds(clock_at())"))


async def seqs(connection: asyncpg.Connection, job: Job) -> list[int]:
    """Of a job's attempts, in the order of their ticks."""
    rows = await connection.fetch("SELECT seq FROM attempts WHERE job_id = $1 ORDER BY fire_at, attempt", job.job_id)
    return [row["seq"] for row in rows]


def is_growing(numbers: list[int]) -> bool:
    return all(earlier < later for earlier, later in pairwise(numbers))


def many(job: Job) -> Planned:
    return Planned(job, policy="ALLOW", limit=1_000)


async def test_seq_is_the_databases_time(connection: asyncpg.Connection) -> None:
    job, holder = await add_job(connection), Holder(connection)
    await holder.take(7)
    before_us = await now_us(connection)
    await holder.fire(many(job))
    assert before_us < (await seqs(connection, job))[0] < await now_us(connection) + 1


async def test_seqs_grow_from_one_statement_to_the_next_and_within_each(connection: asyncpg.Connection) -> None:
    jobs, holder = [await add_job(connection) for _ in range(20)], Holder(connection)
    await holder.take(7)
    order: list[int] = []
    for minute in range(5):
        fired = await holder.fire(*[Planned(job, AT + minute * MINUTE, policy="ALLOW", limit=9) for job in jobs])
        order += [(await seqs(connection, job))[minute] for job in jobs]
        assert fired.last_seq == order[-1]
    assert is_growing(order)


async def test_seqs_grow_while_the_databases_clock_is_behind(connection: asyncpg.Connection) -> None:
    job, holder = await add_job(connection), Holder(connection)
    await holder.take(7)
    ahead = holder.last_seq = await now_us(connection) + HOUR_US
    await holder.fire_ticks(many(job), 3)
    assert await seqs(connection, job) == [ahead + 1, ahead + 2, ahead + 3]


async def test_a_successor_goes_on_after_what_waits_in_the_lanes(connection: asyncpg.Connection) -> None:
    job, holder = await add_job(connection), Holder(connection)
    await holder.take(7)
    holder.last_seq = await now_us(connection) + HOUR_US
    await holder.fire_ticks(many(job), 2)
    successor = Holder(connection)
    await successor.take(7)
    assert successor.last_seq == holder.last_seq
    await successor.fire_ticks(Planned(job, AT + 2 * MINUTE, policy="ALLOW", limit=9), 2)
    assert is_growing(await seqs(connection, job))


async def test_a_successor_goes_on_after_what_was_leased_and_dropped_from_history(
    connection: asyncpg.Connection,
) -> None:
    job, holder = await add_job(connection), Holder(connection)
    await holder.take(7)
    holder.last_seq = await now_us(connection) + HOUR_US
    await holder.fire(many(job))
    await finish(connection, job)
    await connection.execute("TRUNCATE attempts, outcomes")
    successor = Holder(connection)
    await successor.take(7)
    assert successor.last_seq == holder.last_seq


async def test_a_successor_looks_at_every_lane_of_its_partitions_and_at_no_others(
    connection: asyncpg.Connection,
) -> None:
    low = await add_job(connection, priority=2, queue="other")
    high, elsewhere = await add_job(connection, priority=0), await add_job(connection, partition=9)
    holder = Holder(connection)
    await holder.take(7, 9)
    holder.last_seq = await now_us(connection) + HOUR_US
    await holder.fire(Planned(high))
    await lease(connection, high)
    await holder.fire(Planned(low))
    last = holder.last_seq
    await holder.fire(Planned(elsewhere))
    successor = Holder(connection)
    await successor.take(7)
    assert successor.last_seq == last < holder.last_seq


async def test_partitions_that_nobody_wrote_to_begin_at_the_databases_time(connection: asyncpg.Connection) -> None:
    holder = Holder(connection)
    before = await now_us(connection)
    await holder.take(7)
    assert before < holder.last_seq < await now_us(connection)


async def test_timers_that_wait_or_are_early_use_up_no_more_than_their_numbers(
    connection: asyncpg.Connection,
) -> None:
    first, second, holder = await add_job(connection), await add_job(connection), Holder(connection)
    await holder.take(7)
    ahead = holder.last_seq = await now_us(connection) + HOUR_US
    await connection.execute(
        "UPDATE timers SET fire_at = '9999-01-01', due_at = '9999-01-01' WHERE job_id = $1", first.job_id
    )
    far_at = await connection.fetchval("SELECT fire_at FROM timers WHERE job_id = $1", first.job_id)
    fired = await holder.fire(many(second), Planned(first, far_at, is_last=True))
    assert list(fired.early) == [2]
    assert fired.last_seq == ahead + 2
    assert await seqs(connection, second) == [ahead + 1]
