"""Scenario `load`: how fast jobs are created in bulk, and how many bytes each takes."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from evertick.bench import queries, workload
from evertick.bench.results import created_fields, rate_fields
from evertick.bench.scenario import Jobs, Rules, Scenario, Seed
from evertick.bench.testbed import Testbed


@dataclass(frozen=True, slots=True)
class LoadOptions:
    jobs: Jobs = 1_000_000
    rules: Rules = 1_000
    seed: Seed = 1


async def run(testbed: Testbed, options: LoadOptions) -> dict[str, Any]:
    existing = await queries.queue_jobs(testbed.pool, workload.BACKGROUND_QUEUE)
    before = await queries.sizes(testbed.pool)
    jobs = workload.background_jobs(options.jobs, options.rules, await testbed.now(), options.seed)
    seconds = await testbed.load(jobs, options.jobs, "loading jobs")
    testbed.progress.begin("counting")
    after = await queries.sizes(testbed.pool)
    created = await queries.queue_jobs(testbed.pool, workload.BACKGROUND_QUEUE) - existing
    sizes = {name: round((getattr(after, name) - getattr(before, name)) / options.jobs) for name in after._fields}
    return {
        "runs": 0,
        **created_fields(created, options.jobs),
        **rate_fields(options.jobs, seconds),
        "bytes_per_job": {"total": sum(sizes.values()), **sizes},
        "database": urlsplit(testbed.url).path.lstrip("/") if testbed.server.keeps_database else None,
    }


SCENARIO = Scenario(
    "load",
    "How fast jobs are created in bulk, and how many bytes each takes.",
    "evertick bench load --jobs 1000000 --data-dir ./bench-data --json",
    LoadOptions,
    run,
    can_keep=True,
)
