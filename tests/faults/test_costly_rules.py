"""Rules that are costly to plan are due while their scheduler stands still: who takes over does not stand still too."""

import signal
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from evertick.usecases.jobs.create_many import create_many
from faults.cluster import LONG_LEASES, PATIENT_GRACE, Cluster
from roles.costly import NEW_YORK, SWALLOWED

pytestmark = pytest.mark.slow

COSTLY = 200
SOON = timedelta(seconds=15)
HEARTBEAT_TIMEOUT = "15"
"""Costly rules at once on the loop took longer. A machine that stands still for some seconds does not."""
HELD = "SELECT count(*) FROM partitions WHERE holder LIKE '%-' || $1 || '-%'"
FIRED = "SELECT count(DISTINCT job_id) FROM attempts JOIN jobs USING (job_id) WHERE name LIKE 'costly %'"


async def _create_costly(cluster: Cluster, fire_at: datetime) -> None:
    """Jobs that fire at this time and never again."""
    wall = fire_at.astimezone(ZoneInfo(NEW_YORK)).strftime("%Y%m%dT%H%M%S")
    job = {
        "timezone": NEW_YORK,
        "dst_gap": "skip",
        "misfire_grace_seconds": 600,
        "target": {"type": "worker", "queue": "faults", "handler": "note"},
    }
    batch = [
        {**job, "name": f"costly {n}", "schedule": f"{SWALLOWED}{n % 60};BYSECOND={n // 60}\nRDATE:{wall}"}
        for n in range(COSTLY)
    ]
    verdicts = await create_many(cluster.tenant, batch)
    assert not [verdict.faults for verdict in verdicts if verdict.faults]


async def test_who_takes_over_costly_rules_beats_on_and_fires_its_neighbours(cluster: Cluster) -> None:
    cluster.settings |= {**LONG_LEASES, "EVERTICK_HEARTBEAT_TIMEOUT_SECONDS": HEARTBEAT_TIMEOUT}
    await cluster.jobs(50, schedule="every 1s", concurrent_policy="ALLOW", max_concurrent=100, **PATIENT_GRACE)
    fire_at = (await cluster.value("SELECT clock_at()")).astimezone(UTC).replace(microsecond=0) + SOON
    await _create_costly(cluster, fire_at)
    first, second = cluster.scheduler(), cluster.scheduler()
    cluster.worker()

    async def shared() -> bool:
        return {await cluster.value(HELD, str(each.pid)) for each in (first, second)} == {128}

    async def taken_over() -> bool:
        return bool(await cluster.value(HELD, str(second.pid)) == 256)

    async def are_due() -> bool:
        return bool(await cluster.value("SELECT clock_at() >= $1", fire_at))

    async def all_fired() -> bool:
        return bool(await cluster.value(FIRED) == COSTLY)

    await cluster.until(shared, "both hold their share")
    await cluster.until(are_due, "the costly rules are due")
    first.send(signal.SIGSTOP)
    await cluster.until(taken_over, "the second holds all partitions")
    epochs = await cluster.pool.fetch("SELECT partition, epoch FROM partitions ORDER BY partition")
    await cluster.until(all_fired, "the costly rules have fired")
    runs = await cluster.value("SELECT count(*) FROM outcomes")
    await cluster.until_count("SELECT count(*) FROM outcomes", runs + 150)
    assert await cluster.pool.fetch("SELECT partition, epoch FROM partitions ORDER BY partition") == epochs
    assert "lost" not in second.log.read_text()
    first.kill()
    await cluster.wait_until_idle()
    verdicts = await cluster.check()
    assert verdicts["C4"].figures["duplicates"] == 0
    assert await cluster.value("SELECT count(*) FROM gaps WHERE reason <> 'dst'") == 0
