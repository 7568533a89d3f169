"""One tenant has very many jobs due at the same instant: the jobs of another start as before."""

import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from evertick.usecases.jobs.create_many import create_many
from faults.cluster import LONG_LEASES, PATIENT_US
from faults.full_cluster import FIRST, RETRIED, SECOND, WORKER_TARGET, FullCluster
from faults.watch import Watch

pytestmark = pytest.mark.slow

NEIGHBOURS = 30
BATCH = 1_000
FLOODED = """
SELECT count(*) FROM outcomes JOIN attempts USING (lane_id, seq) JOIN jobs USING (job_id) WHERE name LIKE 'flood%'
"""
OUTCOMES = "SELECT count(*) FROM outcomes"


@pytest.fixture
async def cluster(database_url: str, tmp_path: Path) -> AsyncIterator[FullCluster]:
    cluster = FullCluster(database_url, tmp_path, "http://127.0.0.1:1/")
    cluster.settings |= LONG_LEASES
    await cluster.begin()
    yield cluster
    await cluster.close()


async def _flood(cluster: FullCluster, count: int) -> None:
    """So many jobs, all due at one instant, shortly after the last of them was created."""
    payload = {"seconds": 0, "owner": FIRST}
    job = {**RETRIED, "misfire_grace_seconds": 3600, "target": WORKER_TARGET, "payload": payload}
    batches = [range(begin, min(begin + BATCH, count)) for begin in range(0, count, BATCH)]
    began = time.monotonic()
    await _create(cluster, [{**job, "schedule": "manual", "name": f"measured-{number}"} for number in batches[0]])
    takes = timedelta(seconds=5 + 2 * len(batches) * (time.monotonic() - began))
    due_at = (await cluster.value("SELECT clock_at()") + takes).replace(microsecond=0).isoformat()
    for batch in batches:
        await _create(cluster, [{**job, "schedule": due_at, "name": f"flood-{number}"} for number in batch])


async def _create(cluster: FullCluster, jobs: list[dict[str, object]]) -> None:
    verdicts = await create_many(cluster.tenant, jobs)
    assert not [verdict.faults for verdict in verdicts if verdict.faults]


@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=pytest.mark.campaign)])
async def test_many_jobs_due_at_once_leave_other_tenants_their_service(cluster: FullCluster, count: int) -> None:
    for _ in range(2):
        cluster.scheduler()
    cluster.direct_worker()
    cluster.pull_worker(cluster.api_address())
    await cluster.add(SECOND, NEIGHBOURS, "ALLOW", seconds=0)
    await cluster.until_count(OUTCOMES, 2 * NEIGHBOURS)
    watch = Watch(cluster)
    await watch.calm(10 * NEIGHBOURS)
    watch.broken()
    await _flood(cluster, count)
    await cluster.until_count(FLOODED, count, 1200)
    watch.heal()
    rows = await cluster.pool.fetch("SELECT job_id FROM jobs WHERE tenant_id = $1", cluster.second)
    await watch.judge({SECOND: {row["job_id"] for row in rows}}, is_timed=count > 3_000)
    verdicts = await cluster.check(allow_gaps=False, bound_us=2 * PATIENT_US)
    assert verdicts["C4"].figures["duplicates"] == 0
