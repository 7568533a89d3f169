"""Scenario `lag`: how punctual runs are on an idle system, of one-off jobs and of jobs that run now."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from itertools import repeat
from typing import Annotated, Any

from evertick.bench import queries, workload
from evertick.bench.results import count_fields, lag_fields, read_runs, total_fields
from evertick.bench.scenario import Option, Scenario, Seconds, Seed
from evertick.bench.steps import start_cluster
from evertick.bench.testbed import Testbed
from evertick.bench.waiting import SOON, wait_until_drained
from evertick.usecases.jobs.create import create

CREATED_PER_SECOND = 1_000
"""Slower than any machine. Jobs with different instants share no rule."""


@dataclass(frozen=True, slots=True)
class LagOptions:
    jobs: Annotated[int, Option("Number of one-off jobs, and number of jobs that run now.", 1, 1_000_000)] = 2_000
    seconds: Seconds = 20.0
    seed: Seed = 1


async def run(testbed: Testbed, options: LagOptions) -> dict[str, Any]:
    await start_cluster(testbed)
    began_at = await testbed.now()
    once = await _once(testbed, options)
    now = await _now(testbed, options)
    seconds = (await testbed.now() - began_at).total_seconds()
    return {
        **total_fields([once, now]),
        "seconds": round(seconds, 3),
        "rate_per_second": round(options.jobs / options.seconds, 1),
        "lag_ms": once["lag_ms"],
        "immediate_lag_ms": now["lag_ms"],
    }


async def _once(testbed: Testbed, options: LagOptions) -> dict[str, Any]:
    """One-off jobs, created before their instants."""
    from_at = await testbed.now() + timedelta(seconds=3 + options.jobs / CREATED_PER_SECOND)
    step = timedelta(seconds=options.seconds / options.jobs)
    jobs = (workload.once(from_at + number * step) for number in range(options.jobs))
    base = await queries.written_rows(testbed.pool)
    await testbed.load(jobs, options.jobs, "creating one-off jobs")
    until_at = from_at + timedelta(seconds=options.seconds)
    await testbed.sleep_until(until_at, "waiting for one-off jobs")
    await wait_until_drained(testbed, base, options.jobs, "waiting for one-off jobs", due_before=until_at + SOON)
    runs = await read_runs(testbed, from_at, until_at)
    return {**count_fields(runs, options.jobs), **lag_fields(runs)}


async def _now(testbed: Testbed, options: LagOptions) -> dict[str, Any]:
    """Jobs that run now, created one after the other."""
    from_at = await testbed.now()
    base = await queries.written_rows(testbed.pool)
    testbed.progress.begin("jobs that run now", options.jobs)
    loop = asyncio.get_running_loop()
    began, step = loop.time(), options.seconds / options.jobs
    for number, job in enumerate(workload.named(repeat(workload.once("now"), options.jobs))):
        await asyncio.sleep(began + number * step - loop.time())
        await create(testbed.tenant, job)
        testbed.progress.reach(number)
    until_at = await testbed.now()
    await wait_until_drained(testbed, base, options.jobs, "jobs that run now", due_before=until_at + SOON)
    runs = await read_runs(testbed, from_at, until_at)
    return {**count_fields(runs, options.jobs), **lag_fields(runs)}


SCENARIO = Scenario(
    "lag",
    "How punctual runs are on an idle system: one-off jobs at their instants, then jobs that run now.",
    "evertick bench lag --jobs 2000 --seconds 20 --json",
    LagOptions,
    run,
)
