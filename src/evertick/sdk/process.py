"""An App with a database: its server, its connection, and the roles that it runs."""

import asyncio
import gc
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from evertick.config.settings import Settings
from evertick.domain.serving import AppVersion
from evertick.executor.executor import unique_name
from evertick.roles.janitor import Janitor, Kept, janitor_pool
from evertick.roles.scheduler import Scheduler
from evertick.roles.worker import DatabaseWorker
from evertick.runtime import timeouts
from evertick.runtime.archive import open_archive
from evertick.runtime.metrics_server import page_of_process, serving_metrics
from evertick.runtime.rate_buckets import open_buckets
from evertick.runtime.tracing import tracing
from evertick.runtime.wakeups import Notifier
from evertick.sdk.declarations import Declarations, WorkerOptions
from evertick.sdk.registering import register
from evertick.store.database import Pool, connect, open_pool
from evertick.store.engine import identity
from evertick.store.location import DatabaseAddress, Location, location_of
from evertick.store.migrate import check_schema, migrate
from evertick.store.server.embedded import EmbeddedServer, default_data_dir
from evertick.store.tenants import tenants
from evertick.usecases.context import TenantContext
from evertick.usecases.metrics_page import page_with_cluster
from evertick.usecases.runs.waiting import RunWaits
from evertick.usecases.tenants.admission import TenantAdmission
from evertick.usecases.tenants.tenants import shortest_of

TENANT = "default"
CONNECTIONS = 4
COLLECT_AFTER = 10_000
"""New objects between two garbage collections. A busy worker makes 700, Python's default, in a few milliseconds, and
loses a seventh of its time to looking at them."""


class AppServer:
    """The database server of an App. An embedded one is started at the first call of `start`, and runs until `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._url = location_of(settings)
        self._data_dir = settings.data_dir
        self._schema = settings.database_schema
        self.redis_url = settings.redis_url
        self.max_ready = settings.max_ready
        self._server: EmbeddedServer | None = None
        self._lock = threading.Lock()

    @property
    def is_embedded(self) -> bool:
        return self._url is None

    def start(self) -> Location:
        if self._url is not None:
            return self._url
        with self._lock:
            if self._server is None:
                server = EmbeddedServer(self._data_dir or default_data_dir())
                server.start()
                self._server = server
            return Location(self._server.url, schema=self._schema)

    def forget(self) -> None:
        """In a forked child: an embedded server is the parent's."""
        if self._server is not None:
            self._server.forget()

    def stop(self) -> None:
        with self._lock:
            server, self._server = self._server, None
            if server is not None:
                server.stop()


@dataclass(frozen=True, slots=True)
class AppConnection:
    """A pool, the tenant with its admission, and the wake-ups. Belongs to one event loop."""

    url: Location
    pool: Pool
    tenant: TenantContext
    tenant_created_at: datetime
    admission: TenantAdmission
    waits: RunWaits
    _loop: asyncio.AbstractEventLoop
    _stack: AsyncExitStack

    @property
    def schema(self) -> str:
        return self.url.schema

    def wake(self, job_ids: Sequence[int]) -> None:
        """Wake the schedulers for new timers of these jobs. From any thread."""
        with suppress(RuntimeError):  # the loop is closed: a wake-up is a hint
            self._loop.call_soon_threadsafe(self.tenant.notify, job_ids)

    async def close(self) -> None:
        await self._stack.aclose()


async def open_connection(server: AppServer, *, with_migrations: bool = False) -> AppConnection:
    """Connect. The schema is migrated if asked for or if the server is embedded; else it must fit already."""
    url = await asyncio.to_thread(server.start)
    connection = await connect(url)
    try:
        if with_migrations or server.is_embedded:
            await migrate(connection)
        else:
            await check_schema(connection)
    finally:
        await connection.close()
    async with AsyncExitStack() as stack:
        pool = await open_pool(url, max_size=CONNECTIONS, timeouts=timeouts.API, purpose="app")
        stack.push_async_callback(pool.close)
        row = await tenants.named(pool, TENANT)
        assert row is not None, "a migration made it"
        buckets = await stack.enter_async_context(open_buckets(pool, server.redis_url))
        notifier = Notifier(pool)
        notifier.start()
        stack.push_async_callback(notifier.stop)
        tenant = TenantContext(
            pool,
            row.tenant_id,
            shortest_of(row),
            notifier.timers,
            default_jitter_seconds=row.default_jitter_seconds,
            history_days=row.history_days,
            archive_days=row.archive_days,
        )
        admission = TenantAdmission(tenant, buckets, server.max_ready)
        waits = RunWaits(tenant)
        stack.push_async_callback(waits.close)
        loop = asyncio.get_running_loop()
        return AppConnection(url, pool, tenant, row.created_at, admission, waits, loop, stack.pop_all())


@asynccontextmanager
async def running_roles(
    connection: AppConnection,
    settings: Settings,
    options: WorkerOptions,
    declarations: Declarations,
    *,
    schedules: bool,
) -> AsyncIterator[DatabaseWorker]:
    """Run the roles. The tables get their partitions for the day first. At the end the partitions are handed over
    first; then the worker stops, and puts back attempts while the others still run.
    """
    _collect_less_often()
    await identity.check_name(connection.pool, settings.cluster)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(tracing(settings.tracing, unique_name(options.name)))
        if schedules:
            pool = await stack.enter_async_context(await janitor_pool(connection.url))
            buckets = await stack.enter_async_context(open_buckets(pool, settings.redis_url))
            kept = Kept(settings.history, settings.audit_log, settings.dead_letters, settings.events)
            archive = await stack.enter_async_context(open_archive(settings))
            janitor = Janitor(pool, kept=kept, buckets=buckets, archive=archive)
            await janitor.maintain(full=False)
            janitor.start()
            stack.push_async_callback(janitor.stop)
        declarations.warn()
        declarations.handlers.result_limit.max_bytes = settings.result_max_bytes
        await register(connection.tenant, connection.admission, options.name, declarations)
        scheduler = _scheduler(connection.url, settings) if schedules else None
        if scheduler is not None:
            await scheduler.start()
            stack.push_async_callback(scheduler.stop)
        worker = DatabaseWorker(
            connection.url,
            declarations.handlers,
            queues=options.queues,
            tenant_id=connection.tenant.tenant_id,
            concurrency=options.concurrency,
            threads=options.threads,
            lease_time=settings.lease_time,
            redis_url=settings.redis_url,
            app_version=AppVersion(options.name, declarations.digest),
        )
        await worker.start()
        stack.push_async_callback(worker.stop)
        # An app that schedules may be the only process there is.
        page = page_with_cluster(connection.pool, settings.heartbeat_timeout) if schedules else page_of_process
        await stack.enter_async_context(serving_metrics(settings, page))
        if scheduler is not None:
            stack.push_async_callback(scheduler.hand_over)
        yield worker


def _collect_less_often() -> None:
    first, *others = gc.get_threshold()
    if 0 < first < COLLECT_AFTER:  # 0 means that the user has turned it off
        gc.set_threshold(COLLECT_AFTER, *others)


def _scheduler(url: DatabaseAddress, settings: Settings) -> Scheduler:
    return Scheduler(
        url,
        f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
        heartbeat=settings.heartbeat,
        lifetime=settings.heartbeat_timeout,
        horizon=settings.load_horizon,
        lease_time=settings.lease_time,
        catch_up_factor=settings.catch_up_factor,
        normal_rate=settings.normal_rate,
    )
