"""Processes of an older version are replaced by those of this one, one after the other, under load.

`PREVIOUS` is the commit of the older version, from which on migrations are never edited: databases with its schema may
be in use. After a release, set it to the commit of that release. It must be in the history: in a shallow clone and
without git the test is skipped.
"""

import asyncio
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest

import postgres
from evertick.store.engine import lanes
from evertick.store.migrate import migrations
from faults.campaign import Campaign
from faults.checkers import lost_before_started_again
from faults.cluster import Cluster
from faults.full_cluster import FIRST, RECURRING, RETRIED, WORKER_TARGET, FullCluster
from faults.job_creators import JobCreator
from faults.ledger import read_deliveries
from faults.processes import Process
from faults.webhook_receiver import receiving
from ports import free_port

pytestmark = pytest.mark.slow

PREVIOUS = "3596981514d339ee36e5f010658c893da8cb9f13"
REPOSITORY = Path(__file__).parents[2]
LEASES = {"EVERTICK_LEASE_SECONDS": "30"}
"""As by default. While its API is away a remote worker can neither extend its leases nor record what it has done. On a
busy machine that may take longer: these runs are started again."""
MISSED = "SELECT count(*) FROM gaps WHERE reason NOT IN ('overlap', 'dst')"


def _source_of(commit: str, folder: Path) -> Path:
    """The source of a commit, as it was."""
    command = ["git", "-C", str(REPOSITORY), "archive", commit, "src", "tests"]
    try:
        archived = subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"NOT TESTED: A ROLLING UPGRADE, because git has no {commit[:7]} here ({error})")
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _roles(cluster: FullCluster, port: int, pull_key: str, each: int) -> list[Callable[[], Process]]:
    """What starts each process, in the order in which they are replaced. The API keeps its port."""
    return [
        lambda: cluster.api(port=port),
        *[cluster.scheduler] * (each + 1),
        *[cluster.direct_worker] * each,
        *[cluster.dispatcher] * each,
        *[lambda: cluster.pull_worker(f"http://127.0.0.1:{port}", pull_key, FIRST)] * each,
    ]


def _key(cluster: FullCluster, role: str) -> str:
    said = cluster.run("keys", "create", "--role", role, "--json")
    return str(httpx.Response(200, content=said).json()["api_key"])


def _recurring(hook_url: str, each: int) -> list[dict[str, Any]]:
    kinds: list[tuple[str, float, dict[str, Any]]] = [
        ("ALLOW", 0.1, WORKER_TARGET),
        ("SKIP", 1.5, WORKER_TARGET),
        ("QUEUE", 0.7, WORKER_TARGET),
        ("REPLACE", 1.5, WORKER_TARGET),
        ("ALLOW", 0, {"type": "http", "url": hook_url}),
    ]
    return [
        {
            **RETRIED,
            "name": f"{RECURRING}-{kind}-{number}",
            "schedule": "every 1s",
            "concurrent_policy": policy,
            "max_concurrent": 20 if policy == "ALLOW" else 1,
            "target": target,
            "payload": {"seconds": seconds, "owner": FIRST},
        }
        for kind, (policy, seconds, target) in enumerate(kinds)
        for number in range(each)
    ]


async def _create(address: str, key: str, jobs: list[dict[str, Any]]) -> None:
    """By the API of the old version: this one's code need not understand the old schema."""
    async with httpx.AsyncClient(
        base_url=f"{address}/api/v1", headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=120
    ) as client:
        for job in jobs:
            (await client.post("/jobs", json=job)).raise_for_status()


@dataclass(frozen=True, slots=True)
class Size:
    """The number of processes of each role, and of jobs of each kind."""

    processes: int
    jobs: int


async def _upgrade(cluster: FullCluster, hook_url: str, previous: Path, size: Size) -> None:
    cluster.source = previous
    await asyncio.to_thread(cluster.run, "migrate")
    await cluster.open()
    keys = {role: await asyncio.to_thread(_key, cluster, role) for role in ("editor", "worker")}
    port = free_port()
    roles = _roles(cluster, port, keys["worker"], size.processes)
    api = await asyncio.to_thread(roles[0])
    processes = [api, *await asyncio.gather(*map(asyncio.to_thread, roles[1:]))]
    await _create(f"http://127.0.0.1:{port}", keys["editor"], _recurring(hook_url, size.jobs))
    campaign = Campaign(cluster, [JobCreator(FIRST, f"http://127.0.0.1:{port}", keys["editor"])])
    try:
        await campaign.more_outcomes(20 * size.jobs)
        cluster.source = None
        await asyncio.to_thread(cluster.run, "migrate")
        await campaign.more_outcomes(20 * size.jobs)
        for process, start in zip(processes, roles, strict=True):
            assert await asyncio.to_thread(process.terminate) == 0
            await asyncio.to_thread(start)
            await campaign.more_outcomes(5 * size.jobs)
        report = await campaign.end(await lanes.clock(cluster.pool))
    finally:
        await campaign.stop_creating()
    assert report.unrecorded == 0
    again = lost_before_started_again((await cluster.ledger()).jobs, read_deliveries(cluster.folder.glob("*.receipts")))
    sys.stdout.write(f"{again}\n")
    assert again.ok, again
    assert await campaign.missing(0, 0) == 0
    assert await cluster.value(MISSED) == 0


@pytest.mark.parametrize("size", [Size(1, 2), pytest.param(Size(2, 20), marks=pytest.mark.campaign)], ids=str)
async def test_an_upgrade_process_by_process_loses_no_tick_and_starts_a_run_again_only_if_its_lease_ran_out(
    postgres_server: postgres.Server, tmp_path: Path, size: Size
) -> None:
    previous = _source_of(PREVIOUS, tmp_path / "previous")
    async with postgres_server.database(empty=True) as url, receiving(tmp_path, serves=FIRST) as receiver:
        cluster = FullCluster(url, tmp_path, receiver.url)
        cluster.settings = dict(LEASES)
        try:
            await _upgrade(cluster, receiver.url, previous, size)
        finally:
            await cluster.close()


async def test_processes_start_again_on_the_schema_of_a_newer_version(cluster: Cluster) -> None:
    newest = migrations()[-1].name
    await cluster.pool.execute("INSERT INTO migrations (name, digest, needs) VALUES ('9999_future', '', $1)", newest)
    cluster.scheduler()
    cluster.worker()
    said = cluster.api().log.read_text(encoding="utf-8")
    address = said.partition("Evertick is ready at ")[2].split()[0]
    async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
        assert (await client.get(f"{address}/readyz")).status_code == 200
    await cluster.jobs(5, schedule="every 1s")
    await cluster.until_count("SELECT count(*) FROM outcomes", 10)
    await cluster.wait_until_idle()
    await cluster.check()
