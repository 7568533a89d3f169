"""Rules, queues and lanes: what jobs refer to. Read by roles, which remember them, and added by the use cases."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from evertick.domain.rate_bucket import Rate, rate_of
from evertick.store import statements
from evertick.store.statements import Connection, columns


class LaneKey(NamedTuple):
    """Where a job's attempts go: a lane by the name of its queue. `is_gated`: they wait at gates."""

    queue: str
    partition: int
    priority: int
    is_gated: bool = False


class QueueRow(NamedTuple):
    """One tenant's queue. `is_capped`: a cap of its own or of its tenant limits what runs at once."""

    queue_id: int
    tenant_id: int
    name: str
    is_capped: bool
    rate_limit: float | None
    rate_burst: int | None

    @property
    def rate(self) -> Rate | None:
        return None if self.rate_limit is None else rate_of(self.rate_limit, self.rate_burst)


class QueueLimits(NamedTuple):
    """How many attempts of a queue run at once, may wait, and start per second."""

    max_running: int
    max_ready: int
    rate_limit: float | None
    rate_burst: int | None


class QueueDepth(NamedTuple):
    """A queue, its limits, and how many of its attempts wait since when."""

    name: str
    max_running: int
    max_ready: int
    rate_limit: float | None
    rate_burst: int | None
    ready: int
    oldest_due_at: datetime | None
    is_full: bool


NO_CAP = 2**31 - 1


class _Rule(NamedTuple):
    rule_id: int
    canonical: str


class ReferredIds(NamedTuple):
    """What a job refers to; None for what is not there."""

    rule_id: int | None
    queue_id: int | None


_SQL = statements.load("references")
_RULES = _SQL["rules"].rows(_Rule)
_QUEUES = _SQL["queues"].rows(QueueRow)
_QUEUE_PAGE = _SQL["queue_page"].rows(QueueDepth)
_REFERRED = _SQL["referred"].rows(ReferredIds)
_QUEUES_WITH = _SQL["queues_with"].values(int)


async def rules(connection: Connection, rule_ids: Iterable[int]) -> dict[int, str]:
    """The canonical text of each rule."""
    return dict(await _RULES.all(connection, rule_ids=list(rule_ids)))


async def queues(connection: Connection, names: Iterable[str], tenant_id: int | None = None) -> list[QueueRow]:
    """The queues of these names; of every tenant if none is given."""
    return await _QUEUES.all(connection, names=list(names), tenant_id=tenant_id)


async def queue_page(
    connection: Connection, tenant_id: int, *, after: str = "", only: str | None = None, most: int = 1
) -> list[QueueDepth]:
    """A tenant's queues in the order of their names: all, or one alone."""
    return await _QUEUE_PAGE.all(connection, tenant_id=tenant_id, after=after, only=only, most=most)


async def limit_queue(connection: Connection, tenant_id: int, name: str, limits: QueueLimits) -> None:
    """Set the limits of a queue, which is added if it is not there."""
    await _SQL["add_queues"].execute(connection, tenant_id=tenant_id, names=[name])
    await _SQL["limit_queue"].execute(connection, tenant_id=tenant_id, name=name, **limits._asdict())


async def add_rules(connection: Connection, canonicals: Mapping[bytes, str]) -> None:
    await _SQL["add_rules"].execute(connection, digests=list(canonicals), canonicals=list(canonicals.values()))


async def referred(connection: Connection, tenant_id: int, digest: bytes, queue: str) -> ReferredIds:
    return await _REFERRED.one(connection, tenant_id=tenant_id, digest=digest, queue=queue)


async def queues_with(connection: Connection, tenant_id: int, names: Collection[str]) -> int:
    """How many queues a tenant would have together with these."""
    return await _QUEUES_WITH.one(connection, tenant_id=tenant_id, names=list(names))


async def add_lanes(connection: Connection, tenant_id: int, lanes: Collection[LaneKey]) -> None:
    """Add the queues and lanes that are not there yet."""
    names = {lane.queue for lane in lanes}
    await _SQL["add_queues"].execute(connection, tenant_id=tenant_id, names=list(names))
    # A statement of its own: a queue that another transaction has just added is visible only now.
    values = columns(("queues", "partitions", "priorities", "gated"), list(lanes))
    await _SQL["add_lanes"].execute(connection, tenant_id=tenant_id, **values)
