"""A database that loses its newest commits under running processes. Whatever these had in memory, no job gets another
one's rule or queue, and no tenant sees another's payload.
"""

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from api.callers import Caller, Callers
from api.processes import served
from evertick.domain.ids import Prefix, format_id, parse_run_id
from evertick.domain.states import Outcome
from faults.cluster import Cluster
from faults.rewind import Snapshot

PAYROLL = {"type": "worker", "queue": "payroll", "handler": "note"}
"""A handler that the other tenant's worker has too: it would run what it was given."""


class Owner:
    """Another tenant than that of the cluster's worker, which acts through the API alone."""

    def __init__(self, cluster: Cluster, caller: Caller) -> None:
        self._cluster = cluster
        self._caller = caller

    async def create(self, schedule: str, payload: str) -> str:
        """Create a job as soon as the API has the database again."""
        created: list[dict[str, Any]] = []

        async def is_created() -> bool:
            answer = await self._caller.post(
                "/jobs",
                json={"schedule": schedule, "target": PAYROLL, "payload": payload, "concurrent_policy": "ALLOW"},
            )
            assert answer.status_code in {201, 503}, answer.text
            if answer.status_code == 201:
                created.append(answer.json())
            return bool(created)

        await self._cluster.until(is_created, "the API creates jobs again")
        return str(created[0]["job_id"])

    async def works_off(self, job_id: str, count: int) -> list[datetime]:
        """Run so many attempts of a job; their fire times."""
        fire_ats: list[datetime] = []

        async def are_done() -> bool:
            for attempt in await self._caller.lease("payroll"):
                await self._caller.record({"token": attempt["token"], "result": Outcome.SUCCESS})
                assert attempt["payload"] == "secret"
                if attempt["job_id"] == job_id:
                    fire_ats.append(datetime.fromisoformat(attempt["scheduled_at"]))
            return len(fire_ats) >= count

        await self._cluster.until(are_done, f"{count} runs of {job_id}")
        return sorted(fire_ats)


@pytest.fixture
async def owner(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Owner]:
    with served(cluster.url, tmp_path / "api.log") as api:
        callers = Callers(api.address, cluster.pool)
        yield Owner(cluster, await callers.make("admin", await callers.tenant()))
        await callers.close()


async def test_jobs_keep_to_their_own_rule_queue_and_tenant_after_commits_were_lost(
    cluster: Cluster, owner: Owner
) -> None:
    snapshot = Snapshot(cluster.url)
    await snapshot.take()
    cluster.scheduler()
    cluster.worker()
    # The API and the scheduler get to know a rule, a queue and a lane, which are then lost.
    await owner.works_off(await owner.create("now", "secret"), 1)
    await owner.works_off(await owner.create("every 1s", "secret"), 2)
    await snapshot.rewind()
    # Another process adds a rule, a queue and lanes: on a server that knows nothing of those.
    theirs = await until_created(cluster)
    assert await owner.works_off(await owner.create("now", "secret"), 1)
    first, second = (await owner.works_off(await owner.create("every 1s", "secret"), 2))[:2]
    assert second - first == timedelta(seconds=1)
    received = await received_jobs(cluster)
    assert received
    assert received <= theirs


async def until_created(cluster: Cluster) -> set[str]:
    """Jobs of the cluster's tenant in all partitions, one of which runs at once."""
    created: list[str] = []

    async def are_created() -> bool:
        try:
            created.extend(await cluster.jobs(256, "yearly", schedule="@yearly"))
            created.extend(await cluster.jobs(1, "once", schedule="now"))
        except OSError:
            return False  # the pool has a connection that was cut
        return True

    await cluster.until(are_created, "jobs can be created again")
    return set(created)


async def received_jobs(cluster: Cluster) -> set[str]:
    """Of which jobs the cluster's worker was given attempts."""
    found: set[str] = set()

    async def has_received() -> bool:
        for log in cluster.folder.glob("worker-*.receipts"):
            runs = [json.loads(line)["run_id"] for line in log.read_text(encoding="utf-8").splitlines()]
            found.update(format_id(Prefix.JOB, parse_run_id(run_id).job_id) for run_id in runs)
        return bool(found)

    await cluster.until(has_received, "the worker has run a job")
    return found
