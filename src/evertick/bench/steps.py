"""The steps that scenarios share: load jobs, start and warm up processes, fire and drain runs.

A burst is many jobs due at one instant: they are loaded, processes are started and warmed up, and it is measured from
the instant on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any, NamedTuple

from evertick.bench import queries, workload
from evertick.bench.processes import BenchFailed, Process
from evertick.bench.results import count_fields, cpu_used, lag_fields, rate_fields, read_runs, seconds_between
from evertick.bench.testbed import Testbed
from evertick.bench.waiting import SOON, wait_for_first_lease, wait_for_ownership, wait_until_drained, wait_until_fired

TRIAL = 2_000
SLOWDOWN = 1.5
"""Loading gets slower at most by this factor as indexes grow. Vacuum and checkpoint are included."""
WARM_UP_RUNS = 500
QUIET_SECONDS = 1.0
WARM_UP_SECONDS = 6.0
"""How long before the due time the processes are started. Loading timers takes time besides."""
LOADED_PER_SECOND = 50_000
MAX_PREPARATIONS = 3
INSTANT = timedelta(microseconds=1)
"""The shortest interval that contains an instant."""


class LoadTime(NamedTuple):
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


def seconds_to_warm_up(timers: int) -> float:
    """How long before their due time timers must be in the database."""
    return WARM_UP_SECONDS + timers / LOADED_PER_SECOND


async def start_cluster(testbed: Testbed, workers: int = 1, concurrency: int | None = None) -> tuple[Process, ...]:
    """Start a scheduler and workers, and run a few jobs. Returns the processes, the scheduler first."""
    testbed.progress.begin("starting scheduler and workers")
    processes = await asyncio.gather(
        testbed.fleet.scheduler(), *(testbed.fleet.worker(concurrency) for _ in range(workers))
    )
    await wait_for_ownership(testbed)
    base = await queries.written_rows(testbed.pool)
    await testbed.load(repeat(workload.once("now"), WARM_UP_RUNS), WARM_UP_RUNS, "warming up")
    await wait_until_drained(testbed, base, WARM_UP_RUNS, "warming up", due_before=await testbed.now())
    await testbed.sleep(QUIET_SECONDS, "warming up")
    return tuple(processes)


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
    base = await queries.written_rows(testbed.pool)
    started_at = await testbed.now()
    testbed.progress.begin("starting workers")
    starting = asyncio.gather(*(testbed.fleet.worker(concurrency) for _ in range(workers)))
    leased_at, processes = await asyncio.gather(wait_for_first_lease(testbed), starting)
    cpu = testbed.cpu_seconds()
    drained_at = await wait_until_drained(testbed, base, runs, "draining")
    cpu_us_per_run = cpu_used(cpu, testbed.cpu_seconds(), runs / 1e6)
    await testbed.fleet.stop(*processes)
    found = await read_runs(testbed, fire_at, fire_at + INSTANT)
    first_at = min(at for at in (leased_at, found.first_started_at, drained_at) if at is not None)
    return {
        **count_fields(found, runs),
        **rate_fields(runs, (drained_at - first_at).total_seconds()),
        "with_process_start_seconds": seconds_between(started_at, drained_at),
        "cpu_us_per_run": cpu_us_per_run,
    }


@dataclass(frozen=True, slots=True)
class Burst:
    """The jobs of one instant, the time that loading and warming up take at most, and the processes to start."""

    count: int
    lead_seconds: float
    jobs: Callable[[datetime], Iterator[workload.Fields]]
    start: Callable[[], Awaitable[Sequence[Process]]]


async def prepare_burst(testbed: Testbed, burst: Burst) -> tuple[datetime, Sequence[Process]]:
    """Load the jobs and start the processes. If that took too long, try again with a later instant.

    Returns the instant and the processes.
    """
    for number in range(MAX_PREPARATIONS):
        due_at = (await testbed.now() + timedelta(seconds=burst.lead_seconds * 2**number)).replace(microsecond=0)
        await testbed.load(burst.jobs(due_at), burst.count, "loading jobs that are due at one instant")
        await vacuum_and_checkpoint(testbed)
        base = await queries.written_rows(testbed.pool)
        processes = await burst.start()
        if await testbed.now() < due_at:
            return due_at, processes
        await wait_until_drained(
            testbed, base, burst.count, "loading took too long: trying again", due_before=due_at + SOON
        )
        await testbed.fleet.stop(*processes)
    raise BenchFailed(f"loading took longer than estimated, {MAX_PREPARATIONS} times: is the machine busy?")


async def measure_burst(testbed: Testbed, due_at: datetime, count: int, queue: str = workload.QUEUE) -> dict[str, Any]:
    """The result from an instant to the last outcome of the burst."""
    base = await queries.written_rows(testbed.pool)
    await testbed.sleep_until(due_at, "waiting for the instant")
    cpu = testbed.cpu_seconds()
    drained_at = await wait_until_drained(testbed, base, count, "running", due_before=due_at + SOON)
    cpu_us_per_run = cpu_used(cpu, testbed.cpu_seconds(), count / 1e6)
    runs = await read_runs(testbed, due_at, due_at + INSTANT, queue)
    return {
        **count_fields(runs, count),
        **rate_fields(runs.succeeded, (drained_at - due_at).total_seconds()),
        "first_start_seconds": seconds_between(due_at, runs.first_started_at),
        "last_finish_seconds": seconds_between(due_at, runs.last_finished_at),
        **lag_fields(runs),
        "cpu_us_per_run": cpu_us_per_run,
    }
