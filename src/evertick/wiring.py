"""Puts the roles of one process together: where the database is, which roles run on it, in which order they start."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from evertick.api.server import ApiServer
from evertick.config.settings import Settings
from evertick.config.values import Role
from evertick.dashboard.site import SITE
from evertick.domain.errors import InvalidInput
from evertick.roles.dispatcher import Dispatcher
from evertick.roles.dispatcher.settings import egress_of, seal_of
from evertick.roles.janitor import Janitor, Kept, janitor_pool
from evertick.roles.scheduler import Scheduler
from evertick.runtime import timeouts
from evertick.runtime.archive import Archive, open_archive
from evertick.runtime.loop import Loop
from evertick.runtime.metrics_server import MakePage, page_of_process, serving_metrics
from evertick.runtime.rate_buckets import open_buckets
from evertick.runtime.tracing import tracing
from evertick.runtime.wakeups import Notifier
from evertick.store.connections import place
from evertick.store.database import Session, connect, open_pool
from evertick.store.engine import identity
from evertick.store.errors import NoDatabase
from evertick.store.location import DatabaseAddress, Location, location_of
from evertick.store.migrate import Obstacle, check_schema, find_obstacle, migrate, waiting_migrations
from evertick.store.migration_plan import Step, steps
from evertick.store.server.embedded import EmbeddedServer, default_data_dir
from evertick.store.tenants import tenants
from evertick.store.tenants.secrets import Seal
from evertick.usecases.context import TenantContext
from evertick.usecases.metrics_page import page_with_cluster
from evertick.usecases.tenants import keys, sessions
from evertick.usecases.tenants.tenants import shortest_of

logger = logging.getLogger("evertick")

SUPERVISE_SECONDS = 1.0
TENANT_CONNECTIONS = 3
DELIVERY_GRACE = timedelta(seconds=20)


def node_name() -> str:
    """A unique name of this process, by which people find it: host, process id and random digits."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def data_dir_of(settings: Settings) -> Path:
    """Where the embedded server lives, unless there is a URL."""
    return settings.data_dir or default_data_dir()


def database_location(settings: Settings) -> str:
    """Where the database is, for people: without user and password."""
    if settings.database_url is None:
        return f"the embedded server in {data_dir_of(settings)}"
    return place(urlsplit(settings.database_url))


@contextmanager
def database(settings: Settings, *, create: bool = False) -> Iterator[DatabaseAddress]:
    """Where the database is, for as long as it is used: an embedded server is started, and stopped by its last user.

    Unless it may be created, there must be one already.
    """
    location = location_of(settings)
    if location is not None:
        yield location
        return
    server = EmbeddedServer(data_dir_of(settings))
    server.check_owner()
    if not create and not server.cluster.exists():
        raise NoDatabase(
            f"there is no database in {server.data_dir}: start one with `evertick up`,"
            " or say where it is by --data-dir or --database-url"
        )
    try:
        yield Location(server.start(), schema=settings.database_schema)
    finally:
        server.stop()


async def migrate_database(url: DatabaseAddress, applied: Callable[[str], None] = lambda _: None) -> int:
    """Migrate the database; returns how many steps that took."""
    async with _connected(url) as connection:
        return await migrate(connection, applied)


async def plan_migration(url: DatabaseAddress) -> tuple[list[Step], Obstacle | None]:
    """What `migrate_database` would do, and what keeps it from that; changes nothing."""
    async with _connected(url) as connection:
        waiting = await waiting_migrations(connection)
        return list(steps(waiting)), await find_obstacle(connection, waiting)


async def require_current_schema(url: DatabaseAddress) -> None:
    """Raise SchemaMismatch unless the database's schema is that of this version."""
    async with _connected(url) as connection:
        await check_schema(connection)


async def first_key(url: DatabaseAddress) -> str | None:
    """An admin's key for the default tenant if it never had any, to print when Evertick starts for the first time."""
    async with _connected(url) as connection:
        row = await tenants.named(connection, "default")
        if row is None:
            return None
        async with connection.transaction():
            new = await keys.create_first(connection, row.tenant_id)
        return None if new is None else new.api_key


async def login_link(url: DatabaseAddress) -> str | None:
    """A token that opens the dashboard once, for an admin of the default tenant; None if that has no valid key."""
    async with _connected(url) as connection:
        row = await tenants.named(connection, "default")
        return None if row is None else await sessions.make_link(connection, row.tenant_id)


