"""Tenants: owners of jobs, quota and fair share. Called by the use cases."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection

_SQL = statements.load("tenants")


class TenantRow(NamedTuple):
    """A tenant. `weight` is its fair share, `fanout` over how many partitions its jobs spread.

    `is_host`: its admins see to all tenants.
    """

    tenant_id: int
    name: str
    weight: int
    fanout: int
    created_at: datetime
    jobs_quota: int
    submits_per_second: int
    submit_burst: int
    running_quota: int
    ready_quota: int
    shortest_interval_seconds: float
    http_timeout_max_seconds: int
    storage_quota_bytes: int
    is_host: bool


EDITABLE = (
    "weight",
    "fanout",
    "jobs_quota",
    "submits_per_second",
    "submit_burst",
    "running_quota",
    "ready_quota",
    "shortest_interval_seconds",
    "http_timeout_max_seconds",
    "storage_quota_bytes",
)


async def add(connection: Connection, name: str, *, weight: int, fanout: int) -> TenantRow | None:
    """Add a tenant. None: the name is taken."""
    row = await _SQL["add"].fetchrow(connection, name=name, weight=weight, fanout=fanout)
    return None if row is None else TenantRow(*row)


async def find(connection: Connection, tenant_id: int) -> TenantRow | None:
    row = await _SQL["find"].fetchrow(connection, tenant_id=tenant_id)
    return None if row is None else TenantRow(*row)


async def named(connection: Connection, name: str) -> TenantRow | None:
    row = await _SQL["named"].fetchrow(connection, name=name)
    return None if row is None else TenantRow(*row)


class TenantQueue(NamedTuple):
    """A tenant's queue, and how long one of its webhooks may take."""

    queue_id: int
    tenant_id: int
    http_timeout_max_seconds: int


async def count(connection: Connection) -> int:
    found: int = await _SQL["count"].fetchval(connection)
    return found


async def of_queue(connection: Connection, name: str) -> list[TenantQueue]:
    """The queues of a name, of every tenant that has one."""
    return [TenantQueue(*row) for row in await _SQL["of_queue"].fetch(connection, name=name)]


async def all_tenants(connection: Connection) -> list[TenantRow]:
    return [TenantRow(*row) for row in await _SQL["all"].fetch(connection)]


async def page(connection: Connection, *, only: int | None, after: int, most: int) -> list[TenantRow]:
    """Tenants in the order of their ids: all, or one alone."""
    return [TenantRow(*row) for row in await _SQL["page"].fetch(connection, only=only, after=after, most=most)]


async def edit(connection: Connection, tenant_id: int, changes: Mapping[str, float]) -> TenantRow | None:
    """Change the given fields, by their names here. None: there is no such tenant."""
    values = {name: changes.get(name) for name in EDITABLE}
    row = await _SQL["edit"].fetchrow(connection, tenant_id=tenant_id, **values)
    return None if row is None else TenantRow(*row)
