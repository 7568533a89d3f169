"""Brings a stage to where a measurement begins: jobs that are not due, processes that are warm, runs that are ready."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any

from evertick.bench import figures_queries, workload
from evertick.bench.figures import accounted, rated, read_runs, seconds_between
from evertick.bench.processes import Process
from evertick.bench.stage import Stage
from evertick.bench.watching import first_lease, until_drained, until_fired, until_held

TRIAL = 2_000
SLOWER = 1.5
"""By so much loading may turn slower than before, as indexes grow; vacuum and checkpoint after it are in it."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """What had to be loaded for a crowd, or a trial if it was there already."""

    jobs: int
    seconds: float

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.jobs / self.seconds


async def gather_crowd(stage: Stage, wanted: int, rules: int, seed: int, trial: int = TRIAL) -> Gathered:
    """See to it that so many stand there; if they do, load a few more as a trial."""
    there = await figures_queries.queue_jobs(stage.pool, workload.CROWD_QUEUE)
    missing = max(wanted - there, 0) or trial
    jobs = workload.crowd(missing, rules, await stage.now(), seed)
    seconds = await stage.load(jobs, missing, "loading jobs that are not due")
    return Gathered(missing, seconds)


def seconds_to_load(jobs: int, rate: float) -> float:
    """How long loading may take at most, by how fast it was before."""
    return SLOWER * jobs / rate + 2


async def tidy(stage: Stage) -> None:
    """Do after a load what the server would do in the middle of the measurement."""
    stage.progress.begin("tidying up after the load")
    await figures_queries.tidy(stage.pool)


WARM_UP_RUNS = 500
SETTLE_SECONDS = 1.0
WARM_UP_SECONDS = 6.0
"""So long before something is due the processes are started; timers that are to be loaded take their time too."""
LOADED_PER_SECOND = 50_000


@dataclass(frozen=True, slots=True)
class Crew:
    """A scheduler and its workers, at work."""

    scheduler: Process
    workers: tuple[Process, ...]


def seconds_to_warm_up(timers: int) -> float:
    """How long before its time a load of so many timers should be in place."""
    return WARM_UP_SECONDS + timers / LOADED_PER_SECOND


async def warm_crew(stage: Stage, workers: int = 1, concurrency: int | None = None) -> Crew:
    """Start a scheduler and workers, and let them run a few jobs."""
    stage.progress.begin("starting scheduler and workers")
    scheduler, *others = await asyncio.gather(
        stage.fleet.scheduler(), *(stage.fleet.worker(concurrency) for _ in range(workers))
    )
    await until_held(stage)
    await warm_up(stage)
    return Crew(scheduler, tuple(others))


async def warm_up(stage: Stage) -> None:
    """Let them run a few jobs."""
    base = await figures_queries.counters(stage.pool)
    await stage.load(repeat(workload.once("now"), WARM_UP_RUNS), WARM_UP_RUNS, "warming up")
    await until_drained(stage, base, WARM_UP_RUNS, "warming up", due_before=await stage.now())
    await stage.sleep(SETTLE_SECONDS, "warming up")


async def make_ready(stage: Stage, runs: int) -> float:
    """Let a scheduler fire all that is due by now, and leave; returns how long that took."""
    began_at = await stage.now()
    scheduler = await stage.fleet.scheduler()
    await until_fired(stage, began_at, runs, "firing into the lanes")
    fired_at = await stage.now()
    await stage.fleet.stop(scheduler)
    return (fired_at - began_at).total_seconds()


async def drain_ready(
    stage: Stage, fire_at: datetime, runs: int, workers: int, concurrency: int | None
) -> dict[str, Any]:
    """Let workers run what was fired for an instant, and leave. The rate counts from first lease to last outcome."""
    base = await figures_queries.counters(stage.pool)
    started_at = await stage.now()
    stage.progress.begin("starting workers")
    starting = asyncio.gather(*(stage.fleet.worker(concurrency) for _ in range(workers)))
    leased_at, processes = await asyncio.gather(first_lease(stage), starting)
    drained_at = await until_drained(stage, base, runs, "draining")
    await stage.fleet.stop(*processes)
    found = await read_runs(stage, fire_at, fire_at + timedelta(microseconds=1))
    first_at = min(at for at in (leased_at, found.first_started_at, drained_at) if at is not None)
    return {
        **accounted(found, runs),
        **rated(runs, (drained_at - first_at).total_seconds()),
        "with_process_start_seconds": seconds_between(started_at, drained_at),
    }
