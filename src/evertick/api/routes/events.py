"""The event stream of a tenant: reading it page by page or as it happens, and its sink."""

from dataclasses import replace

from evertick.api.event_readers import PAGE, StreamSpec, TooManyStreams
from evertick.api.messages import EVENT_CURSOR, LAST_EVENT_ID, AuthenticatedRequest, Response, no_content, ok, page
from evertick.api.operations import ResponseSpec, Routes
from evertick.api.problems import HttpProblem, Kind, over_limit
from evertick.contract.events import EVENT_STREAM, Event, EventsQuery, EventStream, EventStreamRequest
from evertick.domain.access import KeyRole, allows
from evertick.domain.events import PUBLIC, STORED, EventType
from evertick.domain.limits import QuotaName
from evertick.runtime.events import EventPage
from evertick.usecases.context import Page
from evertick.usecases.jobs import costs
from evertick.usecases.tenants import events

routes = Routes("Events")
RETRY_SECONDS = 5


@routes.operation(
    "GET",
    "/events",
    KeyRole.VIEWER,
    ResponseSpec(list[Event], "The events, oldest first.", headers=(EVENT_CURSOR,), also={EVENT_STREAM: "EventLines"}),
    problems=(Kind.NOT_FOUND,),
    headers=(LAST_EVENT_ID,),
)
async def list_events(request: AuthenticatedRequest, query: EventsQuery) -> Response:
    """Read events.

    With `Accept: text/event-stream` they are sent as they happen, until the client disconnects. Otherwise the answer is
    a page. The last one has no Link to another: later, go on with its header `Evertick-Cursor` as `cursor`.

    Events of the type `audit.recorded` need the role admin, and are left out for others.
    """
    types = _types(request, query)
    if EVENT_STREAM in request.headers.get("accept", ""):
        return await _stream(request, query, types)
    found = await events.read(request.tenant, after=events.position_of(query.cursor), types=types, limit=query.limit)
    response = page(Page(tuple(found.events), None if found.is_last else str(found.cursor)), request.path, query)
    # Also past events of other types: a poller of a rare one would look at them again and again.
    response.headers[EVENT_CURSOR] = str(found.cursor)
    return response


def _types(request: AuthenticatedRequest, query: EventsQuery) -> tuple[EventType, ...]:
    allowed = STORED if allows(request.caller.role, KeyRole.ADMIN) else PUBLIC
    if refused := set(query.types) & set(STORED) - set(allowed):
        raise HttpProblem(Kind.FORBIDDEN, f"events of the type {', '.join(refused)} need the role {KeyRole.ADMIN}")
    return tuple(kind for kind in allowed if kind in query.types or not query.types)


async def _stream(request: AuthenticatedRequest, query: EventsQuery, types: tuple[EventType, ...]) -> Response:
    services, tenant = request.services, request.tenant
    after = events.position_of(request.headers.get(LAST_EVENT_ID.lower()) or query.cursor)
    await events.get_stream(tenant)
    tenant = replace(tenant, pool=services.pool)

    async def read(after: int | None, until: int) -> EventPage:
        async with services.slot_for(KeyRole.VIEWER, tenant.tenant_id):
            return await events.read(tenant, after=after, until=until, types=types, limit=PAGE)

    try:
        stream = services.event_readers.open(StreamSpec(tenant.tenant_id, request.caller.key_id, types, after), read)
    except TooManyStreams as full:
        raise over_limit(QuotaName.EVENT_STREAMS, str(full), RETRY_SECONDS) from None
    return Response(200, headers={"X-Accel-Buffering": "no"}, media_type=EVENT_STREAM, stream=stream)


@routes.operation(
    "GET",
    "/events/stream",
    KeyRole.VIEWER,
    ResponseSpec(EventStream, "The stream, and how far its sink is."),
    problems=(Kind.NOT_FOUND,),
)
async def get_event_stream(request: AuthenticatedRequest) -> Response:
    """Get the event stream."""
    return ok(await events.get_stream(request.tenant))


@routes.operation(
    "PUT",
    "/events/stream",
    KeyRole.ADMIN,
    ResponseSpec(EventStream, "The stream as it is now."),
    cost=costs.OF_CHANGE,
)
async def put_event_stream(request: AuthenticatedRequest, body: EventStreamRequest) -> Response:
    """Set the event stream.

    From now on the tenant's events are kept, and sent to the sink, if there is one. A stream that is there already goes
    on where it is, also to another sink.
    """
    return ok(await events.put_stream(request.tenant, body))


@routes.operation(
    "DELETE",
    "/events/stream",
    KeyRole.ADMIN,
    ResponseSpec(None, "It is removed.", status=204),
    problems=(Kind.NOT_FOUND,),
)
async def delete_event_stream(request: AuthenticatedRequest) -> Response:
    """Remove the event stream.

    No more events are kept, and none are sent.
    """
    await events.remove_stream(request.tenant)
    return no_content()
