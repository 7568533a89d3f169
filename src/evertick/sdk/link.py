"""An app's way to the database: the embedded server or a URL, a pool, and the tenant on whose behalf it acts; and what
it submits by that way.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from evertick.config import Settings
from evertick.domain.ids import Prefix, format_run_id, parse_id
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import RunStatus
from evertick.runtime import timeouts
from evertick.runtime.wakeups import Notifier
from evertick.store import tenants
from evertick.store.database import Pool, close_pool, connect, open_pool
from evertick.store.embedded import EmbeddedServer, default_data_dir
from evertick.store.migrate import check_schema, migrate
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import RunNotFound
from evertick.usecases.jobs import reading as jobs
from evertick.usecases.jobs.create import create
from evertick.usecases.runs import reading as runs
from evertick.usecases.tenants.tenants import shortest_of

TENANT = "default"
CONNECTIONS = 4


class Database:
    """Where the data is. An embedded server is started when first asked for, and runs until `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.database_url
        self._data_dir = settings.data_dir
        self._server: EmbeddedServer | None = None
        self._lock = threading.Lock()

    @property
    def is_embedded(self) -> bool:
        return self._url is None

    def start(self) -> str:
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


class Link:
    """A pool, the tenant and the wake-ups. Belongs to one event loop."""

    def __init__(self, url: str, pool: Pool, tenant: TenantContext, notifier: Notifier) -> None:
        self.url = url
        self.pool = pool
        self.tenant = tenant
        self._notifier = notifier

    async def close(self) -> None:
        await self._notifier.stop()
        await close_pool(self.pool)


async def open_link(database: Database, *, with_migrations: bool = False) -> Link:
    """Connect. The schema is brought up to date if asked for or if the server is our own; else it must fit already."""
    url = await asyncio.to_thread(database.start)
    connection = await connect(url)
    try:
        if with_migrations or database.is_embedded:
            await migrate(connection)
        else:
            await check_schema(connection)
    finally:
        await connection.close()
    pool = await open_pool(url, max_size=CONNECTIONS, timeouts=timeouts.API)
    try:
        row = await tenants.named(pool, TENANT)
        assert row is not None, "a migration made it"
    except BaseException:
        await close_pool(pool)
        raise
    notifier = Notifier(pool)
    notifier.start()
    return Link(url, pool, TenantContext(pool, row.tenant_id, row.fanout, shortest_of(row), notifier.timers), notifier)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A run that was asked for. It may have begun before `submit` returned."""

    job_id: str
    run_id: str
    fire_at: datetime
    _link: Callable[[], Awaitable[Link]] = field(repr=False, compare=False)

    async def status(self) -> RunStatus:
        """How the run stands now; JobNotFound when it was deleted before its time came."""
        tenant = (await self._link()).tenant
        try:
            return RunStatus((await runs.get_run(tenant, self.run_id)).status)
        except RunNotFound:
            await jobs.get(tenant, self.job_id)
            return RunStatus.PENDING


async def submit(fields: Mapping[str, Any], link: Callable[[], Awaitable[Link]]) -> Submitted:
    """Create the job of a one-off."""
    job = await create((await link()).tenant, fields)
    assert job.next_run_at is not None, "a one-off has one"
    run_id = format_run_id(parse_id(Prefix.JOB, job.job_id), to_us(job.next_run_at))
    return Submitted(job.job_id, run_id, job.next_run_at, link)
