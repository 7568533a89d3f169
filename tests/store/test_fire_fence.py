"""Who may fire: only the holder of a partition in its epoch, and never against whoever changes a job at this moment."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from engine import AT, LIFETIME, MINUTE, Holder, Planned, add_job, runs_of, timers_of, until_blocked
from evertick.domain.assignment import Member
from evertick.store.engine import members

NO_LIFETIME = timedelta(0)


@pytest.fixture
async def holder(connection: asyncpg.Connection) -> Holder:
    holder = Holder(connection)
    await holder.take(7, 8)
    return holder


@pytest.mark.parametrize(
    ("node", "epoch"), [("first", 0), ("first", 2), ("second", 1), ("", 1)], ids=["old", "future", "other", "nobody"]
)
async def test_whoever_does_not_hold_the_partition_writes_nothing(
    connection: asyncpg.Connection, holder: Holder, node: str, epoch: int
) -> None:
    job, neighbour = await add_job(connection), await add_job(connection, partition=8)
    stale = Holder(connection, node, {7: epoch, 8: holder.epochs[8]})
    fired = await stale.fire(Planned(job, gaps=[(AT, AT, 1, "missed")]))
    assert (fired.runs, list(fired.refused)) == (0, [1])
    assert await timers_of(connection, job) == [("tick", AT)]
    assert await connection.fetchval("SELECT count(*) FROM gaps") == 0
    assert (await holder.fire(Planned(job), Planned(neighbour))).runs == 2


async def test_a_partition_without_a_known_epoch_is_not_fired(connection: asyncpg.Connection, holder: Holder) -> None:
    job, neighbour = await add_job(connection), await add_job(connection, partition=8)
    del holder.epochs[7]
    fired = await holder.fire(Planned(job), Planned(neighbour))
    assert (fired.runs, list(fired.refused)) == (1, [1])


async def test_released_partitions_are_not_fired(connection: asyncpg.Connection, holder: Holder) -> None:
    job = await add_job(connection)
    await members.release(connection, holder.node, [7])
    assert (await holder.fire(Planned(job))).runs == 0


async def test_a_takeover_waits_for_a_firing_in_progress_and_goes_on_after_it(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder
) -> None:
    job = await add_job(connection)
    successor = Holder(second, "second")
    await members.heartbeat(second, Member("second"), "1", LIFETIME)
    async with connection.transaction():
        ahead = int(await connection.fetchval("SELECT microseconds(clock_at() + interval '1 hour')"))
        holder.last_seq = ahead
        await holder.fire(Planned(job))
        await watcher.execute("DELETE FROM nodes WHERE node = $1", holder.node)  # its heartbeats have stopped
        taking = asyncio.create_task(successor.take(7))
        await until_blocked(watcher, second)
    assert await taking == {7: 2}
    assert successor.last_seq == holder.last_seq > ahead
    assert (await successor.fire(Planned(job, AT + MINUTE, policy="ALLOW", limit=2))).runs == 1
    seqs = await connection.fetch("SELECT seq, epoch FROM attempts ORDER BY seq")
    assert [row["epoch"] for row in seqs] == [1, 2]
    assert seqs[1]["seq"] > seqs[0]["seq"] > ahead


async def test_a_firing_that_meets_a_takeover_in_progress_writes_nothing(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    job, neighbour = await add_job(connection), await add_job(connection, partition=8)
    async with second.transaction():
        assert await members.take(second, "second", [7], NO_LIFETIME) == {7: 2}
        fired = await holder.fire(Planned(job), Planned(neighbour))
        assert (fired.runs, list(fired.busy), list(fired.refused)) == (1, [1], [])
    fired = await holder.fire(Planned(job))
    assert (fired.runs, list(fired.busy), list(fired.refused)) == (0, [], [1])
    assert await timers_of(connection, job) == [("tick", AT)]


async def test_a_firing_that_meets_a_takeover_which_fails_goes_on(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    job = await add_job(connection)
    transaction = second.transaction()
    await transaction.start()
    await members.take(second, "second", [7], NO_LIFETIME)
    assert (await holder.fire(Planned(job))).runs == 0
    await transaction.rollback()
    assert (await holder.fire(Planned(job))).runs == 1


async def test_the_late_firing_of_a_holder_that_was_fenced_off_writes_nothing(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    job = await add_job(connection)
    successor = Holder(second, "second")
    successor.epochs = await members.take(second, "second", [7], NO_LIFETIME)
    assert (await holder.fire(Planned(job))).runs == 0
    assert (await successor.fire(Planned(job))).runs == 1
    assert (await holder.fire(Planned(job, AT + MINUTE))).runs == 0
    assert await runs_of(connection, job) == [(AT, "tick", 1)]


async def test_a_holder_that_retakes_its_own_fences_off_what_it_sent_before(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    job = await add_job(connection)
    in_doubt = Holder(second, holder.node, dict(holder.epochs))
    assert await holder.take(7) == {7: 2}
    assert (await in_doubt.fire(Planned(job))).runs == 0
    assert (await holder.fire(Planned(job))).runs == 1


@pytest.mark.parametrize(
    "change",
    ["UPDATE timers SET due_at = 'infinity'", "DELETE FROM timers", "UPDATE timers SET fire_at = fire_at + '1 h'"],
    ids=["paused", "deleted", "rescheduled"],
)
async def test_whoever_changes_a_job_at_this_moment_wins_and_nobody_waits(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, change: str
) -> None:
    job, neighbour = await add_job(connection), await add_job(connection)
    async with second.transaction():
        await second.execute(f"{change} WHERE job_id = $1", job.job_id)
        fired = await holder.fire(Planned(job), Planned(neighbour))
        assert (fired.runs, list(fired.busy)) == (1, [1])
    fired = await holder.fire(Planned(job))
    assert (fired.runs, list(fired.refused)) == (0, [1])
    assert await runs_of(connection, job) == []


async def test_a_change_that_is_taken_back_leaves_the_timer_to_be_fired(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    job = await add_job(connection)
    transaction = second.transaction()
    await transaction.start()
    await second.execute("DELETE FROM timers")
    assert (await holder.fire(Planned(job))).runs == 0
    await transaction.rollback()
    assert (await holder.fire(Planned(job))).runs == 1


async def test_a_pause_that_meets_a_firing_waits_for_it(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder
) -> None:
    job = await add_job(connection)
    async with connection.transaction():
        await holder.fire(Planned(job))
        pausing = asyncio.create_task(
            second.fetchval("UPDATE timers SET due_at = 'infinity' WHERE kind = 'tick' RETURNING fire_at")
        )
        await until_blocked(watcher, second)
    assert await pausing == AT + MINUTE
    assert (await holder.fire(Planned(job, AT + MINUTE))).runs == 0
