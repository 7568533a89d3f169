"""A tenant's stream of events: switching it on and off, its sink, and reading it."""

from collections.abc import Collection

import msgspec

from evertick.contract.broker_targets import BrokerAddress, check_connection
from evertick.contract.events import EventStream, EventStreamRequest, Sink, SinkStatus
from evertick.domain.errors import InvalidInput
from evertick.domain.events import PUBLIC, EventType
from evertick.domain.ids import MAX_ID
from evertick.domain.schedule.instants import SECOND_US, to_us
from evertick.runtime.events import EventPage, read_page
from evertick.store.database import Session
from evertick.store.tenants import broker_connections, events, tenants
from evertick.store.tenants.broker_connections import ConnectionKey
from evertick.store.tenants.events import Range, StreamRow
from evertick.usecases.context import TenantContext, checked_cursor
from evertick.usecases.errors import EventStreamNotFound

MAX_PAGE = 1000


async def get_stream(tenant: TenantContext) -> EventStream:
    """The tenant's stream, or EventStreamNotFound."""
    return _stream_of(await _row(tenant))


async def put_stream(tenant: TenantContext, given: EventStreamRequest) -> EventStream:
    """Keep events from now on, and send them to the sink, if there is one. A stream that is there goes on."""
    if given.all_tenants:
        row = await tenants.find(tenant.pool, tenant.tenant_id)
        if row is None or not row.is_host:
            raise InvalidInput("all_tenants", "is for the hosting tenant alone")

    async def work(session: Session) -> None:
        await events.put_stream(session, tenant.tenant_id, is_of_all=given.all_tenants)
        if given.sink is None:
            await events.remove_sink(session, tenant.tenant_id)
        else:
            await _check_sink(session, tenant.tenant_id, given.sink)
            types = None if given.types is None else sorted({str(kind) for kind in given.types})
            await events.put_sink(session, tenant.tenant_id, msgspec.json.encode(given.sink).decode(), types)

    await tenant.in_transaction(work)
    return await get_stream(tenant)


async def _check_sink(session: Session, tenant_id: int, sink: Sink) -> None:
    """Refuse a sink whose connection does not exist. One that does is locked, so that it is not removed meanwhile."""
    if isinstance(sink, BrokerAddress):
        await broker_connections.lock(session, ConnectionKey(tenant_id, sink.connection))
        check_connection(sink, await broker_connections.types(session, tenant_id), "/sink/connection")


async def remove_stream(tenant: TenantContext) -> None:
    """Keep no more events, and send none."""
    if not await events.remove_stream(tenant.pool, tenant.tenant_id):
        raise EventStreamNotFound


async def read(
    tenant: TenantContext,
    *,
    after: int | None = None,
    until: int | None = None,
    types: Collection[EventType] = PUBLIC,
    limit: int = MAX_PAGE,
) -> EventPage:
    """The events after a position, or all that are kept, up to another or all that there are; oldest first."""
    row = await _row(tenant)
    start = row.kept_after if after is None else after
    end = row.last_position if until is None else until
    wanted = Range(tenant.tenant_id, start, max(start, end), [str(kind) for kind in types])
    return await read_page(tenant.pool, wanted, limit)


def position_of(cursor: str | None) -> int | None:
    """The position that a cursor names."""
    return None if cursor is None else checked_cursor(cursor, _read_position)


def _read_position(text: str) -> int:
    position = int(text)
    if not 0 <= position <= MAX_ID:
        raise ValueError(text)
    return position


async def _row(tenant: TenantContext) -> StreamRow:
    row = await events.stream(tenant.pool, tenant.tenant_id)
    if row is None:
        raise EventStreamNotFound
    return row


def _stream_of(row: StreamRow) -> EventStream:
    return EventStream(
        created_at=row.created_at,
        all_tenants=row.is_of_all,
        sink=None if row.target is None else msgspec.json.decode(row.target),
        types=None if row.types is None else tuple(row.types),
        status=_status_of(row),
    )


def _status_of(row: StreamRow) -> SinkStatus | None:
    if row.cursor is None or row.failures is None:
        return None
    waiting = None if row.waiting_from is None else max(0, to_us(row.now_at) - row.waiting_from) / SECOND_US
    return SinkStatus(
        cursor=str(row.cursor),
        lag_seconds=waiting or 0.0,
        delivered_at=row.delivered_at,
        failing_since=row.failing_since,
        failures=row.failures,
        last_error=row.last_error,
        next_try_at=row.next_try_at if row.failing_since is not None else None,
    )
