"""Membership and ownership: heartbeats, epochs and hand-over of partitions, and the lock of the janitor at work."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.domain.assignment import Member
from evertick.domain.catch_up import OUTAGE
from evertick.store import statements
from evertick.store.database import Pool
from evertick.store.statements import Connection

_JANITOR_LOCK = int.from_bytes(b"janitor", "big")


# `lifetime`: for so long after its last heartbeat a node counts as alive. `outage`: if nobody held a partition for
# longer than this, there was one.


class HeartbeatReply(NamedTuple):
    """What a heartbeat returns: the database's time, and the other members that are alive.

    `is_confirmed`: the server is the one on which work was last confirmed (`identity`). Else it may have had no effect.
    """

    now_at: datetime
    others: tuple[Member, ...]
    is_confirmed: bool


class NodeRow(NamedTuple):
    """A node, for people."""

    node: str
    region: str
    version: str
    started_at: datetime
    seen_at: datetime
    is_alive: bool
    partitions: int
    fired_per_second: float | None


class _HeartbeatRow(NamedTuple):
    now_at: datetime
    others: list[str]
    regions: list[str]
    is_confirmed: bool


class _Epoch(NamedTuple):
    partition: int
    epoch: int


class PartitionHolder(NamedTuple):
    """A partition, the node that holds it, if any, and its epoch."""

    partition: int
    holder: str | None
    epoch: int


class _Outage(NamedTuple):
    partition: int
    outage_at: datetime


_SQL = statements.load("members")
_HEARTBEAT = _SQL["heartbeat"].rows(_HeartbeatRow)
_HELD = _SQL["held"].rows(_Epoch)
_TAKE = _SQL["take"].rows(_Epoch)
_OUTAGES = _SQL["outages"].rows(_Outage)
_LAST_SEQ = _SQL["last_seq"].values(int)
_MEMBERS = _SQL["members"].rows(NodeRow)
_LAST_SEEN = _SQL["last_seen"].values(datetime)
_PARTITION_HOLDERS = _SQL["partition_holders"].rows(PartitionHolder)
_UNHELD = _SQL["unheld"].values(int)
_LOCK_JANITOR = _SQL["lock_janitor"].values(bool)


async def heartbeat(  # noqa: PLR0913 - what a node says of itself, and for how long it counts
    connection: Connection,
    me: Member,
    version: str,
    lifetime: timedelta,
    outage: timedelta = OUTAGE,
    *,
    fired_per_second: float | None = None,
) -> HeartbeatReply:
    """Say that a node is alive, and how much it fires. After an outage it gives up what it held."""
    row = await _HEARTBEAT.one(
        connection,
        node=me.node,
        region=me.region,
        version=version,
        timeout_seconds=lifetime.total_seconds(),
        outage=outage,
        fired_per_second=fired_per_second,
    )
    others = zip(row.others, row.regions, strict=True)
    return HeartbeatReply(row.now_at, tuple(Member(node, region) for node, region in others), row.is_confirmed)


async def held(connection: Connection, node: str) -> dict[int, int]:
    """The epoch of each partition that the node holds."""
    return dict(await _HELD.all(connection, node=node))


async def take(
    connection: Connection, node: str, partitions: Iterable[int], lifetime: timedelta, outage: timedelta = OUTAGE
) -> dict[int, int]:
    """Take partitions that no live node holds, and return the new epoch of each."""
    rows = await _TAKE.all(
        connection,
        node=node,
        partitions=sorted(partitions),
        timeout_seconds=lifetime.total_seconds(),
        outage=outage,
    )
    return dict(rows)


async def outages(connection: Connection, partitions: Iterable[int]) -> dict[int, datetime]:
    """Of partitions that had an outage: what was due before is left from it."""
    return dict(await _OUTAGES.all(connection, partitions=list(partitions)))


async def last_seq(connection: Connection, partitions: Iterable[int]) -> int:
    return await _LAST_SEQ.one(connection, partitions=list(partitions))


async def release(connection: Connection, node: str, partitions: Iterable[int]) -> None:
    await _SQL["release"].execute(connection, node=node, partitions=list(partitions))


async def leave(connection: Connection, node: str) -> None:
    await _SQL["leave"].execute(connection, node=node)


async def forget(connection: Connection) -> None:
    await _SQL["forget"].execute(connection)


async def members(connection: Connection, lifetime: timedelta) -> Sequence[NodeRow]:
    return await _MEMBERS.all(connection, timeout_seconds=lifetime.total_seconds())


async def last_seen(connection: Connection, now_at: datetime) -> datetime | None:
    """The newest heartbeat of any node up to now."""
    return await _LAST_SEEN.one_or_none(connection, now_at=now_at)


async def unheld(connection: Connection, lifetime: timedelta) -> int:
    """How many partitions no live node holds."""
    return await _UNHELD.one(connection, timeout_seconds=lifetime.total_seconds())


async def partition_holders(connection: Connection) -> list[PartitionHolder]:
    return await _PARTITION_HOLDERS.all(connection)


@asynccontextmanager
async def only_janitor(pool: Pool) -> AsyncIterator[bool]:
    """Take the lock of the one janitor at work, and hold it for as long as the context lasts. False: another has it.

    The connection that holds the lock does nothing else: the work itself is done in short transactions on others.
    """
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        is_ours = await _LOCK_JANITOR.one(connection, lock=_JANITOR_LOCK)
        # The driver leaves a statement's snapshot in place until the next one, and that would hold up vacuum.
        await connection.execute("SELECT")
        yield is_ours
