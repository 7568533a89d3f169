import asyncio
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
import pytest

from engine import AT, LEASE, Holder, Planned, add_job, ending_of, lease, until, until_blocked
from evertick.store.engine import lanes, outcomes
from evertick.store.engine.lanes import Leased
from evertick.store.engine.outcomes import LostAttempt


@pytest.fixture
async def holder(connection: asyncpg.Connection) -> Holder:
    holder = Holder(connection)
    await holder.take(7, 9)
    return holder


async def leased_by(holder: Holder, worker: str, count: int = 1, partition: int = 7) -> list[Leased]:
    jobs = [await add_job(holder.connection, partition=partition) for _ in range(count)]
    await holder.fire(*[Planned(job) for job in jobs])
    return await lease(holder.connection, *jobs, worker=worker)


async def run_out(connection: asyncpg.Connection, worker: str) -> None:
    await connection.execute("UPDATE leases SET expires_at = now() - interval '1 ms' WHERE worker = $1", worker)


async def reap(
    connection: asyncpg.Connection, node: str = "reaper", partitions: Sequence[int] = (7,), most: int = 10
) -> list[LostAttempt]:
    return await outcomes.reap(connection, node, partitions, lease_time=LEASE, most=most)


async def workers(connection: asyncpg.Connection) -> list[str]:
    return [row["worker"] for row in await connection.fetch("SELECT worker FROM leases ORDER BY first_seq")]


async def test_only_leases_that_ran_out_are_taken_over(connection: asyncpg.Connection, holder: Holder) -> None:
    gone, _ = await leased_by(holder, "gone", 2), await leased_by(holder, "alive")
    await run_out(connection, "gone")
    found = await reap(connection)
    assert [(each.lane_id, each.seq) for each in found] == [(each.lane_id, each.seq) for each in gone]
    assert {each.worker for each in found} == {"gone"}
    assert await workers(connection) == ["reaper", "alive"]
    assert await reap(connection) == []


async def test_a_lost_attempt_comes_with_what_decides_on_its_retry(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    [leased] = await leased_by(holder, "gone")
    await run_out(connection, "gone")
    [lost] = await reap(connection)
    assert (lost.lease_id, lost.job_id, lost.fire_at) == (leased.lease_id, leased.job_id, AT)
    assert (lost.spec_version, lost.reason, lost.attempt, lost.retry) == (1, "tick", 1, leased.retry)


async def test_an_attempt_with_an_outcome_is_not_lost(connection: asyncpg.Connection, holder: Holder) -> None:
    done, open_one = await leased_by(holder, "gone", 2)
    await outcomes.record(connection, "gone", [ending_of(done)], [])
    await run_out(connection, "gone")
    assert [each.seq for each in await reap(connection)] == [open_one.seq]


async def test_a_lease_with_nothing_open_is_there_to_be_let_go(connection: asyncpg.Connection, holder: Holder) -> None:
    [done] = await leased_by(holder, "gone")
    await outcomes.record(connection, "gone", [ending_of(done)], [])
    await run_out(connection, "gone")
    [found] = await reap(connection)
    assert (found.lease_id, found.worker, found.lane_id) == (done.lease_id, "gone", None)


async def test_leases_of_other_partitions_are_left_to_their_holders(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    await leased_by(holder, "gone", partition=9)
    await run_out(connection, "gone")
    assert await reap(connection, partitions=[7, 8]) == []
    assert len(await reap(connection, partitions=[9])) == 1


async def test_a_lease_that_was_extended_in_time_is_not_touched(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    await leased_by(holder, "w")
    await connection.execute("UPDATE leases SET expires_at = clock_at() + interval '0.2 s'")
    async with second.transaction():
        assert len(await lanes.extend(second, "w", LEASE)) == 1
        await until(lambda: connection.fetchval("SELECT expires_at < clock_at() FROM leases"))
        assert await reap(connection) == []
    assert await reap(connection) == []
    assert await workers(connection) == ["w"]


async def test_a_heartbeat_that_meets_the_reaper_does_not_get_its_lease_back(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder
) -> None:
    await leased_by(holder, "gone")
    await run_out(connection, "gone")
    async with second.transaction():
        assert len(await reap(second)) == 1
        extending = asyncio.create_task(lanes.extend(connection, "gone", LEASE))
        await until_blocked(watcher, connection)
    assert await extending == set()
    assert await lanes.extend(connection, "gone", LEASE) == set()


async def test_two_reapers_share_what_there_is(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    for _ in range(4):
        await leased_by(holder, "gone")
    await run_out(connection, "gone")
    async with connection.transaction():
        mine = await reap(connection, "a", most=2)
        theirs = await reap(second, "b", most=10)
    assert len(mine) == len(theirs) == 2
    assert {each.seq for each in mine}.isdisjoint(each.seq for each in theirs)
    assert sorted(await workers(connection)) == ["a", "a", "b", "b"]


async def test_leases_that_somebody_has_locked_hold_up_no_others(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    for _ in range(3):
        await leased_by(holder, "locked")
    [gone] = await leased_by(holder, "gone")
    await run_out(connection, "locked")
    await run_out(connection, "gone")
    async with second.transaction():
        await second.execute("SELECT FROM leases WHERE worker = 'locked' FOR UPDATE")
        assert [each.lease_id for each in await reap(connection, most=2)] == [gone.lease_id]
    assert len(await reap(connection)) == 3


async def test_a_reaper_that_dies_before_it_records_is_reaped_in_turn(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    [leased] = await leased_by(holder, "gone")
    await run_out(connection, "gone")
    await reap(connection, "first reaper")
    assert await reap(connection, "second reaper") == []
    await run_out(connection, "first reaper")
    [lost] = await reap(connection, "second reaper")
    assert (lost.seq, lost.worker) == (leased.seq, "first reaper")


async def test_the_oldest_come_first_and_no_more_than_asked_for(connection: asyncpg.Connection, holder: Holder) -> None:
    newer, older = [(await leased_by(holder, worker))[0] for worker in ("newer", "older")]
    await run_out(connection, "newer")
    await connection.execute("UPDATE leases SET expires_at = now() - interval '1 h' WHERE worker = 'older'")
    assert [each.lease_id for each in await reap(connection, most=1)] == [older.lease_id]
    assert [each.lease_id for each in await reap(connection, most=1)] == [newer.lease_id]


async def test_a_taken_over_lease_lives_for_the_reapers_own_time(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    await leased_by(holder, "gone")
    await run_out(connection, "gone")
    await reap(connection)
    left = await connection.fetchval("SELECT expires_at - clock_at() FROM leases")
    assert LEASE - timedelta(seconds=10) < left <= LEASE
