"""Scenario `idle`: what Evertick costs while nothing is due: statements each second, and CPU of every process."""

from dataclasses import dataclass
from typing import Any

from evertick.bench import figures_queries
from evertick.bench.figures import spent
from evertick.bench.measuring import Scenario
from evertick.bench.preparing import gather_crowd, tidy, warm_crew
from evertick.bench.processes import peak_memory_mb
from evertick.bench.stage import Stage

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
    cpu_before, before = stage.cpu_seconds(), await figures_queries.activity(stage.pool)
    await stage.sleep(settings.seconds, "measuring")
    cpu_after, after = stage.cpu_seconds(), await figures_queries.activity(stage.pool)
    seconds = (after.now_at - before.now_at).total_seconds()
    statements = after.transactions - before.transactions - OWN_TRANSACTIONS
    return {
        "runs": 0,
        "seconds": round(seconds, 3),
        "statements_per_second": round(max(statements, 0) / seconds, 2),
        "cores_used": spent(cpu_before, cpu_after, seconds, digits=4),
        "scheduler_peak_memory_mb": peak_memory_mb(crew.scheduler.pid),
    }


SCENARIO = Scenario("idle", run)
