"""How many handlers run at once in all workers, counted by the handlers themselves while workers are killed."""

import json
import random
from pathlib import Path

import pytest

from evertick.usecases.tenants import queues
from faults.cluster import Cluster

CAP = 5
WORKERS = 4
DONE = "SELECT count(*) FROM outcomes WHERE result = 'success'"


def _seen(folder: Path) -> list[int]:
    lines = [line for each in folder.glob("*.receipts") for line in each.read_text(encoding="utf-8").splitlines()]
    return [int(json.loads(line)["running"]) for line in lines]


async def _keep_cap(url: str, folder: Path, runs: int, kills: int) -> None:
    chance = random.Random(7)
    cluster = Cluster(url, folder)
    await cluster.open()
    try:
        await queues.edit_queue(cluster.tenant, "faults", {"max_running": CAP})
        cluster.scheduler()
        workers = [cluster.worker() for _ in range(WORKERS)]
        target = {"type": "worker", "queue": "faults", "handler": "occupy"}
        await cluster.jobs(runs, schedule="now", target=target, payload={"folder": str(folder)})
        for number in range(kills):
            done = await cluster.value(DONE)
            await cluster.until_count(DONE, min(done + chance.randrange(1, runs // (kills + 1)), runs))
            before = _seen(folder).count(CAP)
            workers.pop(chance.randrange(WORKERS)).kill()
            workers.append(cluster.worker())

            async def is_reached(before: int = before) -> bool:
                return _seen(folder).count(CAP) > before or await cluster.value(DONE) >= runs

            await cluster.until(is_reached, f"{CAP} run at once again after kill {number}")
        await cluster.until_count(DONE, runs)
        assert max(_seen(folder)) == CAP
    finally:
        await cluster.close()


async def test_a_cap_holds_while_workers_are_killed_and_is_reached_again(database_url: str, tmp_path: Path) -> None:
    await _keep_cap(database_url, tmp_path, runs=150, kills=2)


@pytest.mark.campaign
async def test_a_cap_holds_through_many_kills(database_url: str, tmp_path: Path) -> None:
    await _keep_cap(database_url, tmp_path, runs=10_000, kills=40)
