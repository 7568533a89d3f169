"""The testbed of a scenario: a PostgreSQL server, a database, real processes, bulk creation of jobs, progress.

Server, database and processes are removed afterwards.
"""

import asyncio
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Protocol

from evertick.bench.processes import BenchFailed, Fleet, family_cpu_seconds
from evertick.bench.workload import BACKGROUND_QUEUE, QUEUE, Fields, named
from evertick.contract.jobs import Verdict
from evertick.contract.target import HTTP_QUEUE
from evertick.contract.workers import MAX_READY, QueueSettings
from evertick.store import migrate
from evertick.store.database import Pool
from evertick.store.engine import lanes
from evertick.store.server.embedded import EmbeddedServer
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create_many import LineResult, create_many
from evertick.usecases.tenants import queues, tenants
from evertick.wiring import connected_tenant, migrate_database

DATABASE = "evertick_bench"
TENANT = "default"
CHUNK = 10_000
"""Jobs in one call: the maximum of the HTTP API."""
CONCURRENT_CALLS = 2
"""One call is validated while the server writes the other."""


class BenchProgress(Protocol):
    """Shows the progress of a measurement."""

    def begin(self, what: str, total: float | None = None) -> None:
        """A step begins. `total` is its size, if known."""

    def reach(self, done: float) -> None:
        """How much of the step is done."""


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """Which server to use: the one of a URL, the embedded one of a directory, or by default a temporary one.

    `keep`: the database that is created on the server of a URL is not dropped.
    """

    database_url: str | None = None
    data_dir: Path | None = None
    keep: bool = False


@dataclass(frozen=True, slots=True)
class BenchServer:
    """A running server and a folder for logs. `postmaster` is the pid of an embedded server.

    `keeps_database`: the database is not dropped after a successful measurement.
    """

    kind: str
    url: str
    postmaster: int | None
    folder: Path
    keeps_database: bool

    @property
    def is_shared(self) -> bool:
        """Whether other programs may use the server, including other benches."""
        return self.postmaster is None


@contextmanager
def start_server(choice: ServerChoice) -> Iterator[BenchServer]:
    """The chosen server. An embedded one is stopped at the end, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="evertick-bench-"))
    folder.chmod(0o711)  # started by root, the embedded server runs as another user, which needs access
    try:
        if choice.database_url is not None:
            yield BenchServer("database_url", choice.database_url, None, folder, choice.keep)
            return
        embedded = EmbeddedServer(choice.data_dir or folder / "data")
        try:
            url = embedded.start()
            kind = "temporary" if choice.data_dir is None else "data_dir"
            yield BenchServer(kind, url, _postmaster(embedded), folder, keeps_database=choice.data_dir is not None)
        finally:
            embedded.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _postmaster(embedded: EmbeddedServer) -> int:
    first, _, _ = (embedded.cluster / "postmaster.pid").read_text(encoding="utf-8").partition("\n")
    return int(first)


@dataclass(frozen=True, slots=True)
class Testbed:
    """What a scenario uses."""

    server: BenchServer
    url: str
    tenant: TenantContext
    pool: Pool
    fleet: Fleet
    progress: BenchProgress

    async def now(self) -> datetime:
        """The database's time."""
        return await lanes.clock(self.pool)

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of each kind of process, and of an embedded server."""
        postmaster = self.server.postmaster
        server = None if postmaster is None else family_cpu_seconds(postmaster)
        return self.fleet.cpu_seconds() | ({} if server is None else {"postgres": server})

    async def load(self, jobs: Iterable[Fields], total: int, what: str) -> float:
        """Create jobs in bulk, as the API does. Returns the duration in seconds."""
        return await self.create_in_chunks(
            jobs, total, what, lambda chunk: create_many(self.tenant, chunk), CONCURRENT_CALLS
        )

    async def create_in_chunks(
        self,
        jobs: Iterable[Fields],
        total: int,
        what: str,
        create: Callable[[list[Fields]], Awaitable[Sequence[LineResult | Verdict]]],
        concurrent_calls: int,
    ) -> float:
        """Create jobs, as many in each call as the API takes. Returns the duration in seconds."""
        self.progress.begin(what, total)
        remaining, done = named(jobs), 0

        async def create_chunks() -> None:
            nonlocal done
            while chunk := list(islice(remaining, CHUNK)):
                rejected = next((line for line in await create(chunk) if line.job_id is None), None)
                if rejected is not None:
                    raise BenchFailed(f"a job is invalid: {rejected}")
                done += len(chunk)
                self.progress.reach(done)

        began = time.monotonic()
        await asyncio.gather(*(create_chunks() for _ in range(concurrent_calls)))
        return time.monotonic() - began

    async def sleep_until(self, at: datetime, what: str) -> None:
        """Wait for an instant of the database's clock. Fails if a process ends meanwhile."""
        left = (at - await self.now()).total_seconds()
        self.progress.begin(what, max(left, 0))
        began = time.monotonic()
        while (passed := time.monotonic() - began) < left:
            self.fleet.check()
            self.progress.reach(passed)
            await asyncio.sleep(min(0.5, left - passed))

    async def sleep(self, seconds: float, what: str) -> None:
        await self.sleep_until(await self.now() + timedelta(seconds=seconds), what)


@asynccontextmanager
async def open_testbed(server: BenchServer, progress: BenchProgress, *, reuse_database: bool) -> AsyncIterator[Testbed]:
    """A testbed on a database of its own. Its processes are ended with it, whatever happens."""
    async with _create_database(server, reuse=reuse_database) as url, connected_tenant(url, TENANT) as tenant:
        assert isinstance(tenant.pool, Pool)
        # Scenarios make as much ready as they are asked for, before any worker runs.
        await tenants.edit(tenant.pool, tenants.public_id(tenant.tenant_id), {"ready_quota": 2**31 - 1})
        for queue in (QUEUE, BACKGROUND_QUEUE, HTTP_QUEUE):
            await queues.limit_queue(tenant, queue, QueueSettings(max_ready=MAX_READY))
        fleet = Fleet(url, server.folder)
        try:
            yield Testbed(server, url, tenant, tenant.pool, fleet, progress)
            await fleet.stop()
        finally:
            await fleet.kill()


@asynccontextmanager
async def _create_database(server: BenchServer, *, reuse: bool) -> AsyncIterator[str]:
    """The URL of a migrated database for one measurement.

    In a directory that the user chose, the database stays, and scenarios with `reuse` use it again. It is dropped if
    the measurement did not complete.
    """
    name = DATABASE if reuse else f"{DATABASE}_fresh"
    if server.is_shared:
        name = f"{DATABASE}_{secrets.token_hex(4)}"
    elif not reuse:
        await migrate.drop_database(server.url, name)
    is_done = False
    try:
        url = await migrate.create_database(server.url, name)
        await migrate_database(url)
        yield url
        is_done = True
    finally:
        if not (is_done and server.keeps_database):
            await migrate.drop_database(server.url, name)
