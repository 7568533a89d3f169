"""The event stream: positions of events, pages of them, streams and their sinks.

Called by janitors, dispatchers and use cases.
"""

from collections.abc import Sequence
from datetime import date, datetime
from typing import NamedTuple

import asyncpg

from evertick.store import statements
from evertick.store.database import Pool
from evertick.store.jobs.runs import RunRow
from evertick.store.maintenance.ledgers import briefly_locking
from evertick.store.statements import Connection, columns


class EventRow(NamedTuple):
    """An event. What it has depends on its type; `fire_at` is that of a run, or the first tick of a gap."""

    position: int
    tenant_id: int
    type: str
    at: datetime
    job_id: int | None
    fire_at: datetime | None
    last_at: datetime | None
    ticks: int | None
    lane_id: int | None
    seq: int | None
    spec_version: int | None
    detail: str | None
    name: str | None
    spec: str | None
    actor: str | None
    action: str | None
    subject: str | None
    request_id: str | None


class EventAttempt(NamedTuple):
    """An attempt of the run that an event is about."""

    position: int
    run: RunRow
    due_at: datetime | None
    excerpt: str | None


class FinishedRun(NamedTuple):
    """The run of an event, and between which seqs its attempts are; without a `last_seq` it was withdrawn."""

    position: int
    job_id: int
    fire_at: datetime
    from_seq: int
    last_seq: int | None


class StreamRow(NamedTuple):
    """A stream: events after `kept_after` are there. It has a sink if it has a target."""

    created_at: datetime
    is_of_all: bool
    kept_after: int
    last_position: int
    target: str | None
    types: list[str] | None
    cursor: int | None
    latest: int | None
    delivered_at: datetime | None
    failing_since: datetime | None
    failures: int | None
    last_error: str | None
    next_try_at: datetime | None
    waiting_from: int | None
    now_at: datetime


class LeasedSink(NamedTuple):
    """A sink to send to, under an epoch, from its cursor on."""

    tenant_id: int
    epoch: int
    cursor: int
    latest: int
    failures: int
    types: list[str] | None
    target: str
    is_of_all: bool


class Reached(NamedTuple):
    """How far the stream reaches, and whether a tenant has events after its position."""

    tenant_id: int
    last_position: int
    has_more: bool


class Lag(NamedTuple):
    """How far the stream and its sinks are behind, with a sink that fails, the one that has done so for longest."""

    sinks_behind: int
    sinks_failing: int
    unplaced_seconds: float
    failing_tenant_id: int | None
    last_error: str | None


class Range(NamedTuple):
    """Which events: of a tenant, or of all, after a position and up to another, of these types (None: all)."""

    tenant_id: int
    after: int
    until: int
    types: Sequence[str] | None = None
    is_of_all: bool = False


_SQL = statements.load("events")
_LAST_DRAWN = _SQL["last_drawn"].values(int)
_LOCK_POSITIONS = _SQL["lock_positions"].values(bool)
_HAS_NEW = _SQL["has_new"].values(bool)
_GIVE_POSITIONS = _SQL["give_positions"].values(int)
_MISSING_DAYS = _SQL["missing_days"].values(date)
_EXPIRED_DAYS = _SQL["expired_days"].values(date)
_PAGE = _SQL["page"].rows(EventRow)
_LOOKED_UNTIL = _SQL["looked_until"].values(int)
_RUNS = _SQL["runs"].rows(EventAttempt)
_STREAM = _SQL["stream"].rows(StreamRow)
_KEPT_AFTER = _SQL["kept_after"].values(int)
_REMOVE_STREAM = _SQL["remove_stream"].values(int)
_LEASE_SINKS = _SQL["lease_sinks"].rows(LeasedSink)
_ADVANCE = _SQL["advance"].values(int)
_REACHED = _SQL["reached"].rows(Reached)
_LAG = _SQL["lag"].rows(Lag)


async def give_positions(pool: Pool, most: int) -> int:
    """Move up to so many new events to the stream; how many. None are moved while another session does."""
    if not await _HAS_NEW.one(pool):
        return 0
    for day in await _MISSING_DAYS.all(pool):
        await _add_day(pool, day)
    async with pool.acquire() as connection, connection.transaction():
        drawn = await _LAST_DRAWN.one(connection)  # first of all: see `give_positions`
        if await _LOCK_POSITIONS.one_or_none(connection) is None:
            return 0
        return await _GIVE_POSITIONS.one(connection, most=most, drawn=drawn)


