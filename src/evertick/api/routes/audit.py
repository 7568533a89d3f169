"""The audit log, for admins."""

from evertick.api.operations import ResponseSpec, Routes
from evertick.api.requests import AuthenticatedRequest
from evertick.api.responses import Response, page
from evertick.contract.access import AuditEntry, ChangesQuery
from evertick.domain.access import KeyRole
from evertick.usecases import audit

routes = Routes("Audit")


@routes.operation(
    "GET",
    "/audit-log",
    KeyRole.ADMIN,
    responses={200: ResponseSpec(list[AuditEntry], "The changes, newest first.", ("Link",))},
)
async def list_changes(request: AuthenticatedRequest, query: ChangesQuery) -> Response:
    """List changes: who did what to which, and when."""
    found = await audit.list_changes(request.tenant, limit=query.limit, cursor=query.cursor)
    return page(found, request.path, query)
