"""What the long fault tests share: a full cluster at work with people who create jobs, and its end, judged."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from evertick.domain.ids import Prefix, parse_id
from faults.customers import Customer
from faults.full_cluster import FIRST, SECOND, FullCluster, webhooks
from faults.report import ASTRAY, Report, report_on, settled, still_fire

OUTCOMES = "SELECT count(*) FROM outcomes"
PATIENCE_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Load:
    """How many jobs of each kind, how long their handlers take at most, and how many commits are to be lost."""

    jobs: int
    longest_seconds: float
    lost_seconds: float


SHORT = Load(jobs=4, longest_seconds=3, lost_seconds=2)
LONG = Load(jobs=40, longest_seconds=18, lost_seconds=2.5)


class Stage:
    """A full cluster at work, and people who create jobs all the time."""

    def __init__(self, cluster: FullCluster, customers: list[Customer]) -> None:
        self.cluster = cluster
        self.customers = customers
        self._shopping = [asyncio.create_task(customer.shop()) for customer in customers]

    async def more_outcomes(self, count: int) -> None:
        done = await self.cluster.value(OUTCOMES)
        await self.cluster.until_count(OUTCOMES, done + count, PATIENCE_SECONDS)

    async def end(self, after: datetime) -> Report:
        """Wait until every job has fired after an instant, let everything end, and judge it."""
        silent = await still_fire(self.cluster, after, PATIENCE_SECONDS)
        await self.send_home()
        ended_us = time.time_ns() // 1000
        stuck = await settled(self.cluster, PATIENCE_SECONDS)
        report, verdicts = await report_on(self.cluster, silent=silent, stuck=stuck, ended_us=ended_us)
        sys.stdout.write(f"\n{report}\n" + "".join(f"{verdict}\n" for verdict in verdicts))
        assert (report.stuck, report.silent, report.lost) == (0, 0, 0)
        assert [verdict for verdict in verdicts if not verdict.ok] == []
        strangers = [line for line in self.cluster.receipts() if line.get("owner") != line.get("serves")]
        assert strangers == []
        assert await self.cluster.value(ASTRAY) == 0
        return report

    async def send_home(self) -> None:
        """Let nobody create anything any more."""
        for each in self._shopping:
            each.cancel()
        await asyncio.gather(*self._shopping, return_exceptions=True)

    async def missing(self, before_us: float, after_us: float) -> int:
        """How many creations that were acknowledged outside of a stretch of time are not there."""
        acknowledged = {
            parse_id(Prefix.JOB, job_id)
            for customer in self.customers
            for job_id, at_us in customer.acknowledged.items()
            if not before_us <= at_us <= after_us
        }
        assert acknowledged
        there = await self.cluster.value("SELECT count(*) FROM jobs WHERE job_id = ANY($1)", list(acknowledged))
        return len(acknowledged) - int(there)


@asynccontextmanager
async def everything(url: str, folder: Path, load: Load, **settings: str) -> AsyncIterator[Stage]:
    """Each role in processes of its own on one database, at work."""
    async with webhooks(folder) as port:
        cluster = FullCluster(url, folder, port)
        cluster.settings = settings
        try:
            await cluster.begin()
            roles = (cluster.scheduler, cluster.direct_worker)
            starting = [asyncio.to_thread(start) for start in (*roles, *roles, cluster.dispatcher)]
            address, _ = await asyncio.gather(asyncio.to_thread(cluster.api_address), asyncio.gather(*starting))
            await asyncio.to_thread(cluster.pull_worker, address)
            await add_jobs(cluster, load)
            async with at_work(cluster, address) as stage:
                await stage.more_outcomes(10 * load.jobs)
                yield stage
        finally:
            await cluster.close()


@asynccontextmanager
async def at_work(cluster: FullCluster, address: str) -> AsyncIterator[Stage]:
    """A cluster whose processes were started, and people who create jobs meanwhile."""
    stage = Stage(cluster, [Customer(owner, address, key) for owner, key in cluster.editors.items()])
    try:
        yield stage
    finally:
        await stage.send_home()


async def add_jobs(cluster: FullCluster, load: Load) -> None:
    """Jobs of all policies, of both tenants, of workers and of webhooks, with handlers of all lengths."""
    shares = [(0.03, "ALLOW"), (0.3, "SKIP"), (0.6, "SKIP"), (1.0, "SKIP"), (0.5, "QUEUE"), (1.0, "REPLACE")]
    for share, policy in shares:
        await cluster.add(FIRST, load.jobs, policy, seconds=share * load.longest_seconds)
    await cluster.add(SECOND, load.jobs, "SKIP", seconds=0.3 * load.longest_seconds)
    for policy in ("SKIP", "REPLACE", "ALLOW"):
        await cluster.add_webhooks(load.jobs, policy)
