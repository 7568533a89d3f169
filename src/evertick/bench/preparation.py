"""Prepares a measurement: loads jobs in the background, starts and warms up processes, fires and drains runs."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any

from evertick.bench import queries, workload
from evertick.bench.processes import Process
from evertick.bench.results import count_fields, rate_fields, read_runs, seconds_between
from evertick.bench.testbed import Testbed
from evertick.bench.waiting import wait_for_first_lease, wait_for_ownership, wait_until_drained, wait_until_fired

TRIAL = 2_000
SLOWDOWN = 1.5
"""Loading gets slower at most by this factor as indexes grow. Vacuum and checkpoint are included."""


@dataclass(frozen=True, slots=True)
class LoadTime:
    """How many jobs were loaded, and how long that took."""

    jobs: int
    seconds: float

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.jobs / self.seconds


async def load_background_jobs(testbed: Testbed, count: int, rules: int, seed: int, trial: int = TRIAL) -> LoadTime:
    """Load as many jobs as are missing. If none are, load a few more to measure the rate."""
    existing = await queries.queue_jobs(testbed.pool, workload.BACKGROUND_QUEUE)
    missing = max(count - existing, 0) or trial
    jobs = workload.background_jobs(missing, rules, await testbed.now(), seed)
    seconds = await testbed.load(jobs, missing, "loading jobs that are not due")
    return LoadTime(missing, seconds)


def seconds_to_load(jobs: int, rate: float) -> float:
    """How long loading takes at most, estimated from the rate so far."""
    return SLOWDOWN * jobs / rate + 2


async def vacuum_and_checkpoint(testbed: Testbed) -> None:
    """Do now what autovacuum and checkpoints would do during the measurement."""
    testbed.progress.begin("vacuum and checkpoint")
    await queries.vacuum_and_checkpoint(testbed.pool)


WARM_UP_RUNS = 500
QUIET_SECONDS = 1.0
WARM_UP_SECONDS = 6.0
"""How long before the due time the processes are started. Loading timers takes time besides."""
LOADED_PER_SECOND = 50_000


@dataclass(frozen=True, slots=True)
class BenchCluster:
    """A running scheduler and its workers."""

    scheduler: Process
    workers: tuple[Process, ...]


def seconds_to_warm_up(timers: int) -> float:
    """How long before their due time timers must be in the database."""
    return WARM_UP_SECONDS + timers / LOADED_PER_SECOND


async def start_cluster(testbed: Testbed, workers: int = 1, concurrency: int | None = None) -> BenchCluster:
    """Start a scheduler and workers, and run a few jobs."""
    testbed.progress.begin("starting scheduler and workers")
    scheduler, *others = await asyncio.gather(
        testbed.fleet.scheduler(), *(testbed.fleet.worker(concurrency) for _ in range(workers))
    )
    await wait_for_ownership(testbed)
    await warm_up(testbed)
    return BenchCluster(scheduler, tuple(others))


async def warm_up(testbed: Testbed) -> None:
    """Run a few jobs."""
    base = await queries.counters(testbed.pool)
    await testbed.load(repeat(workload.once("now"), WARM_UP_RUNS), WARM_UP_RUNS, "warming up")
    await wait_until_drained(testbed, base, WARM_UP_RUNS, "warming up", due_before=await testbed.now())
    await testbed.sleep(QUIET_SECONDS, "warming up")


async def fire_all(testbed: Testbed, runs: int) -> float:
    """Fire all due timers with a scheduler, then stop it. Returns the duration in seconds."""
    began_at = await testbed.now()
    scheduler = await testbed.fleet.scheduler()
    await wait_until_fired(testbed, began_at, runs, "firing into the lanes")
    fired_at = await testbed.now()
    await testbed.fleet.stop(scheduler)
    return (fired_at - began_at).total_seconds()


async def drain(
    testbed: Testbed, fire_at: datetime, runs: int, workers: int, concurrency: int | None
) -> dict[str, Any]:
    """Drain the runs of an instant with workers, then stop them. The rate counts from first lease to last outcome."""
    base = await queries.counters(testbed.pool)
    started_at = await testbed.now()
    testbed.progress.begin("starting workers")
    starting = asyncio.gather(*(testbed.fleet.worker(concurrency) for _ in range(workers)))
    leased_at, processes = await asyncio.gather(wait_for_first_lease(testbed), starting)
    drained_at = await wait_until_drained(testbed, base, runs, "draining")
    await testbed.fleet.stop(*processes)
    found = await read_runs(testbed, fire_at, fire_at + timedelta(microseconds=1))
    first_at = min(at for at in (leased_at, found.first_started_at, drained_at) if at is not None)
    return {
        **count_fields(found, runs),
        **rate_fields(runs, (drained_at - first_at).total_seconds()),
        "with_process_start_seconds": seconds_between(started_at, drained_at),
    }
