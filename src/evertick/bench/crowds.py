"""Loads the crowd of jobs that are not due, and tells how fast loading is here, so that times can be planned by it."""

from dataclasses import dataclass

from evertick.bench import workload
from evertick.bench.stage import Stage
from evertick.store import bench_figures

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
    there = await bench_figures.queue_jobs(stage.pool, workload.CROWD_QUEUE)
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
    await bench_figures.tidy(stage.pool)
