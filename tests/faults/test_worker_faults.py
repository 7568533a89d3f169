"""Workers that die or stand still at each moment of an attempt, and workers that are asked to stop."""

import signal
from pathlib import Path
from typing import Any

from faults.cluster import Cluster
from faults.ledger import read_deliveries

LEASED = "SELECT count(*) FROM leases"
RESULTS = "SELECT result::text FROM outcomes ORDER BY seq"


def _hold(until: Path, effect: str) -> dict[str, Any]:
    return {
        "schedule": "now",
        "target": {"type": "worker", "queue": "faults", "handler": "hold"},
        "payload": {"until": str(until), "effect": effect},
        "retry_delay_seconds": 0.1,
    }


async def _results(cluster: Cluster) -> list[str]:
    return [row[0] for row in await cluster.pool.fetch(RESULTS)]


async def _told(cluster: Cluster, count: int) -> None:
    async def holds() -> bool:
        return len(read_deliveries(cluster.folder.glob("*.receipts"))) >= count

    await cluster.until(holds, f"the receiver was told {count} times")


async def test_a_worker_killed_before_its_side_effect_is_followed_by_one_that_does_it(cluster: Cluster) -> None:
    gate = cluster.folder / "gate"
    cluster.scheduler()
    victim = cluster.worker()
    await cluster.jobs(3, **_hold(gate, "after"))
    await cluster.until_count(LEASED, 1)
    victim.kill()
    gate.touch()
    cluster.worker()
    await cluster.settle()
    verdicts = await cluster.judge()
    assert verdicts["C4"].figures["duplicates"] == 0
    assert sorted(await _results(cluster)) == ["lost"] * 3 + ["success"] * 3


async def test_a_worker_killed_after_its_side_effect_leads_to_a_second_one_with_a_larger_token(
    cluster: Cluster,
) -> None:
    gate = cluster.folder / "gate"
    cluster.scheduler()
    victim = cluster.worker()
    await cluster.jobs(3, **_hold(gate, "before"))
    await _told(cluster, 3)
    victim.kill()
    gate.touch()
    cluster.worker()
    await cluster.settle()
    verdicts = await cluster.judge()
    assert verdicts["C4"].figures["duplicates"] == 3


async def test_workers_killed_while_busy_lose_no_run(cluster: Cluster) -> None:
    await cluster.jobs(
        200,
        schedule="every 1s",
        target={"type": "worker", "queue": "faults", "handler": "linger"},
        payload={"seconds": 0.1},
    )
    cluster.scheduler()
    workers = [cluster.worker(), cluster.worker()]
    for _ in range(4):
        count = await cluster.value("SELECT count(*) FROM outcomes")
        await cluster.until_count("SELECT count(*) FROM outcomes", count + 150)
        workers.pop(0).kill()
        workers.append(cluster.worker())
    await cluster.settle()
    await cluster.judge()


async def test_a_worker_that_slept_past_its_lease_is_told_that_its_outcome_is_stale(cluster: Cluster) -> None:
    gate = cluster.folder / "gate"
    cluster.scheduler()
    sleeper = cluster.worker()
    await cluster.jobs(1, **_hold(gate, "before"))
    await _told(cluster, 1)
    sleeper.send(signal.SIGSTOP)
    cluster.worker()
    await _told(cluster, 2)
    sleeper.send(signal.SIGCONT)
    gate.touch()
    await cluster.settle()
    verdicts = await cluster.judge()
    assert await _results(cluster) == ["lost", "success"]
    assert verdicts["C4"].figures["duplicates"] == 1


async def test_a_worker_asked_to_stop_finishes_or_hands_back_and_burns_no_attempt(cluster: Cluster) -> None:
    await cluster.jobs(
        300,
        schedule="now",
        target={"type": "worker", "queue": "faults", "handler": "linger"},
        payload={"seconds": 0.3},
    )
    cluster.scheduler()
    leaver = cluster.worker("--concurrency", "20")
    await _told(cluster, 10)
    assert leaver.terminate() == 0
    cluster.worker()
    await cluster.settle()
    verdicts = await cluster.judge()
    assert verdicts["C4"].figures["duplicates"] == 0
    assert set(await _results(cluster)) <= {"success", "deferred"}
    assert await cluster.value("SELECT max(attempt) FROM attempts") == 1
