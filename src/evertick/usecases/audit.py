"""The audit log: who changed what, and when. Written in the transaction of the change, read by admins."""

from evertick.contract.access import AuditEntry
from evertick.domain.ids import MAX_ID
from evertick.store.tenants import audit
from evertick.store.tenants.audit import AuditRecord, AuditRow
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, TenantContext, checked_cursor, checked_limit, page_of


async def record(
    tenant: TenantContext, actor: str, action: str, subject: str | None = None, request_id: str | None = None
) -> None:
    """Record a change."""
    await audit.record(tenant.pool, AuditRecord(tenant.tenant_id, actor, action, subject, request_id))


async def list_changes(
    tenant: TenantContext, *, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[AuditEntry]:
    """The tenant's changes, newest first."""
    most = checked_limit(limit)
    before = MAX_ID if cursor is None else checked_cursor(cursor, _read_position)
    rows = await audit.page(tenant.pool, tenant.tenant_id, before=before, most=most + 1)
    found = page_of(rows, most, lambda row: str(row.entry_id))
    return Page(tuple(map(_entry_of, found.items)), found.next)


def _entry_of(row: AuditRow) -> AuditEntry:
    return AuditEntry(**{name: getattr(row, name) for name in AuditEntry.__struct_fields__})


def _read_position(text: str) -> int:
    position = int(text)
    if not 0 <= position <= MAX_ID:
        raise ValueError(text)
    return position
