"""Scenario `idle`: what Evertick costs while nothing is due: statements each second, and CPU of every process."""

from dataclasses import dataclass
from typing import Any

from evertick.bench.crowds import gather_crowd, tidy
from evertick.bench.measuring import Scenario
from evertick.bench.process_figures import cpu_seconds, family_cpu_seconds, peak_memory_mb
from evertick.bench.stage import Stage
from evertick.bench.warm_up import Crew, warm_crew
from evertick.store import bench_figures

OWN_TRANSACTIONS = 3
"""Ours between two looks at the counter: the first look itself, and two for the time."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How many jobs stand there, and for how long that is measured."""

    jobs: int = 100_000
    seconds: float = 60.0
    rules: int = 1_000
    workers: int = 1
    calm_seconds: float = 15.0
    seed: int = 1


async def run(stage: Stage, settings: Settings) -> dict[str, Any]:
    await gather_crowd(stage, settings.jobs, settings.rules, settings.seed)
    await tidy(stage)
    crew = await warm_crew(stage, settings.workers)
    await stage.sleep(settings.calm_seconds, "letting it calm down")
    cpu_before, before = _cpu(stage, crew), await bench_figures.activity(stage.pool)
    await stage.sleep(settings.seconds, "measuring")
    cpu_after, after = _cpu(stage, crew), await bench_figures.activity(stage.pool)
    seconds = (after.now_at - before.now_at).total_seconds()
    statements = after.transactions - before.transactions - OWN_TRANSACTIONS
    return {
        "runs": 0,
        "seconds": round(seconds, 3),
        "statements_per_second": round(max(statements, 0) / seconds, 2),
        "cores_used": {name: round((spent - cpu_before[name]) / seconds, 4) for name, spent in cpu_after.items()},
        "scheduler_peak_memory_mb": peak_memory_mb(crew.scheduler.pid),
    }


def _cpu(stage: Stage, crew: Crew) -> dict[str, float]:
    """CPU seconds so far of what can be seen: not of a server elsewhere."""
    spent = {
        "scheduler": cpu_seconds(crew.scheduler.pid),
        "workers": sum(cpu_seconds(worker.pid) or 0.0 for worker in crew.workers),
        "postgres": None if stage.ground.postmaster is None else family_cpu_seconds(stage.ground.postmaster),
    }
    return {name: seconds for name, seconds in spent.items() if seconds is not None}


SCENARIO = Scenario("idle", run)
