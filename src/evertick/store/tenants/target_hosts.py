"""Hosts of HTTP targets that failed lately or have a rate limit, with the circuit breakers that dispatchers share."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.domain.breaker import Circuit, CircuitState, TenantHost
from evertick.domain.rate_bucket import Rate, rate_of
from evertick.store import statements
from evertick.store.database import Session
from evertick.store.statements import Connection, columns

MAX_PER_TENANT = 1000
"""Hosts of a tenant that have a row. Further ones have no circuit breaker until old rows are removed."""


class HostRow(NamedTuple):
    """A host's row, and the database's time when it was read."""

    tenant_id: int
    host: str
    state: str
    changed_at: datetime
    window_at: datetime
    calls: int
    failures: int
    calls_before: int
    failures_before: int
    openings: int
    probe_at: datetime | None
    watched_at: datetime | None
    last_error: str | None
    rate_limit: float | None
    rate_burst: int | None
    now_at: datetime

    @property
    def key(self) -> TenantHost:
        return TenantHost(self.tenant_id, self.host)

    @property
    def circuit(self) -> Circuit:
        return Circuit(
            state=CircuitState(self.state),
            changed_at=self.changed_at,
            window_at=self.window_at,
            calls=self.calls,
            failures=self.failures,
            calls_before=self.calls_before,
            failures_before=self.failures_before,
            openings=self.openings,
            probe_at=self.probe_at,
            watched_at=self.watched_at,
            last_error=self.last_error,
        )


class LimitedHost(NamedTuple):
    """A host with a rate limit."""

    tenant_id: int
    host: str
    rate_limit: float
    rate_burst: int | None

    @property
    def key(self) -> TenantHost:
        return TenantHost(self.tenant_id, self.host)

    @property
    def rate(self) -> Rate:
        return rate_of(self.rate_limit, self.rate_burst)


class OpenCircuits(NamedTuple):
    """How many circuits have a state."""

    state: str
    circuits: int


_SQL = statements.load("target_hosts")
_LOCK_AVAILABLE = _SQL["lock_available"].rows(HostRow)
_LOCK = _SQL["lock"].rows(HostRow)
_WATCHED = _SQL["watched"].rows(HostRow)
_PAGE = _SQL["page"].rows(HostRow)
_LIMIT = _SQL["limit"].rows(HostRow)
_LIMITED = _SQL["limited"].rows(LimitedHost)
_COUNT_OPEN = _SQL["count_open"].rows(OpenCircuits)

_KEYS = ("tenant_ids", "hosts")
_STORED = (
    *_KEYS,
    *("states", "changed_ats", "window_ats", "calls", "failures", "calls_before", "failures_before", "openings"),
    *("probe_ats", "last_errors", "watched_ats", "watched_untils"),
)


async def add(connection: Connection, hosts: Collection[TenantHost]) -> None:
    """Add rows for hosts that have none, closed."""
    given = columns(_KEYS, sorted(hosts))
    await _SQL["add"].execute(connection, **given, most_per_tenant=MAX_PER_TENANT)


async def lock_available(session: Session, hosts: Collection[TenantHost]) -> list[HostRow]:
    """Lock those of these hosts that have a row and that nobody has locked."""
    return await _LOCK_AVAILABLE.all(session, **columns(_KEYS, sorted(hosts)))


async def lock(session: Session, host: TenantHost) -> HostRow | None:
    """Lock a host. None: it has no row."""
    return await _LOCK.one_or_none(session, **host._asdict())


async def store(session: Session, circuits: Mapping[TenantHost, Circuit]) -> None:
    """Store circuits, whose rows are locked."""
    rows: Sequence[tuple[object, ...]] = [
        (
            *host,
            *(circuit.state.value, circuit.changed_at, circuit.window_at, circuit.calls, circuit.failures),
            *(circuit.calls_before, circuit.failures_before, circuit.openings, circuit.probe_at, circuit.last_error),
            circuit.watched_at,
            circuit.watched_until,
        )
        for host, circuit in circuits.items()
    ]
    await _SQL["store"].execute(session, **columns(_STORED, rows))


async def watched(connection: Connection, most: int) -> list[HostRow]:
    """The hosts that dispatchers have to know of: those that are not closed, and those with many failures."""
    return await _WATCHED.all(connection, most=most)


async def page(connection: Connection, tenant_id: int, *, after: str, most: int) -> list[HostRow]:
    """A tenant's hosts, by name, after one of them."""
    return await _PAGE.all(connection, tenant_id=tenant_id, after=after, most=most)


async def limit(
    connection: Connection, host: TenantHost, rate_limit: float | None, rate_burst: int | None
) -> HostRow | None:
    """Set the rate limit of a host, which is added if it is not there. None: its tenant has too many hosts."""
    await add(connection, [host])
    limits = {"rate_limit": rate_limit, "rate_burst": rate_burst}
    return await _LIMIT.one_or_none(connection, **host._asdict(), **limits)


async def limited(connection: Connection, *, after: TenantHost | None, most: int) -> list[LimitedHost]:
    """The hosts of all tenants that have a rate limit, after one of them."""
    tenant_id, name = after or (0, "")
    return await _LIMITED.all(connection, after_tenant_id=tenant_id, after_host=name, most=most)


async def count_open(connection: Connection) -> dict[str, int]:
    """How many circuits are not closed, by state; only states that there are."""
    return dict(await _COUNT_OPEN.all(connection))
