"""Several schedulers on one database: who holds what, as they come, go, fall silent and are woken."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import asyncpg
import pytest

from engine import AT, add_job, runs_of, scheduler, until
from evertick.roles.scheduler import Scheduler
from evertick.store.engine import wakeups

Opener = Callable[[str], Awaitable[Scheduler]]


@pytest.fixture
async def opened(database_url: str) -> AsyncIterator[Opener]:
    """Opens schedulers that are closed when the test ends."""
    async with AsyncExitStack() as stack:
        yield lambda node: stack.enter_async_context(scheduler(database_url, node))


async def epochs(connection: asyncpg.Connection) -> dict[int, int]:
    return {row["partition"]: row["epoch"] for row in await connection.fetch("SELECT partition, epoch FROM partitions")}


def share(node: Scheduler) -> int:
    return len(node.state.ownership.epochs)


def assert_held_once(*nodes: Scheduler) -> None:
    held = [partition for node in nodes for partition in node.state.ownership.epochs]
    assert len(held) == len(set(held))


async def settle(connection: asyncpg.Connection, *nodes: Scheduler) -> None:
    """Let all beat until nothing changes; at no moment do two hold the same, and epochs never fall."""
    for node in nodes:
        await node.join()
    while True:
        before = await epochs(connection), [share(node) for node in nodes]
        for node in nodes:
            await node.join()
            assert_held_once(*nodes)
        after = await epochs(connection), [share(node) for node in nodes]
        assert all(before[0][partition] <= after[0][partition] for partition in range(256))
        if before == after:
            return


async def test_one_alone_holds_everything(connection: asyncpg.Connection, opened: Opener) -> None:
    node = await opened("a")
    await node.join()
    assert node.state.ownership.epochs == await epochs(connection) == dict.fromkeys(range(256), 1)


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")])
async def test_schedulers_share_the_partitions_evenly(
    connection: asyncpg.Connection, opened: Opener, names: tuple[str, ...]
) -> None:
    nodes = [await opened(name) for name in names]
    await settle(connection, *nodes)
    shares = [share(node) for node in nodes]
    assert sum(shares) == 256
    assert max(shares) - min(shares) <= 1


async def test_one_that_joins_gets_its_share_and_what_moved_has_a_new_epoch(
    connection: asyncpg.Connection, opened: Opener
) -> None:
    first, second = await opened("a"), await opened("b")
    await settle(connection, first, second)
    before = await epochs(connection)
    third = await opened("c")
    await settle(connection, first, second, third)
    assert sorted(share(node) for node in (first, second, third)) == [85, 85, 86]
    after = await epochs(connection)
    assert all(after[partition] == before[partition] + 1 for partition in third.state.ownership.epochs)


async def test_one_that_leaves_hands_everything_to_the_others(connection: asyncpg.Connection, opened: Opener) -> None:
    first, second, third = await opened("a"), await opened("b"), await opened("c")
    await settle(connection, first, second, third)
    await third.membership.leave()
    assert share(third) == 0
    await settle(connection, first, second)
    assert (share(first), share(second)) == (128, 128)


async def test_one_that_falls_silent_is_taken_over_and_writes_nothing_when_it_wakes_up(
    connection: asyncpg.Connection, opened: Opener
) -> None:
    first, second = await opened("a"), await opened("b")
    await settle(connection, first, second)
    partition = min(second.state.ownership.epochs)
    job = await add_job(connection, "now", partition=partition)
    await second.loading.step()
    await connection.execute("UPDATE nodes SET seen_at = seen_at - interval '1 h' WHERE node = 'b'")
    await first.join()
    assert share(first) == 256
    await second.firing.fire_batch()  # it still believes in its ownership
    assert second.firing.counters.refused == 1
    assert await runs_of(connection, job) == []
    await first.fire_due()
    assert await runs_of(connection, job) == [(AT, "catch_up", 1)]
    await second.join()
    assert share(second) == 0
    await settle(connection, first, second)
    assert (share(first), share(second)) == (128, 128)


async def test_an_answer_that_was_lost_while_taking_is_made_up_for(
    connection: asyncpg.Connection, opened: Opener
) -> None:
    node = await opened("a")
    await node.join()
    node.state.ownership.drop(set(range(100)))  # taken in the table, yet unheard of
    await node.join()
    assert node.state.ownership.epochs == await epochs(connection)
    assert {node.state.ownership.epochs[partition] for partition in range(100)} == {2}


async def test_partitions_move_without_a_tick_missed_or_doubled(connection: asyncpg.Connection, opened: Opener) -> None:
    jobs = [await add_job(connection, "now", partition=partition) for partition in range(256)]
    first, second, third = await opened("a"), await opened("b"), await opened("c")
    nodes: tuple[Scheduler, ...] = ()
    for node in (first, second, third):
        nodes = (*nodes, node)
        await node.join()
        for each in nodes:
            await each.loading.step()
            await each.join()
        await asyncio.gather(*[each.firing.fire_batch() for each in nodes])
    await settle(connection, *nodes)
    for each in nodes:
        await each.fire_due()
    assert [len(await runs_of(connection, job)) for job in jobs] == [1] * 256


async def test_one_that_stops_hands_over_at_once_and_the_other_is_woken(
    connection: asyncpg.Connection, database_url: str
) -> None:
    """Their heartbeats are minutes apart: only the notification can be so fast."""
    rarely = timedelta(minutes=5)
    first, second = [Scheduler(database_url, name, heartbeat=rarely, lifetime=3 * rarely) for name in "ab"]
    job = await add_job(connection, "now", partition=7)
    await connection.execute("UPDATE timers SET fire_at = 'infinity', due_at = 'infinity'")
    await first.start()
    await until(lambda: holds(first, 256))
    await second.start()
    await until(lambda: knows(second, first))
    await wakeups.notify(connection, {wakeups.MEMBERS: ""})  # joining is noticed at the next heartbeat
    await until(lambda: holds(second, 128))
    await first.stop()
    await until(lambda: holds(second, 256))
    await connection.execute("UPDATE timers SET fire_at = $1, due_at = $1", AT)
    await until(lambda: runs_of(connection, job))
    await second.stop()
    assert await connection.fetchval("SELECT count(*) FROM partitions WHERE holder IS NOT NULL") == 0
    assert await connection.fetchval("SELECT count(*) FROM nodes") == 0


async def holds(node: Scheduler, partitions: int) -> bool:
    return share(node) == partitions


async def knows(node: Scheduler, other: Scheduler) -> bool:
    return [member.node for member in node.membership.others] == [other.node]
