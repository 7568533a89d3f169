"""The audit log, for admins."""

from evertick.api.operations import Call, Section, Shown
from evertick.api.responses import Answer, page
from evertick.api.shapes import ChangesQuery
from evertick.domain.access import KeyRole
from evertick.usecases import audit
from evertick.usecases.audit import Entry

section = Section("Audit")


@section.operation(
    "GET", "/audit-log", KeyRole.ADMIN, answers={200: Shown(list[Entry], "The changes, newest first.", ("Link",))}
)
async def list_changes(call: Call, query: ChangesQuery) -> Answer:
    """List changes: who did what to which, and when."""
    found = await audit.list_changes(call.tenant, limit=query.limit, cursor=query.cursor)
    return page(found, call.path, query)
