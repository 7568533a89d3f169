"""Handlers that block their worker, payloads that fail, rules that nobody can read: neighbours are unharmed."""

from typing import Any

import pytest

from evertick.domain.ids import Prefix, parse_id
from faults.cluster import LEASE_SECONDS, LONG_LEASES, Cluster

pytestmark = pytest.mark.slow

RUNS = "SELECT count(*) FROM outcomes"
LATEST = "SELECT result::text, is_final FROM outcomes JOIN attempts USING (lane_id, seq) WHERE job_id = $1 ORDER BY seq"


def _target(handler: str) -> dict[str, str]:
    return {"type": "worker", "queue": "faults", "handler": handler}


async def _outcomes(cluster: Cluster, job_id: str) -> list[tuple[str, bool]]:
    return [(row[0], row[1]) for row in await cluster.pool.fetch(LATEST, parse_id(Prefix.JOB, job_id))]


@pytest.mark.parametrize("handler", ["block_loop", "hold_gil"])
async def test_a_handler_that_blocks_its_worker_for_longer_than_its_lease_is_counted_once(
    cluster: Cluster, handler: str
) -> None:
    cluster.scheduler()
    for _ in range(2):
        cluster.worker()
    await cluster.jobs(30, schedule="every 1s", concurrent_policy="ALLOW", max_concurrent=100)
    await cluster.until_count(RUNS, 60)
    payload = {"seconds": 3 * LEASE_SECONDS}
    (job_id,) = await cluster.jobs(
        1, "blocking", schedule="now", target=_target(handler), payload=payload, max_retries=2
    )

    async def has_ended() -> bool:
        return any(is_final for _, is_final in await _outcomes(cluster, job_id))

    await cluster.until(has_ended, "the run has ended")
    await cluster.until_count(RUNS, await cluster.value(RUNS) + 60)
    await cluster.wait_until_idle()
    await cluster.check()
    outcomes = await _outcomes(cluster, job_id)
    assert [is_final for _, is_final in outcomes] == [False] * (len(outcomes) - 1) + [True]
    assert {result for result, _ in outcomes[:-1]} <= {"lost"}
    assert outcomes[-1] == ("success", True)


def _deep(levels: int) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    for _ in range(levels):
        payload = {"in": payload}
    return payload


async def test_payloads_that_fail_become_dead_letters_and_their_neighbours_fire(cluster: Cluster) -> None:
    cluster.settings |= LONG_LEASES
    await cluster.jobs(20, schedule="every 1s", concurrent_policy="ALLOW", max_concurrent=100)
    once = {"schedule": "now", "target": _target("fail"), "max_retries": 2, "retry_delay_seconds": 0.1}
    poison = [
        *await cluster.jobs(1, "raises", **once, payload={}),
        *await cluster.jobs(1, "large", **once, payload={"text": "x" * 60_000}),
        *await cluster.jobs(1, "deep", **once, payload=_deep(30)),
        *await cluster.jobs(1, "strange", **once, payload={"\ud7ff\u0001": "\U0010ffff"}),
    ]
    cluster.scheduler()
    cluster.worker()
    await cluster.until_count("SELECT count(*) FROM dead_letters", len(poison))
    await cluster.until_count(RUNS, await cluster.value(RUNS) + 60)
    await cluster.wait_until_idle()
    await cluster.check()
    for job_id in poison:
        assert await _outcomes(cluster, job_id) == [("failed", False), ("failed", False), ("failed", True)]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param("UPDATE rules SET canonical = '{\"spec\": 7' WHERE rule_id = $1", "cannot be read", id="corrupt"),
        pytest.param(
            "UPDATE rules SET canonical = replace(canonical, 'Europe/Paris', 'Europe/Atlantis') WHERE rule_id = $1",
            "Europe/Atlantis",
            id="zone removed",
        ),
        pytest.param("DELETE FROM rules WHERE rule_id = $1", "is missing", id="missing"),
    ],
)
async def test_a_rule_that_cannot_be_read_pauses_its_job_with_the_reason_and_the_neighbours_fire(
    cluster: Cluster, spoil: str, reason: str
) -> None:
    await cluster.jobs(20, schedule="every 1s", concurrent_policy="ALLOW", max_concurrent=100)
    (job_id,) = await cluster.jobs(1, "poison", schedule="* * * * * *", timezone="Europe/Paris")
    key = parse_id(Prefix.JOB, job_id)
    rule_id = await cluster.value("SELECT rule_id FROM timers WHERE job_id = $1", key)
    await cluster.pool.execute(spoil, rule_id)
    cluster.scheduler()
    cluster.worker()

    async def is_paused() -> bool:
        return bool(await cluster.value("SELECT status = 'paused' FROM jobs WHERE job_id = $1", key))

    await cluster.until(is_paused, "the job is paused")
    assert reason in await cluster.value("SELECT pause_reason FROM jobs WHERE job_id = $1", key)
    await cluster.until_count(RUNS, await cluster.value(RUNS) + 100)
    await cluster.wait_until_idle()
    assert await cluster.value("SELECT count(*) FROM attempts WHERE job_id = $1", key) == 0
    neighbours = [job for job in (await cluster.ledger()).jobs if job.job_id != key]
    assert sum(len(job.runs) for job in neighbours) >= 100
