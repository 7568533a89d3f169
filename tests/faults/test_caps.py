"""How many handlers run at once in all workers, counted by the handlers themselves while workers are killed."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from evertick.usecases.tenants import queues
from faults.cluster import Cluster

CAP = 5
WORKERS = 4
LEASES = {"EVERTICK_LEASE_SECONDS": "10"}
"""A worker that stands still for longer runs on what others were given, and more run at once than should."""
DONE = "SELECT count(*) FROM outcomes WHERE result = 'success'"


def _seen(folder: Path) -> list[int]:
    lines = [line for each in folder.glob("*.receipts") for line in each.read_text(encoding="utf-8").splitlines()]
    return [int(json.loads(line)["running"]) for line in lines]


async def _keep_cap(url: str, folder: Path, runs: int, kills: int, *, of: str = "queue") -> None:
    chance = random.Random(7)
    cluster = Cluster(url, folder, LEASES)
    await cluster.open()
    try:
        if of == "queue":
            await queues.edit_queue(cluster.tenant, "faults", {"max_running": CAP})
        key: dict[str, Any] = {} if of == "queue" else {"concurrency_key": "{{payload.folder}}", "max_running": CAP}
        cluster.scheduler()
        workers = [cluster.worker() for _ in range(WORKERS)]
        target = {"type": "worker", "queue": "faults", "handler": "occupy"}
        await cluster.jobs(runs, schedule="now", target=target, payload={"folder": str(folder)}, **key)
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
        await cluster.check()
    finally:
        await cluster.close()


@pytest.mark.parametrize("of", ["queue", "key"])
async def test_a_cap_holds_while_workers_are_killed_and_is_reached_again(
    database_url: str, tmp_path: Path, of: str
) -> None:
    await _keep_cap(database_url, tmp_path, runs=150, kills=2, of=of)


@pytest.mark.campaign
@pytest.mark.parametrize("of", ["queue", "key"])
async def test_a_cap_holds_through_many_kills(database_url: str, tmp_path: Path, of: str) -> None:
    await _keep_cap(database_url, tmp_path, runs=10_000, kills=40, of=of)


async def test_runs_of_an_ordering_key_begin_in_order_while_workers_and_schedulers_are_killed(
    database_url: str, tmp_path: Path
) -> None:
    runs = 60
    cluster = Cluster(database_url, tmp_path, LEASES)
    await cluster.open()
    try:
        processes = {"scheduler": [cluster.scheduler(), cluster.scheduler()], "worker": [cluster.worker()]}
        target = {"type": "worker", "queue": "faults", "handler": "occupy"}
        await cluster.jobs(runs, schedule="now", target=target, payload={"folder": str(tmp_path)}, ordering_key="k")
        for kind, start in (("worker", cluster.worker), ("scheduler", cluster.scheduler)):
            done = await cluster.value(DONE)
            await cluster.until_count(DONE, min(done + 10, runs))
            processes[kind].pop().kill()
            processes[kind].append(start())
        await cluster.until_count(DONE, runs)
        assert max(_seen(tmp_path)) == 1
        rows = await cluster.pool.fetch(
            "SELECT fire_at, job_id FROM attempts JOIN outcomes USING (lane_id, seq) WHERE result = 'success'"
            " ORDER BY finished_at, seq"
        )
        begun = [(row["fire_at"], row["job_id"]) for row in rows]
        assert begun == sorted(begun)
        assert len(begun) == runs
    finally:
        await cluster.close()