@asynccontextmanager
async def _connected(url: DatabaseAddress) -> AsyncIterator[Session]:
    connection = await connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def connected_tenant(
    url: DatabaseAddress, tenant: str, archive: Archive | None = None
) -> AsyncIterator[TenantContext]:
    """A tenant for use cases, once the schema fits; schedulers get wake-ups for what is due soon."""
    async with await open_pool(url, max_size=TENANT_CONNECTIONS) as pool:
        await check_schema(pool)
        row = await tenants.named(pool, tenant)
        if row is None:
            raise InvalidInput("tenant", f"there is none called {tenant!r}")
        notifier = Notifier(pool)
        notifier.start()
        try:
            yield TenantContext(
                pool,
                row.tenant_id,
                shortest_of(row),
                notifier.timers,
                default_jitter_seconds=row.default_jitter_seconds,
                history_days=row.history_days,
                archive_days=row.archive_days,
                archive=archive,
            )
        finally:
            await notifier.stop()


@asynccontextmanager
async def running(
    url: DatabaseAddress, node: str, roles: Collection[Role], settings: Settings
) -> AsyncIterator[str | None]:
    """Roles at work, and the address of the API if it is among them.

    The janitor starts first, because the ledgers need a day to write to, and stops last. The API starts last, when all
    that it depends on runs, and stops first. Before that the scheduler hands its partitions over: the others fire on,
    however long requests and deliveries take to end.
    """
    seal = seal_of(settings) if Role.DISPATCHER in roles else None
    async with _connected(url) as connection:
        await identity.check_name(connection, settings.cluster)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(tracing(settings.tracing, node))
        if settings.database_url is None:
            await stack.enter_async_context(_supervised(EmbeddedServer(data_dir_of(settings))))
        if Role.JANITOR in roles:
            kept = Kept(settings.history, settings.audit_log, settings.dead_letters, settings.events)
            pool = await stack.enter_async_context(await janitor_pool(url))
            buckets = await stack.enter_async_context(open_buckets(pool, settings.redis_url))
            archive = await stack.enter_async_context(open_archive(settings))
            janitor = Janitor(pool, kept=kept, buckets=buckets, archive=archive)
            await janitor.maintain(full=False)
            janitor.start()
            stack.push_async_callback(janitor.stop)
        scheduler = _scheduler(url, node, settings) if Role.SCHEDULER in roles else None
        if scheduler is not None:
            await scheduler.start()
            stack.push_async_callback(scheduler.stop)
        if seal is not None:
            dispatcher = _dispatcher(url, seal, settings, runs_api=Role.API in roles)
            await dispatcher.start()
            stack.push_async_callback(dispatcher.stop, DELIVERY_GRACE)
        await stack.enter_async_context(_metrics(url, roles, settings))
        api = ApiServer(url, settings, site=SITE) if Role.API in roles else None
        if api is not None:
            await api.start()
            stack.push_async_callback(api.stop)
        if scheduler is not None:
            stack.push_async_callback(scheduler.hand_over)
        yield None if api is None else api.address


@asynccontextmanager
async def _supervised(server: EmbeddedServer) -> AsyncIterator[None]:
    """Start the embedded server again whenever it dies: no other process supervises it."""

    async def restart() -> float:
        if not server.is_running:
            logger.warning("the embedded server has died: starting it again")
            await asyncio.to_thread(server.start)
        return SUPERVISE_SECONDS

    supervisor = Loop("embedded server", restart)
    supervisor.start()
    try:
        yield
    finally:
        await supervisor.stop()
        await asyncio.to_thread(server.stop)


@asynccontextmanager
async def _metrics(url: DatabaseAddress, roles: Collection[Role], settings: Settings) -> AsyncIterator[None]:
    """The metrics of the process, and of the cluster where there is a port for them."""
    async with AsyncExitStack() as stack:
        page: MakePage = page_of_process
        if settings.metrics_port is not None:
            pool = await stack.enter_async_context(
                await open_pool(url, min_size=0, max_size=1, timeouts=timeouts.API, purpose="status")
            )
            page = page_with_cluster(pool, settings.heartbeat_timeout)
        await stack.enter_async_context(serving_metrics(settings, page, times_loop=Role.API not in roles))
        yield


def _scheduler(url: DatabaseAddress, node: str, settings: Settings) -> Scheduler:
    return Scheduler(
        url,
        node,
        heartbeat=settings.heartbeat,
        lifetime=settings.heartbeat_timeout,
        horizon=settings.load_horizon,
        lease_time=settings.lease_time,
        catch_up_factor=settings.catch_up_factor,
        normal_rate=settings.normal_rate,
    )


def _dispatcher(url: DatabaseAddress, seal: Seal, settings: Settings, *, runs_api: bool) -> Dispatcher:
    egress = partial(egress_of, settings, runs_api=runs_api)
    return Dispatcher(url, seal, egress, lease_time=settings.lease_time, redis_url=settings.redis_url)
