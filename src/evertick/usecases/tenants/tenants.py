"""Tenants: making, listing and changing them, and what they may have and do."""

from collections.abc import Mapping
from datetime import timedelta

from evertick.contract.access import Tenant, TenantPatch
from evertick.contract.reading import read_members
from evertick.domain.admission import Quota
from evertick.domain.errors import InvalidInput
from evertick.domain.ids import Prefix, format_id, parse_id
from evertick.domain.job.checks import check_name
from evertick.domain.job.faults import Faults
from evertick.domain.rate_bucket import Rate
from evertick.store.statements import Connection
from evertick.store.tenants import tenants
from evertick.store.tenants.tenants import TenantRow
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, checked_cursor, checked_limit, page_of
from evertick.usecases.errors import NameTaken, TenantNotFound


async def create(connection: Connection, name: str, changes: Mapping[str, float]) -> Tenant:
    """Make a tenant; what is not given has its default. NameTaken: there is one of that name."""
    faults = Faults()
    check_name(name, "/name", faults)
    faults.raise_any()
    _check(changes)
    row = await tenants.add(connection, name, weight=1)
    if row is None:
        raise NameTaken(name, "tenant")
    return view_of(await _edited(connection, row.tenant_id, changes))


async def get(connection: Connection, only: int | None, tenant_id: str) -> Tenant:
    """A tenant by its id; `only`: no other may be seen."""
    row = await tenants.find(connection, tenant_key(only, tenant_id))
    if row is None:
        raise TenantNotFound(tenant_id)
    return view_of(row)


async def list_tenants(
    connection: Connection, only: int | None, *, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[Tenant]:
    """All tenants in the order of their ids, or `only` one."""
    most = checked_limit(limit)
    after = -1 if cursor is None else checked_cursor(cursor, lambda text: parse_id(Prefix.TENANT, text))
    rows = await tenants.page(connection, only=only, after=after, most=most + 1)
    return page_of(map(view_of, rows), most, lambda tenant: tenant.tenant_id)


async def edit(connection: Connection, tenant_id: str, changes: Mapping[str, float]) -> Tenant:
    """Change what is given."""
    _check(changes)
    return view_of(await _edited(connection, tenant_key(None, tenant_id), changes))


def tenant_key(only: int | None, tenant_id: str) -> int:
    """The number in a public tenant id; one that cannot be an id names no tenant, nor does one that may not be seen."""
    try:
        key = parse_id(Prefix.TENANT, tenant_id)
    except InvalidInput:
        raise TenantNotFound(tenant_id) from None
    if only not in {None, key}:
        raise TenantNotFound(tenant_id)
    return key


def public_id(tenant_id: int) -> str:
    return format_id(Prefix.TENANT, tenant_id)


def quota_of(row: TenantRow) -> Quota:
    return Quota(
        jobs=row.jobs_quota,
        submit=Rate(row.submits_per_second, row.submit_burst),
        running=row.running_quota,
        ready=row.ready_quota,
        storage_bytes=row.storage_quota_bytes,
    )


def shortest_of(row: TenantRow) -> timedelta:
    return timedelta(seconds=row.shortest_interval_seconds)


def view_of(row: TenantRow) -> Tenant:
    fields = row._asdict() | {"tenant_id": public_id(row.tenant_id)}
    del fields["is_host"]
    return Tenant(**fields)


async def _edited(connection: Connection, key: int, changes: Mapping[str, float]) -> TenantRow:
    row = await tenants.edit(connection, key, changes)
    if row is None:
        raise TenantNotFound(public_id(key))
    return row


def _check(changes: Mapping[str, float]) -> None:
    faults = Faults()
    read_members(changes, TenantPatch, faults)
    faults.raise_any()
