"""Calls of a worker that pulls lock its leases in the order of their ids, and never deadlock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import asyncpg
import pytest

from engine import LEASE, Holder, Planned, add_job, ending_of, lease, until_blocked
from evertick.store.database import connect
from evertick.store.engine import lanes, outcomes, pulls

LATER, EARLIER = 20, 10


@pytest.fixture
async def others(database_url: str) -> AsyncIterator[Sequence[asyncpg.Connection]]:
    connections = [await connect(database_url) for _ in range(3)]
    yield connections
    for connection in connections:
        await connection.close()


async def two_leases(connection: asyncpg.Connection) -> set[int]:
    """Two leases of `w` with nothing open in them, in the table against the order of their ids; returns the lanes."""
    holder = Holder(connection)
    await holder.take(7)
    lane_ids: set[int] = set()
    for lease_id in (LATER, EARLIER):
        job = await add_job(connection)
        await holder.fire(Planned(job))
        [leased] = await lease(connection, job, worker="w")
        await connection.execute("UPDATE leases SET lease_id = $1 WHERE lease_id = $2", lease_id, leased.lease_id)
        await outcomes.record(connection, "w", [ending_of(leased)], [])
        lane_ids.add(leased.lane_id)
    return lane_ids


def letting_go(connection: asyncpg.Connection, lane_ids: set[int]) -> Awaitable[object]:
    return pulls.release(connection, "w", lane_ids)


def extending_all(connection: asyncpg.Connection, _: set[int]) -> Awaitable[object]:
    return pulls.extend_all(connection, "w", LEASE)


@pytest.mark.parametrize("act", [letting_go, extending_all])
async def test_a_heartbeat_does_not_deadlock_with_another_call_of_its_worker(
    connection: asyncpg.Connection,
    others: Sequence[asyncpg.Connection],
    act: Callable[[asyncpg.Connection, set[int]], Awaitable[object]],
) -> None:
    beating, acting, blocker = others
    lane_ids = await two_leases(connection)
    async with blocker.transaction():
        await blocker.execute("SELECT FROM leases WHERE lease_id = $1 FOR UPDATE", EARLIER)
        beat = asyncio.create_task(lanes.extend(beating, "w", LEASE))
        await until_blocked(connection, beating)
        other = asyncio.ensure_future(act(acting, lane_ids))
        await until_blocked(connection, acting)
    assert await beat == {EARLIER, LATER}
    await other
