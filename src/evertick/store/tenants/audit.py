"""The audit log of changes. Called in the transaction of the change, by use cases and dispatchers."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection, columns


class AuditRecord(NamedTuple):
    """A change to record: who made it, by which operation, of what."""

    tenant_id: int
    actor: str
    action: str
    subject: str | None
    request_id: str | None


class AuditRow(NamedTuple):
    entry_id: int
    changed_at: datetime
    actor: str
    action: str
    subject: str | None
    request_id: str | None


_SQL = statements.load("audit")
_PAGE = _SQL["page"].rows(AuditRow)


async def record(connection: Connection, change: AuditRecord) -> None:
    await _SQL["record"].execute(connection, **change._asdict())


async def record_all(connection: Connection, changes: Sequence[AuditRecord]) -> None:
    names = ("tenant_ids", "actors", "actions", "subjects", "request_ids")
    await _SQL["record_all"].execute(connection, **columns(names, changes))


async def page(connection: Connection, tenant_id: int, *, before: int, most: int) -> list[AuditRow]:
    """A tenant's changes, newest first."""
    return await _PAGE.all(connection, tenant_id=tenant_id, before=before, most=most)
