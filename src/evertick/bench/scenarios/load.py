"""Scenario `load`: how fast jobs are created by the thousand, and how much room each takes."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from evertick.bench import figures_queries, workload
from evertick.bench.figures import rated
from evertick.bench.measuring import Scenario
from evertick.bench.stage import Stage


@dataclass(frozen=True, slots=True)
class Settings:
    """How many jobs, of how many kinds."""

    jobs: int = 1_000_000
    rules: int = 1_000
    seed: int = 1


async def run(stage: Stage, settings: Settings) -> dict[str, Any]:
    there = await figures_queries.queue_jobs(stage.pool, workload.CROWD_QUEUE)
    before = await figures_queries.sizes(stage.pool)
    jobs = workload.crowd(settings.jobs, settings.rules, await stage.now(), settings.seed)
    seconds = await stage.load(jobs, settings.jobs, "loading jobs")
    stage.progress.begin("counting")
    after = await figures_queries.sizes(stage.pool)
    created = await figures_queries.queue_jobs(stage.pool, workload.CROWD_QUEUE) - there
    sizes = {name: round((getattr(after, name) - getattr(before, name)) / settings.jobs) for name in after._fields}
    return {
        "runs": 0,
        "jobs": created,
        "missing": max(settings.jobs - created, 0),
        "duplicates": max(created - settings.jobs, 0),
        **rated(settings.jobs, seconds),
        "bytes_per_job": {"total": sum(sizes.values()), **sizes},
        "database": urlsplit(stage.url).path.lstrip("/") if stage.ground.keeps else None,
    }


SCENARIO = Scenario("load", run)
