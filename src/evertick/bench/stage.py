"""What a scenario works with: a database, real processes on it, the product's own ways in, a clock, and who watches."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Protocol

from evertick.bench.processes import BenchFailed, Fleet, family_cpu_seconds
from evertick.bench.server_lifetime import Ground
from evertick.bench.workload import Fields, named
from evertick.store import lanes
from evertick.store.database import Pool
from evertick.usecases.context import Tenant
from evertick.usecases.jobs.create_many import create_many
from evertick.wiring import acting_for


class Progress(Protocol):
    """Whoever watches."""

    def begin(self, what: str, total: float | None = None) -> None:
        """Something begins that takes its time: so many steps, if that is known."""

    def reach(self, done: float) -> None:
        """So many steps of it are done."""


TENANT = "default"
CHUNK = 10_000
"""Jobs in one call, as many as the HTTP API takes."""
AT_ONCE = 2
"""Calls at once: one is read and drafted while the server writes the other."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One measurement's surroundings."""

    ground: Ground
    url: str
    tenant: Tenant
    pool: Pool
    fleet: Fleet
    progress: Progress

    async def now(self) -> datetime:
        """The database's time."""
        return await lanes.clock(self.pool)

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of each kind of process, and of the server if it is here."""
        postmaster = self.ground.postmaster
        server = None if postmaster is None else family_cpu_seconds(postmaster)
        return self.fleet.cpu_seconds() | ({} if server is None else {"postgres": server})

    async def load(self, jobs: Iterable[Fields], total: int, what: str) -> float:
        """Create jobs by the product's own bulk path; returns how many seconds that took."""
        self.progress.begin(what, total)
        waiting, done = named(jobs), 0

        async def load_on() -> None:
            nonlocal done
            while chunk := list(islice(waiting, CHUNK)):
                verdicts = await create_many(self.tenant, chunk)
                refused = next((verdict.faults for verdict in verdicts if verdict.job_id is None), None)
                if refused is not None:
                    raise BenchFailed(f"a job was refused: {refused}")
                done += len(chunk)
                self.progress.reach(done)

        began = time.monotonic()
        await asyncio.gather(*(load_on() for _ in range(AT_ONCE)))
        return time.monotonic() - began

    async def sleep_until(self, at: datetime, what: str) -> None:
        """Wait for an instant of the database's clock, while the processes live."""
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
async def staged(ground: Ground, url: str, progress: Progress) -> AsyncIterator[Stage]:
    """A stage; its processes end with it, whatever happens."""
    fleet = Fleet(url, ground.folder)
    async with acting_for(url, TENANT) as tenant:
        assert isinstance(tenant.pool, Pool)
        try:
            yield Stage(ground, url, tenant, tenant.pool, fleet, progress)
            await fleet.stop()
        finally:
            await fleet.kill()
