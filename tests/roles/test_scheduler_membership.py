"""Several schedulers on one database: who holds what, as they come, go, fall silent and are woken."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from engine import AT, add_job, runs_of, scheduler, until
from evertick.config.settings import DEFAULTS
from evertick.roles.scheduler import Scheduler
from evertick.store.engine import wakeups
from hooked_pool import Run, hook_every_pool

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


async def test_one_that_hands_over_is_followed_by_the_others_with_their_next_heartbeat(
    connection: asyncpg.Connection, opened: Opener
) -> None:
    first, second, third = await opened("a"), await opened("b"), await opened("c")
    await settle(connection, first, second, third)
    handed_over = set(third.state.ownership.epochs)
    await third.hand_over()
    await first.join()
    await second.join()
    assert handed_over <= {*first.state.ownership.epochs, *second.state.ownership.epochs}
    assert share(third) == 0


async def test_a_stop_gives_up_the_partitions_before_it_waits_for_what_is_under_way(
    connection: asyncpg.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, is_reading = asyncio.Event(), asyncio.Event()

    async def hang(run: Run, _: Mapping[str, Any]) -> Any:
        is_reading.set()
        try:
            await may_go_on.wait()
        finally:
            is_reading.clear()
        return await run()

    hook_every_pool(monkeypatch, "timers.load", hang)
    node = Scheduler(database_url, "a")
    await node.start()

    async def are_given_up() -> bool:
        return not await connection.fetchval("SELECT count(*) FROM partitions WHERE holder IS NOT NULL")

    await is_reading.wait()
    stopping = asyncio.create_task(node.stop())
    await until(are_given_up)
    assert is_reading.is_set(), "it has not waited for the page that is being read"
    may_go_on.set()
    await stopping
    assert await connection.fetchval("SELECT count(*) FROM nodes") == 0, "it did not join again"


@pytest.mark.parametrize(
    ("heartbeat", "lifetime", "within"),
    [
        pytest.param(DEFAULTS.heartbeat, DEFAULTS.heartbeat_timeout, timedelta(seconds=5.5), id="default"),
        pytest.param(timedelta(seconds=0.25), timedelta(seconds=1.75), timedelta(seconds=2), id="fast"),
    ],
)
async def test_a_dead_one_is_taken_over_after_the_timeout_in_heartbeats(
    connection: asyncpg.Connection, database_url: str, heartbeat: timedelta, lifetime: timedelta, within: timedelta
) -> None:
    """Counted in heartbeats of the one that is left, by a clock that stands still between them."""
    await connection.execute("CREATE TABLE hand AS SELECT clock_timestamp() AS at")
    await connection.execute(
        "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE"
        " AS 'SELECT at FROM hand'"
    )
    async with AsyncExitStack() as stack:
        first, second = (Scheduler(database_url, name, heartbeat=heartbeat, lifetime=lifetime) for name in "ab")
        for node in (first, second):
            await node.open()
            stack.push_async_callback(node.close)
        await settle(connection, first, second)
        # The dead one beat last right after the other: the worst case.
        await connection.execute("UPDATE nodes SET seen_at = seen_at + $1 WHERE node = 'b'", heartbeat / 2)
        beats = 0
        while share(first) < 256:
            await connection.execute("UPDATE hand SET at = at + $1", heartbeat)
            await first.join()
            beats += 1
    assert beats == math.ceil((lifetime + heartbeat / 2) / heartbeat)
    assert beats * heartbeat <= within


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
