"""Hosts of a tenant's HTTP targets that failed lately: their circuit breakers, and how one is reset."""

from evertick.contract.target_hosts import TargetHost
from evertick.domain.breaker import Circuit, CircuitState, Report, TenantHost, apply, reset
from evertick.store.database import Session
from evertick.store.tenants import target_hosts
from evertick.store.tenants.target_hosts import HostRow
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, TenantContext, checked_limit, page_of
from evertick.usecases.errors import TargetHostNotFound


async def list_hosts(
    tenant: TenantContext, *, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[TargetHost]:
    """The hosts by name."""
    most = checked_limit(limit)
    rows = await target_hosts.page(tenant.pool, tenant.tenant_id, after=cursor or "", most=most + 1)
    found = page_of(rows, most, lambda row: row.host)
    # Counts that are too old by now are left out.
    return Page(tuple(_host_of(row.host, apply(row.circuit, Report(), row.now_at)) for row in found.items), found.next)


async def reset_host(tenant: TenantContext, host: str) -> TargetHost:
    """Close the circuit of a host, as if it had never failed. Dispatchers know within a second."""
    key = TenantHost(tenant.tenant_id, host.lower())

    async def work(session: Session) -> TargetHost:
        row = await _locked(session, key)
        closed = reset(row.circuit, row.now_at)
        await target_hosts.store(session, {key: closed})
        return _host_of(key.host, closed)

    return await tenant.in_transaction(work)


async def _locked(session: Session, key: TenantHost) -> HostRow:
    row = await target_hosts.lock(session, key)
    if row is None:
        raise TargetHostNotFound(key.host)
    return row


def _host_of(host: str, circuit: Circuit) -> TargetHost:
    return TargetHost(
        host=host,
        state=circuit.state.value,
        since=circuit.changed_at,
        calls=circuit.recent_calls,
        failures=circuit.recent_failures,
        failure_ratio=circuit.failure_ratio,
        next_probe_at=None if circuit.state is CircuitState.CLOSED else circuit.probe_at,
        last_error=circuit.last_error,
    )
