"""Diagnostics: the facts behind `evertick doctor` and the status of the engine."""

from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.database import Pool
from evertick.store.statements import Connection


class ServerFacts(NamedTuple):
    """What the server says about itself."""

    version: str
    clock_at: datetime
    most_connections: int
    connections: int


class OldestSnapshot(NamedTuple):
    """What keeps vacuum from removing rows: for how long, unless it is a slot, and for how many transactions."""

    pid: int | None
    what: str
    seconds: float | None
    transactions: int


class StuckLeases(NamedTuple):
    leases: int
    oldest_at: datetime | None
    now_at: datetime


class OldestDueTimer(NamedTuple):
    job_id: int
    due_at: datetime
    now_at: datetime


class ReadyQueue(NamedTuple):
    tenant: str
    queue: str
    attempts: int
    oldest_at: datetime
    now_at: datetime


class UnservedAttempts(NamedTuple):
    """Attempts that were put back and wait for a worker with their handler; '' for HTTP."""

    tenant: str
    queue: str
    handler: str
    attempts: int
    oldest_at: datetime
    now_at: datetime


class DeadTuples(NamedTuple):
    dead: int
    live: int


_SQL = statements.load("diagnostics")
_SERVER = _SQL["server"].rows(ServerFacts)
_OLDEST_SNAPSHOT = _SQL["oldest_snapshot"].rows(OldestSnapshot)
_LEASES = _SQL["leases"].values(int)
_STUCK_LEASES = _SQL["stuck_leases"].rows(StuckLeases)
_OLDEST_DUE = _SQL["oldest_due"].rows(OldestDueTimer)
_READY_QUEUES = _SQL["ready_queues"].rows(ReadyQueue)
_UNSERVED = _SQL["unserved"].rows(UnservedAttempts)
_DEAD_LETTERS = _SQL["dead_letters"].values(int)
_DEAD_TUPLES = _SQL["dead_tuples"].rows(DeadTuples)


async def server(pool: Pool) -> ServerFacts:
    return await _SERVER.one(pool)


async def oldest_snapshot(pool: Pool) -> OldestSnapshot | None:
    return await _OLDEST_SNAPSHOT.one_or_none(pool)


async def leases(pool: Pool) -> int:
    """How many leases workers have."""
    return await _LEASES.one(pool)


async def stuck_leases(pool: Pool, seconds: float) -> StuckLeases:
    """Leases that ran out more than so many seconds ago."""
    return await _STUCK_LEASES.one(pool, seconds=seconds)


async def oldest_due(pool: Pool) -> OldestDueTimer | None:
    return await _OLDEST_DUE.one_or_none(pool)


async def ready_queues(connection: Connection, most_per_lane: int) -> list[ReadyQueue]:
    return await _READY_QUEUES.all(connection, most=most_per_lane)


async def unserved(pool: Pool, seconds: float) -> list[UnservedAttempts]:
    """What was put back and has been ready for so many seconds."""
    return await _UNSERVED.all(pool, seconds=seconds)


async def dead_letters(pool: Pool, most: int) -> int:
    """How many there are, up to `most`."""
    return await _DEAD_LETTERS.one(pool, most=most)


async def dead_tuples(pool: Pool) -> DeadTuples:
    return await _DEAD_TUPLES.one(pool)
