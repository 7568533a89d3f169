"""Scenario `lag`: how punctual runs are on an idle system: one-offs at their instants, and jobs that are to run now."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from itertools import repeat
from typing import Any

from evertick.bench import figures_queries, workload
from evertick.bench.figures import accounted, lags, read_runs
from evertick.bench.figures_queries import Runs
from evertick.bench.measuring import Scenario
from evertick.bench.preparing import warm_crew
from evertick.bench.stage import Stage
from evertick.bench.watching import SOON, until_drained
from evertick.usecases.jobs.create import create

CREATED_PER_SECOND = 1_000
"""Slower than any machine: jobs with instants of their own share no rule."""


@dataclass(frozen=True, slots=True)
class Settings:
    """So many jobs, spread evenly over so many seconds; then as many again that run at once."""

    jobs: int = 2_000
    seconds: float = 20.0
    seed: int = 1


async def run(stage: Stage, settings: Settings) -> dict[str, Any]:
    await warm_crew(stage)
    began_at = await stage.now()
    once = await _once(stage, settings)
    now = await _now(stage, settings)
    totals = {name: once[name] + now[name] for name in ("runs", "missing", "duplicates")}
    seconds = (await stage.now() - began_at).total_seconds()
    return {
        **totals,
        "seconds": round(seconds, 3),
        "rate_per_second": round(settings.jobs / settings.seconds, 1),
        "lag_ms": once["lag_ms"],
        "immediate_lag_ms": now["lag_ms"],
    }


async def _once(stage: Stage, settings: Settings) -> dict[str, Any]:
    """One-offs whose instants were known before."""
    from_at = await stage.now() + timedelta(seconds=3 + settings.jobs / CREATED_PER_SECOND)
    step = timedelta(seconds=settings.seconds / settings.jobs)
    jobs = (workload.once(from_at + number * step) for number in range(settings.jobs))
    base = await figures_queries.counters(stage.pool)
    await stage.load(jobs, settings.jobs, "creating one-offs")
    until_at = from_at + timedelta(seconds=settings.seconds)
    await stage.sleep_until(until_at, "one-offs, each at its instant")
    await until_drained(stage, base, settings.jobs, "one-offs, each at its instant", due_before=until_at + SOON)
    runs = await read_runs(stage, from_at, until_at)
    return _told(runs, settings.jobs)


async def _now(stage: Stage, settings: Settings) -> dict[str, Any]:
    """Jobs that are to run as soon as they are created, one after the other."""
    from_at = await stage.now()
    base = await figures_queries.counters(stage.pool)
    stage.progress.begin("jobs that run now", settings.jobs)
    loop = asyncio.get_running_loop()
    began, step = loop.time(), settings.seconds / settings.jobs
    for number, job in enumerate(workload.named(repeat(workload.once("now"), settings.jobs))):
        await asyncio.sleep(began + number * step - loop.time())
        await create(stage.tenant, job)
        stage.progress.reach(number)
    until_at = await stage.now()
    await until_drained(stage, base, settings.jobs, "jobs that run now", due_before=until_at + SOON)
    runs = await read_runs(stage, from_at, until_at)
    return _told(runs, settings.jobs)


def _told(runs: Runs, expected: int) -> dict[str, Any]:
    return {**accounted(runs, expected), **lags(runs)}


SCENARIO = Scenario("lag", run)
