"""Schedulers that die, stand still, come and go: every tick has its run, and only one."""

import random
import signal

import pytest

from faults.cluster import LONG_LEASES, PATIENT_GRACE, Cluster

RUNS = "SELECT count(*) FROM outcomes"
HELD = "SELECT count(*) FROM partitions WHERE holder LIKE '%-' || $1 || '-%'"


async def _held(cluster: Cluster, pid: int) -> int:
    return int(await cluster.value(HELD, str(pid)))


async def _all_held_by(cluster: Cluster, *pids: int) -> None:
    """Wait until these schedulers, and nobody else, hold all partitions, evenly."""
    share = 256 // len(pids)

    async def is_even() -> bool:
        return {await _held(cluster, pid) for pid in pids} <= {share, share + 1}

    await cluster.until(is_even, f"{len(pids)} schedulers share the partitions")


@pytest.mark.parametrize("kills", [8, pytest.param(40, marks=pytest.mark.campaign)])
async def test_schedulers_killed_at_random_lose_no_tick_and_fire_none_twice(cluster: Cluster, kills: int) -> None:
    chance = random.Random(7)
    cluster.settings |= LONG_LEASES
    await cluster.jobs(150, "steady", schedule="every 1s", concurrent_policy="ALLOW", max_concurrent=100)
    await cluster.jobs(100, "skipping", schedule="every 2s")
    schedulers = [cluster.scheduler() for _ in range(3)]
    cluster.worker()
    await _all_held_by(cluster, *(process.pid for process in schedulers))
    for _ in range(kills):
        await cluster.until_count(RUNS, await cluster.value(RUNS) + chance.randrange(20, 200))
        victim = chance.choice(schedulers)
        victim.kill()
        schedulers.remove(victim)
        schedulers.append(cluster.scheduler())
    await _all_held_by(cluster, *(process.pid for process in schedulers))
    await cluster.wait_until_idle()
    verdicts = await cluster.check()
    assert verdicts["C4"].figures["duplicates"] == 0


async def test_a_scheduler_that_stood_still_cannot_write_and_rejoins(cluster: Cluster) -> None:
    cluster.settings |= LONG_LEASES
    await cluster.jobs(100, schedule="every 1s", concurrent_policy="ALLOW", max_concurrent=100, **PATIENT_GRACE)
    sleeper, other = cluster.scheduler(), cluster.scheduler()
    cluster.worker()
    await _all_held_by(cluster, sleeper.pid, other.pid)
    # The database knows a moment before the process does, which can only lose what it knows it holds.
    sleeper.wait_for("holds 128", "released 128")
    sleeper.send(signal.SIGSTOP)
    await _all_held_by(cluster, other.pid)
    await cluster.until_count(RUNS, await cluster.value(RUNS) + 300)
    sleeper.send(signal.SIGCONT)
    sleeper.wait_for("lost")
    await _all_held_by(cluster, sleeper.pid, other.pid)
    await cluster.until_count(RUNS, await cluster.value(RUNS) + 300)
    await cluster.wait_until_idle()
    verdicts = await cluster.check(allow_gaps=False)
    assert verdicts["C4"].figures["duplicates"] == 0


async def test_schedulers_that_join_and_leave_share_the_partitions_without_a_missed_or_doubled_tick(
    cluster: Cluster,
) -> None:
    cluster.settings |= LONG_LEASES
    await cluster.jobs(100, schedule="every 1s", concurrent_policy="ALLOW", max_concurrent=100, **PATIENT_GRACE)
    first, second = cluster.scheduler(), cluster.scheduler()
    cluster.worker()
    await _all_held_by(cluster, first.pid, second.pid)
    third = cluster.scheduler()
    await _all_held_by(cluster, first.pid, second.pid, third.pid)
    await cluster.until_count(RUNS, await cluster.value(RUNS) + 200)
    assert second.terminate() == 0
    await _all_held_by(cluster, first.pid, third.pid)
    await cluster.until_count(RUNS, await cluster.value(RUNS) + 200)
    await cluster.wait_until_idle()
    verdicts = await cluster.check(allow_gaps=False)
    assert verdicts["C4"].figures["duplicates"] == 0
