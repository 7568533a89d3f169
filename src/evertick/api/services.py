"""What all requests of one process share: connections, limits, caches."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias, TypeVar

from evertick.api.bodies.memory_limits import BodyLimits, UnreadResponses
from evertick.api.event_readers import EventReaders
from evertick.api.long_polls import LongPolls
from evertick.api.pulling_workers import PullingWorkers
from evertick.api.replica import Replica
from evertick.contract.server import Ready, Stats
from evertick.domain.access import KeyRole
from evertick.domain.cluster_identity import explain
from evertick.domain.limits import MAX_OUTPUT_BYTES
from evertick.runtime.archive import Archive
from evertick.runtime.concurrency import Batcher, Cached, InFlight, TenantLimit
from evertick.runtime.gates import Gates
from evertick.runtime.queue_rates import QueueRates
from evertick.runtime.rate_slices import RateSlices
from evertick.runtime.timeouts import READINESS_SECONDS
from evertick.runtime.wakeups import Notifier
from evertick.store.database import Pool, is_transient
from evertick.store.engine import identity, lanes
from evertick.store.migrate import SchemaMismatch, check_schema
from evertick.store.tenants.tenants import TenantRow
from evertick.usecases import idempotency
from evertick.usecases.context import TenantContext
from evertick.usecases.engine_status import EngineStatus, engine_status, tenant_stats
from evertick.usecases.forecast.keeping import Forecasts
from evertick.usecases.idempotency import KeyedRequest, OtherRequest
from evertick.usecases.job_history import Histories
from evertick.usecases.jobs.create_together import NewJobRequest, Result, create_together
from evertick.usecases.metrics_page import metrics_page
from evertick.usecases.overview import Overviews
from evertick.usecases.references import ReferenceCache
from evertick.usecases.tenants.connections import ConnectionAccess
from evertick.usecases.tenants.keys import KeyRing
from evertick.usecases.tenants.quotas import Quotas
from evertick.usecases.tenants.tenants import shortest_of

_T = TypeVar("_T")
CACHE_SECONDS = 1.0
STATS_TIMES_AS_LONG = 10.0
LEASE_CONNECTIONS = 6
LEASES_PER_TENANT = 4
REPORT_CONNECTIONS = 4
REPORTS_PER_TENANT = 3
"""At once. Fewer than there are connections: one tenant alone never makes the others wait."""
MAX_WAITING = 1_000
WAIT_SECONDS = 5.0
"""For a connection, behind other requests of the same tenant."""
MAX_TENANTS_KEPT = 1_000
SANE_SKEW = timedelta(days=1)
"""The database's clock decides, and a machine may be minutes off. With a day between them, one was never set."""

EarlierResponse: TypeAlias = idempotency.Answer | OtherRequest | None


async def _earlier_responses(tenant: TenantContext, asked: list[KeyedRequest]) -> list[EarlierResponse | Exception]:
    return [*await idempotency.earlier(tenant, asked)]


async def _readiness(pool: Pool) -> Ready:
    """Not ready with a schema that does not fit, or clocks that are far apart.

    A database that may be a restored copy is a warning only: people have to look at it before they confirm it.
    """
    try:
        async with asyncio.timeout(READINESS_SECONDS):
            await check_schema(pool)
            skew = abs(await lanes.clock(pool) - datetime.now(UTC))
            suspicion = await identity.suspicion(pool)
    except SchemaMismatch as mismatch:
        return Ready(ready=False, faults=[str(mismatch)])
    except Exception as error:
        # The driver's errors have no class of their own for what passes by itself: `is_transient` knows them.
        if not is_transient(error):
            raise
        return Ready(ready=False, faults=["the database does not answer"])
    faults = [f"the database's clock and this machine's are {skew} apart"] if skew > SANE_SKEW else []
    warnings = [] if suspicion is None else [f"{explain(suspicion)}; `evertick doctor` says what to do"]
    return Ready(ready=not faults, faults=faults, warnings=warnings)


