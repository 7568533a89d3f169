"""Ready work, counted: how full queues are, for schedulers, and how loaded the system is, for admission."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from evertick.domain.backpressure import ReadyDepth
from evertick.store import statements
from evertick.store.statements import Connection


class InLanes(NamedTuple):
    """How many attempts of a queue wait in its lanes."""

    queue_id: int
    attempts: int


class ReadyLoad(NamedTuple):
    """How many attempts wait in all queues, and the tenants with the most of them, if there are many."""

    ready: int
    tenant_ids: Sequence[int]


class QueueDepth(NamedTuple):
    """How many attempts wait in queues of one name, and for how long the oldest was due. None: all other names."""

    name: str | None
    attempts: int
    oldest_seconds: float


_SQL = statements.load("ready")
_QUEUE_DEPTHS = _SQL["queue_depths"].rows(QueueDepth)
_DEPTHS = _SQL["depths"].rows(ReadyDepth)
_IN_LANES = _SQL["in_lanes"].rows(InLanes)
_LOAD = _SQL["load"].rows(ReadyLoad)


async def depths(connection: Connection) -> list[ReadyDepth]:
    """The queues whose limits may be reached soon."""
    return await _DEPTHS.all(connection)


async def in_lanes(connection: Connection, queue_ids: Sequence[int]) -> dict[int, int]:
    """How many attempts wait in the lanes of these queues; of those that are left out, none."""
    return {row.queue_id: row.attempts for row in await _IN_LANES.all(connection, queue_ids=queue_ids)}


async def queue_depths(connection: Connection, names: Iterable[str], most: int) -> list[QueueDepth]:
    """What waits in queues of these names, of `most` others, and in all the rest together."""
    return await _QUEUE_DEPTHS.all(connection, names=list(names), most=most)


async def load(connection: Connection, least: int) -> ReadyLoad:
    """The load of the system. `tenant_ids` are those with at least their part of it, if `least` attempts wait."""
    return await _LOAD.one(connection, least=least)
