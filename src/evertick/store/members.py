"""Membership and ownership of partitions: heartbeats, epochs, hand-over. Called by schedulers."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.domain.assignment import Member
from evertick.store import statements
from evertick.store.statements import Connection

_SQL = statements.load("members")

# `lifetime`: for so long after its last heartbeat a node counts as alive.


class Beat(NamedTuple):
    """What a heartbeat tells: the database's time, and the other members that are alive."""

    now_at: datetime
    others: tuple[Member, ...]


class Node(NamedTuple):
    """A node as people want to see it."""

    node: str
    region: str
    version: str
    started_at: datetime
    seen_at: datetime
    is_alive: bool
    partitions: int


async def beat(connection: Connection, me: Member, version: str, lifetime: timedelta) -> Beat:
    row = await _SQL["beat"].fetchrow(
        connection, node=me.node, region=me.region, version=version, timeout_seconds=lifetime.total_seconds()
    )
    assert row is not None
    others = zip(row["others"], row["regions"], strict=True)
    return Beat(row["now_at"], tuple(Member(node, region) for node, region in others))


async def held(connection: Connection, node: str) -> dict[int, int]:
    """The epoch of each partition that the node holds."""
    return {row["partition"]: row["epoch"] for row in await _SQL["held"].fetch(connection, node=node)}


async def take(connection: Connection, node: str, partitions: Iterable[int], lifetime: timedelta) -> dict[int, int]:
    """Take what nobody alive holds, and return the new epoch of each."""
    rows = await _SQL["take"].fetch(
        connection, node=node, partitions=sorted(partitions), timeout_seconds=lifetime.total_seconds()
    )
    return {row["partition"]: row["epoch"] for row in rows}


async def last_seq(connection: Connection, partitions: Iterable[int]) -> int:
    row = await _SQL["last_seq"].fetchrow(connection, partitions=list(partitions))
    assert row is not None
    last: int = row["last_seq"]
    return last


async def release(connection: Connection, node: str, partitions: Iterable[int]) -> None:
    await _SQL["release"].execute(connection, node=node, partitions=list(partitions))


async def leave(connection: Connection, node: str) -> None:
    await _SQL["leave"].execute(connection, node=node)


async def forget(connection: Connection) -> None:
    await _SQL["forget"].execute(connection)


async def members(connection: Connection, lifetime: timedelta) -> Sequence[Node]:
    rows = await _SQL["members"].fetch(connection, timeout_seconds=lifetime.total_seconds())
    return [Node(*row) for row in rows]


async def unheld(connection: Connection, lifetime: timedelta) -> int:
    """How many partitions nobody alive holds."""
    row = await _SQL["unheld"].fetchrow(connection, timeout_seconds=lifetime.total_seconds())
    assert row is not None
    count: int = row["partitions"]
    return count
