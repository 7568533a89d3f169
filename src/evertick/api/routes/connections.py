"""Connections to message brokers, which targets use by name."""

from evertick.api.messages import AuthenticatedRequest, Response, created, no_content, ok, page
from evertick.api.operations import HandlerMode, ResponseSpec, Routes
from evertick.api.problems import Kind
from evertick.contract.connections import BrokerConnection, ConnectionCheck, ConnectionsQuery
from evertick.contract.jobs import Nothing
from evertick.domain.access import KeyRole
from evertick.domain.admission import AdmissionRequest
from evertick.usecases.tenants import connections

routes = Routes("Connections")

_NEW = ResponseSpec(
    BrokerConnection,
    "The connection, without its secrets.",
    ("Location",),
    {"get": ("get_connection", {"connection": "$response.body#/name"})},
    status=201,
)


@routes.operation("POST", "/connections", KeyRole.EDITOR, _NEW, problems=(Kind.NAME_TAKEN,), body="ConnectionRequest")
async def create_connection(request: AuthenticatedRequest, body: object) -> Response:
    """Create a connection to a message broker.

    Its secrets are stored sealed, and never shown again.
    """
    new = await connections.create(request.tenant, body, request.services.connections.seal)
    return created(new, "connections", new.name, subject=new.name)


@routes.operation(
    "GET", "/connections", KeyRole.VIEWER, ResponseSpec(list[BrokerConnection], "The connections, by name.")
)
async def list_connections(request: AuthenticatedRequest, query: ConnectionsQuery) -> Response:
    """List the connections to message brokers."""
    found = await connections.list_connections(request.tenant, limit=query.limit, cursor=query.cursor)
    return page(found, request.path, query)


@routes.operation("GET", "/connections/{connection}", KeyRole.VIEWER, ResponseSpec(BrokerConnection, "The connection."))
async def get_connection(request: AuthenticatedRequest, connection: str) -> Response:
    """Get a connection."""
    return ok(await connections.get(request.tenant, connection))


@routes.operation(
    "PUT",
    "/connections/{connection}",
    KeyRole.EDITOR,
    ResponseSpec(BrokerConnection, "The connection as it is now."),
    _NEW,
    problems=(Kind.WRONG_STATE,),
    body="ConnectionReplacement",
)
async def put_connection(request: AuthenticatedRequest, connection: str, body: object) -> Response:
    """Create a connection, or replace it by its name.

    A secret that is left out stays as it is, and an empty one is removed. Dispatchers use the new connection within
    seconds. Its type cannot change while jobs use it.
    """
    put, is_new = await connections.put(request.tenant, connection, body, request.services.connections.seal)
    return created(put, "connections", put.name, subject=put.name) if is_new else ok(put, subject=put.name)


@routes.operation(
    "DELETE",
    "/connections/{connection}",
    KeyRole.EDITOR,
    ResponseSpec(None, "It is removed.", status=204),
    problems=(Kind.WRONG_STATE,),
)
async def delete_connection(request: AuthenticatedRequest, connection: str) -> Response:
    """Remove a connection that no job uses."""
    await connections.remove(request.tenant, connection)
    return no_content(subject=connection)


@routes.operation(
    "POST",
    "/connections/{connection}:test",
    KeyRole.OPERATOR,
    ResponseSpec(ConnectionCheck, "What was found."),
    mode=HandlerMode.COMPUTATION,
    cost=AdmissionRequest(is_stored=False),
)
async def test_connection(request: AuthenticatedRequest, connection: str, body: Nothing) -> Response:  # noqa: ARG001 - it has to be empty
    """Test a connection.

    The API's process connects to the broker and authenticates, within what its egress settings allow. It sends no
    message.
    """
    async with request.services.slot_for(KeyRole.OPERATOR, request.tenant.tenant_id):
        row = await connections.row_of(request.tenant, connection)
    return ok(await request.cancel_on_disconnect(request.services.connections.check(request.tenant, row)))
