"""Tenants: owners of jobs, quota and fair share. Called by the use cases."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from evertick.contract.access import TenantPatch
from evertick.store import statements
from evertick.store.statements import Connection


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


class TenantQueue(NamedTuple):
    """A tenant's queue that dispatchers serve."""

    queue_id: int
    tenant_id: int


class TenantLimits(NamedTuple):
    """A tenant's fair share, and how long one of its webhooks may take."""

    tenant_id: int
    weight: int
    http_timeout_max_seconds: int


class _Weight(NamedTuple):
    tenant_id: int
    weight: int


_SQL = statements.load("tenants")
_ADD = _SQL["add"].rows(TenantRow)
_FIND = _SQL["find"].rows(TenantRow)
_NAMED = _SQL["named"].rows(TenantRow)
_COUNT = _SQL["count"].values(int)
_DISPATCHED = _SQL["dispatched"].values(int)
_DISPATCHED_AFTER = _SQL["dispatched_after"].rows(TenantQueue)
_LIMITS = _SQL["limits"].rows(TenantLimits)
_ALL = _SQL["all"].rows(TenantRow)
_PAGE = _SQL["page"].rows(TenantRow)
_EDIT = _SQL["edit"].rows(TenantRow)
_WEIGHTS = _SQL["weights"].rows(_Weight)


async def add(connection: Connection, name: str, *, weight: int, fanout: int) -> TenantRow | None:
    """Add a tenant. None: the name is taken."""
    return await _ADD.one_or_none(connection, name=name, weight=weight, fanout=fanout)


async def find(connection: Connection, tenant_id: int) -> TenantRow | None:
    return await _FIND.one_or_none(connection, tenant_id=tenant_id)


async def named(connection: Connection, name: str) -> TenantRow | None:
    return await _NAMED.one_or_none(connection, name=name)


async def count(connection: Connection) -> int:
    return await _COUNT.one(connection)


async def weights(connection: Connection, tenant_ids: Iterable[int]) -> dict[int, int]:
    """The fair share of each tenant."""
    return dict(await _WEIGHTS.all(connection, tenant_ids=list(tenant_ids)))


async def count_dispatched(connection: Connection) -> int:
    """How many queues dispatchers serve: one for each tenant with HTTP jobs."""
    return await _DISPATCHED.one(connection)


async def dispatched(connection: Connection, *, after: int, most: int) -> list[TenantQueue]:
    """The next queues that dispatchers serve, in the order of their ids."""
    return await _DISPATCHED_AFTER.all(connection, after=after, most=most)


async def limits(connection: Connection, tenant_ids: Iterable[int]) -> list[TenantLimits]:
    return await _LIMITS.all(connection, tenant_ids=list(tenant_ids))


async def all_tenants(connection: Connection) -> list[TenantRow]:
    return await _ALL.all(connection)


async def page(connection: Connection, *, only: int | None, after: int, most: int) -> list[TenantRow]:
    """Tenants in the order of their ids: all, or one alone."""
    return await _PAGE.all(connection, only=only, after=after, most=most)


async def edit(connection: Connection, tenant_id: int, changes: Mapping[str, float]) -> TenantRow | None:
    """Change the given fields, by their names here. None: there is no such tenant."""
    values = {name: changes.get(name) for name in TenantPatch.__struct_fields__}
    return await _EDIT.one_or_none(connection, tenant_id=tenant_id, **values)
