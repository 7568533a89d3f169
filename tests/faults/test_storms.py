"""People who edit, pause, resume and delete in tight loops while everything fires."""

import asyncio
import random

import pytest

from evertick.domain.ids import Prefix, parse_id
from evertick.domain.policies import Missed
from evertick.usecases.errors import JobNotFound
from evertick.usecases.jobs.edit import edit
from evertick.usecases.jobs.lifecycle import delete, pause, resume
from faults.cluster import Cluster

pytestmark = pytest.mark.slow

ROUNDS = 150
FIRST_ATTEMPTS = "SELECT count(*) FROM attempts WHERE job_id = $1 AND attempt = 1"
"""What a pause keeps from firing. A run that has begun goes on with its retries."""


async def test_storms_of_changes_leave_each_run_one_version_and_fire_nothing_after_a_pause(cluster: Cluster) -> None:
    job_ids = await cluster.jobs(60, schedule="every 1s", concurrent_policy="ALLOW", max_concurrent=100)
    cluster.scheduler()
    cluster.scheduler()
    cluster.worker()
    await cluster.until_count("SELECT count(*) FROM outcomes", 100)
    await asyncio.gather(*(_storm(cluster, job_ids[each::4], random.Random(each)) for each in range(4)))
    await cluster.wait_until_idle()
    await cluster.check()


async def _storm(cluster: Cluster, job_ids: list[str], chance: random.Random) -> None:
    for _ in range(ROUNDS):
        job_id = chance.choice(job_ids)
        try:
            await chance.choice([_edit, _edit, _pause_and_resume, _delete])(cluster, job_id, chance)
        except JobNotFound:
            continue


async def _edit(cluster: Cluster, job_id: str, chance: random.Random) -> None:
    changes = [{"schedule": f"every {chance.randrange(1, 4)}s"}, {"payload": None}, {"jitter_seconds": chance.random()}]
    await edit(cluster.tenant, job_id, chance.choice(changes))


async def _pause_and_resume(cluster: Cluster, job_id: str, chance: random.Random) -> None:
    await pause(cluster.tenant, job_id, "a storm")
    key = parse_id(Prefix.JOB, job_id)
    fired = await cluster.value(FIRST_ATTEMPTS, key)
    await asyncio.sleep(chance.random() / 10)  # time for something to fire, not a wait for anything
    assert await cluster.value(FIRST_ATTEMPTS, key) == fired
    await resume(cluster.tenant, job_id, chance.choice(list(Missed)))


async def _delete(cluster: Cluster, job_id: str, chance: random.Random) -> None:
    if chance.random() < 0.1:
        await delete(cluster.tenant, job_id)
