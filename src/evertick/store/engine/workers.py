"""Workers and dispatchers: who serves which queues and handlers. Written with heartbeats, read by the use cases."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection, columns

MAX_ROWS = 1000
"""Of the workers of one tenant that pull over HTTP: they choose their names themselves."""
KEPT = timedelta(minutes=10)
"""After it was last alive."""


class WorkerRow(NamedTuple):
    """A worker on one of its queues. `handlers` of None: any."""

    name: str
    queue: str
    role: str
    version: str | None
    handlers: list[str] | None
    started_at: datetime
    seen_at: datetime
    is_alive: bool
    finished_per_second: float | None


class Announcement(NamedTuple):
    """What a worker with its own connection serves, of one tenant or of all, and the app whose handlers it runs."""

    worker: str
    role: str
    version: str
    queues: Sequence[str]
    handlers: Sequence[str] | None
    tenant_id: int | None
    app: str | None = None
    app_digest: bytes | None = None
    finished_per_second: float | None = None


class PullingWorker(NamedTuple):
    """A worker that asked an API process for attempts of a queue. `handlers`: a JSON array; None: any."""

    tenant_id: int
    worker: str
    queue: str
    handlers: str | None


class ServedHandler(NamedTuple):
    """How many workers serve a handler of a queue; None: any handler, or with `is_total` the queue."""

    queue: str
    handler: str | None
    workers: int
    is_total: bool


class SeenHandler(NamedTuple):
    """A handler that jobs of a queue name."""

    queue: str
    handler: str


class AliveRole(NamedTuple):
    """How many workers of a role are alive, and the queues that they serve."""

    role: str
    workers: int
    queues: list[str]


class IdleQueue(NamedTuple):
    """A queue with attempts that wait, which no worker serves."""

    tenant: str
    queue: str
    attempts: int
    oldest_at: datetime


_SQL = statements.load("workers")
_PAGE = _SQL["page"].rows(WorkerRow)
_SERVING = _SQL["serving"].rows(ServedHandler)
_HANDLERS_SEEN = _SQL["handlers_seen"].rows(SeenHandler)
_ALIVE = _SQL["alive"].rows(AliveRole)
_IDLE_QUEUES = _SQL["idle_queues"].rows(IdleQueue)


async def announce(connection: Connection, served: Announcement, lifetime: timedelta) -> None:
    """Say what a worker serves. It counts as alive for `lifetime`."""
    await _SQL["announce"].execute(connection, seconds=lifetime.total_seconds(), **served._asdict())


async def note(connection: Connection, pulling: Sequence[PullingWorker], lifetime: timedelta) -> None:
    """Say what workers serve that asked an API process for attempts."""
    names = ("tenant_ids", "workers", "queues", "handlers")
    seconds = lifetime.total_seconds()
    await _SQL["note"].execute(connection, seconds=seconds, most=MAX_ROWS, **columns(names, pulling))


async def note_heartbeats(connection: Connection, workers: Iterable[str], lifetime: timedelta) -> None:
    """These workers still serve what they served."""
    await _SQL["note_heartbeats"].execute(connection, workers=list(workers), seconds=lifetime.total_seconds())


async def leave(connection: Connection, worker: str) -> None:
    await _SQL["leave"].execute(connection, worker=worker)


async def forget(connection: Connection) -> None:
    await _SQL["forget"].execute(connection, seconds=KEPT.total_seconds())


async def page(connection: Connection, tenant_id: int, *, after: str, most: int) -> list[WorkerRow]:
    """The first workers after a name that serve a tenant, `most` of them, queue by queue."""
    return await _PAGE.all(connection, tenant_id=tenant_id, after=after, most=most)


async def serving(connection: Connection, tenant_id: int) -> list[ServedHandler]:
    """What is served for a tenant right now."""
    return await _SERVING.all(connection, tenant_id=tenant_id)


async def handlers_seen(connection: Connection, tenant_id: int, most: int) -> list[SeenHandler]:
    """The handlers that the tenant's newest jobs name, `most` of them, and those of attempts that were put back."""
    return await _HANDLERS_SEEN.all(connection, tenant_id=tenant_id, most=most)


async def alive(connection: Connection) -> list[AliveRole]:
    """Who is alive, of all tenants."""
    return await _ALIVE.all(connection)


async def idle_queues(connection: Connection, seconds: float) -> list[IdleQueue]:
    """Queues of all tenants with attempts that have waited for so long although no worker serves the queue."""
    return await _IDLE_QUEUES.all(connection, seconds=seconds)
