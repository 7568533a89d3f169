"""Brings processes to the state that they have in production: partitions held, statements prepared, code warm."""

import asyncio
from dataclasses import dataclass
from itertools import repeat

from evertick.bench import workload
from evertick.bench.processes import Process
from evertick.bench.stage import Stage
from evertick.bench.watching import until_drained, until_held
from evertick.store import bench_figures

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
    base = await bench_figures.counters(stage.pool)
    await stage.load(repeat(workload.once("now"), WARM_UP_RUNS), WARM_UP_RUNS, "warming up")
    await until_drained(stage, base, WARM_UP_RUNS, "warming up", due_before=await stage.now())
    await stage.sleep(SETTLE_SECONDS, "warming up")