@dataclass(slots=True)
class Services:
    """Connection pools, limits, caches and batchers. `lease_time`: how long a pull worker holds what it leased.

    What must be answered whatever other requests wait for has connections of its own: long polls (`leases`), heartbeats
    and outcomes (`reports`), keys and probes (`reserved`). New rules and queues, too, are committed on a reserved one,
    so that no request waits for the transaction that added them. `limit`, `lease_limit` and `report_limit` keep a
    tenant from taking all connections of the pool, and of the first two.

    `sessions` finds callers by the cookies of browsers, as `keys` does by keys; one lasts for `session_time`.
    `login_rates` limits attempts to log in by address, over all processes.

    `replica`: a standby for lists and figures, if there is one.

    `result_max_bytes`: what pull workers report of a result is kept up to this size.

    `live_pages` counts the open pages of browsers that are kept up to date, by tenant.

    Equal requests that take long share one computation, if it is `in_flight`.

    `creations` batches new jobs into one transaction, and `earlier_responses` lookups into one statement.
    `readiness`, `engine_status`, `metrics_page` and a tenant's `stats` are computed at most once a second.
    """

    pool: Pool
    leases: Pool
    reports: Pool
    reserved: Pool
    notifier: Notifier
    gates: Gates
    polls: LongPolls
    pulling_workers: PullingWorkers
    event_readers: EventReaders
    keys: KeyRing
    sessions: KeyRing
    login_rates: RateSlices
    quotas: Quotas
    queue_rates: QueueRates
    lease_time: timedelta
    lifetime: timedelta
    bodies: BodyLimits
    connections: ConnectionAccess
    session_time: timedelta = timedelta(hours=12)
    unread: UnreadResponses = field(default_factory=UnreadResponses)
    is_metrics_open: bool = True
    metrics_key: str | None = None
    result_max_bytes: int = MAX_OUTPUT_BYTES
    archive: Archive | None = None
    replica: Replica | None = None
    openapi: bytes = b""
    limit: TenantLimit = field(init=False)
    lease_limit: TenantLimit = field(default_factory=lambda: TenantLimit(LEASES_PER_TENANT))
    report_limit: TenantLimit = field(default_factory=lambda: TenantLimit(REPORTS_PER_TENANT))
    references: ReferenceCache = field(init=False)
    creations: Batcher[TenantContext, NewJobRequest, Result] = field(
        default_factory=lambda: Batcher[TenantContext, NewJobRequest, Result](create_together)
    )
    earlier_responses: Batcher[TenantContext, KeyedRequest, EarlierResponse] = field(
        default_factory=lambda: Batcher[TenantContext, KeyedRequest, EarlierResponse](_earlier_responses)
    )
    readiness: Cached[Ready] = field(init=False)
    engine_status: Cached[EngineStatus] = field(init=False)
    metrics_page: Cached[bytes] = field(init=False)
    live_pages: Counter[int] = field(default_factory=Counter)
    overviews: Overviews = field(default_factory=Overviews)
    histories: Histories = field(default_factory=Histories)
    forecasts: Forecasts = field(default_factory=Forecasts)
    in_flight: InFlight = field(default_factory=InFlight)
    _stats: dict[int, Cached[Stats]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        half = max(1, self.pool.get_max_size() // 2)
        self.limit = TenantLimit(half, max_waiting=MAX_WAITING, wait_seconds=WAIT_SECONDS)
        self.engine_status = Cached(lambda: engine_status(self.reserved, self.lifetime), CACHE_SECONDS)
        self.metrics_page = Cached(self._metrics_page, CACHE_SECONDS)
        self.readiness = Cached(lambda: _readiness(self.reserved), CACHE_SECONDS)
        self.references = ReferenceCache(self.reserved)

    async def _metrics_page(self) -> bytes:
        return await metrics_page(self.engine_status.get, "api")

    async def stats(self, tenant_id: int) -> Stats:
        """What a tenant's jobs did lately, computed at most once a second, and for a tenth of the time at most."""
        kept = self._stats.get(tenant_id)
        if kept is None:
            if len(self._stats) >= MAX_TENANTS_KEPT:
                self._stats.clear()
            # Of a busy tenant they read much: a page that shows them live takes a tenth of a core at most.
            kept = self._stats[tenant_id] = Cached(
                lambda: self._tenant_stats(tenant_id), CACHE_SECONDS, times_as_long=STATS_TIMES_AS_LONG
            )
        return await kept.get()

    async def _tenant_stats(self, tenant_id: int) -> Stats:
        if self.replica is None:
            return await tenant_stats(self.pool, tenant_id)
        return await self.replica.read(self.pool, lambda pool: tenant_stats(pool, tenant_id))

    def forget_keys(self, tenant_id: int) -> None:
        """Drop what is cached of a tenant: its keys or its limits were changed in this process."""
        self.keys.forget(tenant_id)
        self.sessions.forget(tenant_id)

    def pool_for(self, role: KeyRole | None, *, is_poll: bool) -> Pool:
        """The connections for an operation that needs this role."""
        if is_poll:
            return self.leases
        return self.reports if role is KeyRole.WORKER else self.pool

    @asynccontextmanager
    async def slot_for(self, role: KeyRole | None, tenant_id: int) -> AsyncIterator[None]:
        """The right to use one of these connections, for a tenant that has read its responses.

        That is checked once the slot is held: responses to requests before it in the queue count.
        """
        limit = self.report_limit if role is KeyRole.WORKER else self.limit
        async with limit.slot(tenant_id):
            self.unread.check(tenant_id)
            yield

    async def read_late(self, tenant: TenantContext, work: Callable[[TenantContext], Awaitable[_T]]) -> _T:
        """Do work that only reads, in a slot of the tenant, on the standby where there is one."""
        async with self.slot_for(KeyRole.VIEWER, tenant.tenant_id):
            if self.replica is None:
                return await work(replace(tenant, pool=self.pool))
            return await self.replica.read(self.pool, lambda pool: work(replace(tenant, pool=pool)))

    def tenant_on(self, tenant: TenantRow, pool: Pool) -> TenantContext:
        """A tenant as use cases take it, on these connections."""
        return TenantContext(
            pool,
            tenant.tenant_id,
            shortest_of(tenant),
            self.notifier.timers,
            self.references,
            tenant.default_jitter_seconds,
            tenant.history_days,
            tenant.archive_days,
            self.archive,
        )
