"""Health: the facts that `evertick doctor` judges."""

from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.database import Pool

_SQL = statements.load("health")


class Server(NamedTuple):
    """The server as such, by its own words."""

    version: str
    clock_at: datetime
    most_connections: int
    connections: int


class Snapshot(NamedTuple):
    """Who keeps vacuum from its work, for how long and for how many transactions. A slot's age in time is not known."""

    pid: int | None
    what: str
    seconds: float | None
    transactions: int


class StuckLeases(NamedTuple):
    leases: int
    oldest_at: datetime | None
    now_at: datetime


class OldestDue(NamedTuple):
    job_id: int
    due_at: datetime
    now_at: datetime


class ReadyQueue(NamedTuple):
    tenant: str
    queue: str
    attempts: int
    oldest_at: datetime
    now_at: datetime


class Unserved(NamedTuple):
    """Attempts that were put back and wait for somebody who has their handler; '' for HTTP."""

    tenant: str
    queue: str
    handler: str
    attempts: int
    oldest_at: datetime
    now_at: datetime


class Tuples(NamedTuple):
    dead: int
    live: int


async def server(pool: Pool) -> Server:
    row = await _SQL["server"].fetchrow(pool)
    assert row is not None
    return Server(*row)


async def oldest_snapshot(pool: Pool) -> Snapshot | None:
    row = await _SQL["oldest_snapshot"].fetchrow(pool)
    return None if row is None else Snapshot(*row)


async def stuck_leases(pool: Pool, seconds: float) -> StuckLeases:
    """Leases that ran out more than so many seconds ago."""
    row = await _SQL["stuck_leases"].fetchrow(pool, seconds=seconds)
    assert row is not None
    return StuckLeases(*row)


async def oldest_due(pool: Pool) -> OldestDue | None:
    row = await _SQL["oldest_due"].fetchrow(pool)
    return None if row is None else OldestDue(*row)


async def ready_queues(pool: Pool, most_per_lane: int) -> list[ReadyQueue]:
    return [ReadyQueue(*row) for row in await _SQL["ready_queues"].fetch(pool, most=most_per_lane)]


async def unserved(pool: Pool, seconds: float) -> list[Unserved]:
    """What was put back and has been ready for so many seconds."""
    return [Unserved(*row) for row in await _SQL["unserved"].fetch(pool, seconds=seconds)]


async def dead_letters(pool: Pool, most: int) -> int:
    """How many there are, up to `most`."""
    count: int = await _SQL["dead_letters"].fetchval(pool, most=most)
    return count


async def dead_tuples(pool: Pool) -> Tuples:
    row = await _SQL["dead_tuples"].fetchrow(pool)
    assert row is not None
    return Tuples(*row)
