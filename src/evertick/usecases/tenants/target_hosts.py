"""Hosts of a tenant's HTTP targets that failed lately or have a rate limit: listing, limiting, resetting circuits."""

import re

from evertick.contract import patterns
from evertick.contract.target_hosts import TargetHost, TargetSettings
from evertick.domain.admission import Refused
from evertick.domain.breaker import Circuit, CircuitState, Report, TenantHost, apply, reset
from evertick.domain.errors import InvalidInput
from evertick.domain.limits import QuotaName
from evertick.store.database import Session
from evertick.store.tenants import target_hosts
from evertick.store.tenants.target_hosts import HostRow
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, TenantContext, checked_limit, page_of
from evertick.usecases.errors import QuotaReached, TargetHostNotFound

_HOST = re.compile(patterns.HOST)


async def list_hosts(
    tenant: TenantContext, *, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[TargetHost]:
    """The hosts by name."""
    most = checked_limit(limit)
    rows = await target_hosts.page(tenant.pool, tenant.tenant_id, after=cursor or "", most=most + 1)
    found = page_of(rows, most, lambda row: row.host)
    # Counts that are too old by now are left out.
    return Page(tuple(_host_of(row, apply(row.circuit, Report(), row.now_at)) for row in found.items), found.next)


async def reset_host(tenant: TenantContext, host: str) -> TargetHost:
    """Close the circuit of a host, as if it had never failed. Dispatchers know within a second."""
    key = TenantHost(tenant.tenant_id, host.lower())

    async def work(session: Session) -> TargetHost:
        row = await _locked(session, key)
        closed = reset(row.circuit, row.now_at)
        await target_hosts.store(session, {key: closed})
        return _host_of(row, closed)

    return await tenant.in_transaction(work)


async def limit_host(tenant: TenantContext, host: str, given: TargetSettings) -> TargetHost:
    """Replace the rate limit of a host. Dispatchers know within seconds."""
    name = host.lower().removesuffix(":443")
    if not _HOST.fullmatch(name):
        raise InvalidInput("host", "is no host, with its port unless that is 443")
    if given.rate_burst is not None and given.rate_limit is None:
        raise InvalidInput("rate_burst", "needs a rate_limit")
    key = TenantHost(tenant.tenant_id, name)
    row = await target_hosts.limit(tenant.pool, key, given.rate_limit, given.rate_burst)
    if row is None:
        raise QuotaReached(Refused(QuotaName.TARGET_HOSTS, target_hosts.MAX_PER_TENANT))
    return _host_of(row, apply(row.circuit, Report(), row.now_at))


async def _locked(session: Session, key: TenantHost) -> HostRow:
    row = await target_hosts.lock(session, key)
    if row is None:
        raise TargetHostNotFound(key.host)
    return row


def _host_of(row: HostRow, circuit: Circuit) -> TargetHost:
    return TargetHost(
        host=row.host,
        rate_limit=row.rate_limit,
        rate_burst=row.rate_burst,
        state=circuit.state.value,
        since=circuit.changed_at,
        calls=circuit.recent_calls,
        failures=circuit.recent_failures,
        failure_ratio=circuit.failure_ratio,
        next_probe_at=None if circuit.state is CircuitState.CLOSED else circuit.probe_at,
        last_error=circuit.last_error,
    )
