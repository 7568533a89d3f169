"""The testbed of a scenario: a database, real processes, bulk creation of jobs, the database's clock, progress."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Protocol

from evertick.bench.processes import BenchFailed, Fleet, family_cpu_seconds
from evertick.bench.server import BenchServer
from evertick.bench.workload import Fields, named
from evertick.store import lanes
from evertick.store.database import Pool
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create_many import create_many
from evertick.wiring import acting_for


class BenchProgress(Protocol):
    """Shows the progress of a measurement."""

    def begin(self, what: str, total: float | None = None) -> None:
        """A step begins. `total` is its size, if known."""

    def reach(self, done: float) -> None:
        """How much of the step is done."""


TENANT = "default"
CHUNK = 10_000
"""Jobs in one call: the maximum of the HTTP API."""
CONCURRENT_CALLS = 2
"""One call is validated while the server writes the other."""


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
        self.progress.begin(what, total)
        remaining, done = named(jobs), 0

        async def load_chunks() -> None:
            nonlocal done
            while chunk := list(islice(remaining, CHUNK)):
                verdicts = await create_many(self.tenant, chunk)
                faults = next((verdict.faults for verdict in verdicts if verdict.job_id is None), None)
                if faults is not None:
                    raise BenchFailed(f"a job is invalid: {faults}")
                done += len(chunk)
                self.progress.reach(done)

        began = time.monotonic()
        await asyncio.gather(*(load_chunks() for _ in range(CONCURRENT_CALLS)))
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
async def open_testbed(server: BenchServer, url: str, progress: BenchProgress) -> AsyncIterator[Testbed]:
    """A testbed. Its processes are ended with it, whatever happens."""
    fleet = Fleet(url, server.folder)
    async with acting_for(url, TENANT) as tenant:
        assert isinstance(tenant.pool, Pool)
        try:
            yield Testbed(server, url, tenant, tenant.pool, fleet, progress)
            await fleet.stop()
        finally:
            await fleet.kill()
