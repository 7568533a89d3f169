"""The audit log: who changed what. Called in the transaction of the change, by use cases and dispatchers."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection

_SQL = statements.load("audit")


class Change(NamedTuple):
    """One change: who made it, by which operation, of what."""

    tenant_id: int
    actor: str
    action: str
    subject: str | None
    request_id: str | None


class ChangeRow(NamedTuple):
    entry_id: int
    changed_at: datetime
    actor: str
    action: str
    subject: str | None
    request_id: str | None


async def record(connection: Connection, change: Change) -> None:
    await _SQL["record"].execute(connection, **change._asdict())


async def record_all(connection: Connection, changes: Sequence[Change]) -> None:
    names = ("tenant_ids", "actors", "actions", "subjects", "request_ids")
    await _SQL["record_all"].execute(connection, **dict(zip(names, zip(*changes, strict=True), strict=True)))


async def page(connection: Connection, tenant_id: int, *, before: int, most: int) -> list[ChangeRow]:
    """A tenant's changes, newest first."""
    rows = await _SQL["page"].fetch(connection, tenant_id=tenant_id, before=before, most=most)
    return [ChangeRow(*row) for row in rows]
