"""An App with a database: its connection, the runs that it submits, its registered jobs, and the roles that it runs."""

import asyncio
import gc
import logging
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from evertick.config import Settings
from evertick.contract.annotations import MAX_PER_PAGE
from evertick.domain.ids import Prefix, format_run_id, parse_id
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import RunStatus
from evertick.executor.executor import unique_name
from evertick.roles.janitor import Janitor, Kept, janitor_pool
from evertick.roles.scheduler import Scheduler
from evertick.roles.worker import DatabaseWorker
from evertick.runtime import timeouts
from evertick.runtime.metrics_server import page_of_process, serving_metrics
from evertick.runtime.rate_buckets import open_buckets
from evertick.runtime.tracing import tracing
from evertick.runtime.wakeups import Notifier
from evertick.sdk.declarations import APP_LABEL, Declarations, WorkerOptions
from evertick.store.database import Pool, connect, open_pool
from evertick.store.engine import identity
from evertick.store.location import DatabaseAddress, location_of
from evertick.store.migrate import check_schema, migrate
from evertick.store.server.embedded import EmbeddedServer, default_data_dir
from evertick.store.tenants import tenants
from evertick.usecases.context import Page, TenantContext
from evertick.usecases.errors import RunNotFound
from evertick.usecases.jobs import costs, reading as jobs
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.edit import put
from evertick.usecases.metrics_page import page_with_cluster
from evertick.usecases.runs import reading as runs
from evertick.usecases.tenants.admission import TenantAdmission
from evertick.usecases.tenants.tenants import shortest_of

logger = logging.getLogger("evertick.app")

TENANT = "default"
CONNECTIONS = 4
REGISTER_PATIENCE = timedelta(minutes=1)
COLLECT_AFTER = 10_000
"""New objects between two garbage collections. A busy worker makes 700, Python's default, in a few milliseconds, and
loses a seventh of its time to looking at them."""

_T = TypeVar("_T")


class AppServer:
    """The database server of an App. An embedded one is started at the first call of `start`, and runs until `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._url = location_of(settings)
        self._data_dir = settings.data_dir
        self.redis_url = settings.redis_url
        self.max_ready = settings.max_ready
        self._server: EmbeddedServer | None = None
        self._lock = threading.Lock()

    @property
    def is_embedded(self) -> bool:
        return self._url is None

    def start(self) -> DatabaseAddress:
        if self._url is not None:
            return self._url
        with self._lock:
            if self._server is None:
                server = EmbeddedServer(self._data_dir or default_data_dir())
                server.start()
                self._server = server
            return self._server.url

    def stop(self) -> None:
        with self._lock:
            server, self._server = self._server, None
            if server is not None:
                server.stop()


@dataclass(frozen=True, slots=True)
class AppConnection:
    """A pool, the tenant with its admission, and the wake-ups. Belongs to one event loop."""

    url: DatabaseAddress
    pool: Pool
    tenant: TenantContext
    admission: TenantAdmission
    _stack: AsyncExitStack

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
        )
        return AppConnection(url, pool, tenant, TenantAdmission(tenant, buckets, server.max_ready), stack.pop_all())


@dataclass(frozen=True, slots=True)
class Submitted:
    """A run that was submitted. It may have begun before `submit` returned."""

    job_id: str
    run_id: str
    fire_at: datetime
    _connection: Callable[[], Awaitable[AppConnection]] = field(repr=False, compare=False)

    async def status(self) -> RunStatus:
        """The current status of the run. Raises JobNotFound if it was deleted before its fire time."""
        tenant = (await self._connection()).tenant
        try:
            return RunStatus((await runs.get_run(tenant, self.run_id)).status)
        except RunNotFound:
            await jobs.get(tenant, self.job_id)
            return RunStatus.PENDING


async def submit(fields: Mapping[str, Any], connection: Callable[[], Awaitable[AppConnection]]) -> Submitted:
    """Create the job of a one-off. QuotaReached: a quota of the tenant does not admit it now."""
    connected = await connection()
    async with connected.admission.of(costs.of_creation(fields)) as entry:
        job = await create(connected.tenant, fields)
        entry.created = 1
    assert job.next_run_at is not None, "a one-off has one"
    run_id = format_run_id(parse_id(Prefix.JOB, job.job_id), to_us(job.next_run_at))
    return Submitted(job.job_id, run_id, job.next_run_at, connection)


async def register(tenant: TenantContext, admission: TenantAdmission, app: str, declarations: Declarations) -> None:
    """Put the declared jobs, which may wait for the tenant's rate. Jobs that an earlier version of the app declared
    stay, and are named in a warning.
    """
    for name, fields in declarations.jobs.items():
        async with admission.of(await costs.of_put(tenant, name, fields), REGISTER_PATIENCE) as entry:
            entry.created = int((await put(tenant, name, fields)).is_new)
    labelled = every_item(
        lambda cursor: jobs.list_jobs(tenant, labels={APP_LABEL: app}, limit=MAX_PER_PAGE, cursor=cursor)
    )
    abandoned = [job.name async for job in labelled if job.name not in declarations.jobs]
    if abandoned:
        logger.warning(
            "these jobs of app %s are not declared in the code any more, and go on until they are deleted: %s",
            app,
            ", ".join(sorted(abandoned)),
        )


async def every_item(read_page: Callable[[str | None], Awaitable[Page[_T]]]) -> AsyncIterator[_T]:
    """The items of all pages of a list. `read_page` takes the cursor of a page."""
    cursor: str | None = None
    while True:
        page = await read_page(cursor)
        for item in page.items:
            yield item
        cursor = page.next
        if cursor is None:
            return


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
            kept = Kept(settings.history, settings.audit_log, settings.dead_letters)
            janitor = Janitor(pool, kept=kept, buckets=buckets)
            await janitor.maintain(full=False)
            janitor.start()
            stack.push_async_callback(janitor.stop)
        await register(connection.tenant, connection.admission, options.name, declarations)
        scheduler = _scheduler(connection.url, settings) if schedules else None
        if scheduler is not None:
            await scheduler.start()
            stack.push_async_callback(scheduler.stop)
        worker = DatabaseWorker(
            connection.url,
            declarations.handlers,
            queues=(options.queue,),
            tenant_id=connection.tenant.tenant_id,
            concurrency=options.concurrency,
            threads=options.threads,
            lease_time=settings.lease_time,
            redis_url=settings.redis_url,
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
