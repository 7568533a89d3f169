"""Shared by the long fault tests: a full cluster with clients that create jobs, and the check of its history."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from evertick.domain.ids import Prefix, parse_id
from faults.full_cluster import FIRST, SECOND, FullCluster
from faults.job_creators import JobCreator
from faults.report import ASTRAY, CampaignReport, count_unfinished, report_on, still_fire
from faults.webhook_receiver import receiving

OUTCOMES = "SELECT count(*) FROM outcomes"
TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Load:
    """The number of jobs of each kind, the longest duration of handlers, and the seconds of commits to lose."""

    jobs: int
    longest_seconds: float
    lost_seconds: float


SHORT = Load(jobs=4, longest_seconds=3, lost_seconds=2)
LONG = Load(jobs=40, longest_seconds=18, lost_seconds=2.5)


class Campaign:
    """A running cluster with all roles, and clients that create jobs continuously."""

    def __init__(self, cluster: FullCluster, creators: list[JobCreator]) -> None:
        self.cluster = cluster
        self.creators = creators
        self._creating = [asyncio.create_task(creator.run()) for creator in creators]

    async def more_outcomes(self, count: int) -> None:
        done = await self.cluster.value(OUTCOMES)
        await self.cluster.until_count(OUTCOMES, done + count, TIMEOUT_SECONDS)

    async def end(self, after: datetime) -> CampaignReport:
        """Wait until every job has fired after an instant and every run has ended, and check the history."""
        silent = await still_fire(self.cluster, after, TIMEOUT_SECONDS)
        await self.stop_creating()
        ended_us = time.time_ns() // 1000
        stuck = await count_unfinished(self.cluster, TIMEOUT_SECONDS)
        report, verdicts = await report_on(self.cluster, silent=silent, stuck=stuck, ended_us=ended_us)
        sys.stdout.write(f"\n{report}\n" + "".join(f"{verdict}\n" for verdict in verdicts))
        assert (report.stuck, report.silent, report.summary.lost) == (0, 0, 0)
        assert [verdict for verdict in verdicts if not verdict.ok] == []
        strangers = [line for line in self.cluster.receipts() if line.get("owner") != line.get("serves")]
        assert strangers == []
        assert await self.cluster.value(ASTRAY) == 0
        return report

    async def stop_creating(self) -> None:
        """Stop the clients that create jobs."""
        for each in self._creating:
            each.cancel()
        await asyncio.gather(*self._creating, return_exceptions=True)

    async def missing(self, before_us: float, after_us: float) -> int:
        """How many jobs are missing whose creation was acknowledged outside of an interval."""
        acknowledged = {
            parse_id(Prefix.JOB, job_id)
            for creator in self.creators
            for job_id, at_us in creator.acknowledged.items()
            if not before_us <= at_us <= after_us
        }
        assert acknowledged
        there = await self.cluster.value("SELECT count(*) FROM jobs WHERE job_id = ANY($1)", list(acknowledged))
        return len(acknowledged) - int(there)


@asynccontextmanager
async def everything(url: str, folder: Path, load: Load, **settings: str) -> AsyncIterator[Campaign]:
    """A cluster with each role in its own processes, on one database."""
    async with receiving(folder, serves=FIRST) as receiver:
        cluster = FullCluster(url, folder, receiver.url)
        cluster.settings = settings
        try:
            await cluster.begin()
            roles = (cluster.scheduler, cluster.direct_worker)
            starting = [asyncio.to_thread(start) for start in (*roles, *roles, cluster.dispatcher)]
            address, _ = await asyncio.gather(asyncio.to_thread(cluster.api_address), asyncio.gather(*starting))
            await asyncio.to_thread(cluster.pull_worker, address)
            await add_jobs(cluster, load)
            async with at_work(cluster, address) as campaign:
                await campaign.more_outcomes(10 * load.jobs)
                yield campaign
        finally:
            await cluster.close()


@asynccontextmanager
async def at_work(cluster: FullCluster, address: str) -> AsyncIterator[Campaign]:
    """A started cluster, and clients that create jobs."""
    campaign = Campaign(cluster, [JobCreator(owner, address, key) for owner, key in cluster.editors.items()])
    try:
        yield campaign
    finally:
        await campaign.stop_creating()


async def add_jobs(cluster: FullCluster, load: Load) -> None:
    """Jobs of all policies, of both tenants, of workers and of webhooks, with handlers of all lengths."""
    shares = [(0.03, "ALLOW"), (0.3, "SKIP"), (0.6, "SKIP"), (1.0, "SKIP"), (0.5, "QUEUE"), (1.0, "REPLACE")]
    for share, policy in shares:
        await cluster.add(FIRST, load.jobs, policy, seconds=share * load.longest_seconds)
    await cluster.add(SECOND, load.jobs, "SKIP", seconds=0.3 * load.longest_seconds)
    for policy in ("SKIP", "REPLACE", "ALLOW"):
        await cluster.add_webhooks(load.jobs, policy)