async def _add_day(pool: Pool, day: date) -> None:
    try:
        async with briefly_locking(pool) as connection:
            await _SQL["add_day"].execute(connection, day=day)
    except (asyncpg.DuplicateTableError, asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
        pass  # another session has added it


async def drop_days(pool: Pool, before_at: datetime) -> int:
    """Drop the days of events that ended before an instant; how many. A locked one is left for another time."""
    dropped = 0
    for day in await _EXPIRED_DAYS.all(pool, before_at=before_at):
        try:
            async with briefly_locking(pool) as connection:
                await _SQL["drop_day"].execute(connection, day=day)
        except asyncpg.LockNotAvailableError:
            continue
        dropped += 1
    return dropped


async def page(connection: Connection, wanted: Range, most: int) -> list[EventRow]:
    """Events in the order of their positions."""
    return await _PAGE.all(connection, **wanted._asdict(), most=most)


async def looked_until(connection: Connection, wanted: Range, most: int) -> int:
    """Up to which position of a range so many events lie, whatever their types."""
    fields = wanted._asdict()
    del fields["types"]
    return await _LOOKED_UNTIL.one(connection, **fields, most=most)


async def runs(connection: Connection, finished: Sequence[FinishedRun]) -> list[EventAttempt]:
    """The attempts of finished runs, each in order."""
    names = ("positions", "job_ids", "fire_ats", "from_seqs", "last_seqs")
    return await _RUNS.all(connection, **columns(names, finished))


async def stream(connection: Connection, tenant_id: int) -> StreamRow | None:
    return await _STREAM.one_or_none(connection, tenant_id=tenant_id)


async def kept_after(connection: Connection, tenant_id: int) -> int | None:
    """After which position a tenant's events are kept; None: it has no stream."""
    return await _KEPT_AFTER.one_or_none(connection, tenant_id=tenant_id)


async def put_stream(connection: Connection, tenant_id: int, *, is_of_all: bool) -> None:
    await _SQL["put_stream"].execute(connection, tenant_id=tenant_id, is_of_all=is_of_all)


async def remove_stream(connection: Connection, tenant_id: int) -> bool:
    """Keep no more events, and send none. False: there is no stream."""
    return await _REMOVE_STREAM.one_or_none(connection, tenant_id=tenant_id) is not None


async def put_sink(connection: Connection, tenant_id: int, target: str, types: Sequence[str] | None) -> None:
    await _SQL["put_sink"].execute(connection, tenant_id=tenant_id, target=target, types=types)


async def remove_sink(connection: Connection, tenant_id: int) -> None:
    await _SQL["remove_sink"].execute(connection, tenant_id=tenant_id)


async def lease_sinks(connection: Connection, lease_seconds: float, most: int) -> list[LeasedSink]:
    """Sinks that are behind and that nobody sends to."""
    return await _LEASE_SINKS.all(connection, lease_seconds=lease_seconds, most=most)


async def advance(connection: Connection, sink: LeasedSink, cursor: int, lease_seconds: float) -> int | None:
    """Note what was delivered; the position of the last event that there is. None: another has the lease."""
    return await _ADVANCE.one_or_none(
        connection, tenant_id=sink.tenant_id, epoch=sink.epoch, cursor=cursor, lease_seconds=lease_seconds
    )


async def release(connection: Connection, sink: LeasedSink, wait_seconds: float = 0, error: str | None = None) -> None:
    """Give a lease back; after an error, the next try comes after a pause."""
    await _SQL["release"].execute(
        connection, tenant_id=sink.tenant_id, epoch=sink.epoch, wait_seconds=wait_seconds, error=error
    )


async def reached(connection: Connection, afters: Sequence[tuple[int, int]]) -> list[Reached]:
    """For each of these tenants, whether it has events after a position of its own."""
    return await _REACHED.all(connection, **columns(("tenant_ids", "afters"), afters))


async def lag(connection: Connection) -> Lag:
    return await _LAG.one(connection)
