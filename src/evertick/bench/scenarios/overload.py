"""Scenario `overload`: more is due than workers can run, for a while; then it drains.

Handlers wait for a fixed time, so the capacity of the workers is known, and the same on each machine. Jobs fire once a
second; there are as many as the capacity times the factor. Half of them allow concurrent runs, so that a backlog
grows; the others skip ticks while they run. Another tenant has a few webhooks with high priority. The jobs end by
themselves, at a known instant, so that each tick is accounted for: it has a run or is in a gap.
"""

import asyncio
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import cycle, islice, repeat
from typing import Annotated, Any

from evertick.bench import queries, workload
from evertick.bench.processes import BenchFailed
from evertick.bench.results import Interval, cpu_used, ledger_fields, rate_fields, seconds_between, total_fields
from evertick.bench.sampling import Sampler, memory_fields, series_fields
from evertick.bench.scenario import Option, Scenario, Seconds, Workers
from evertick.bench.steps import start_cluster
from evertick.bench.testbed import Testbed
from evertick.bench.waiting import SOON, wait_until_drained
from evertick.contract.target import HTTP_QUEUE
from evertick.usecases.jobs.create_many import create_many

SECOND = timedelta(seconds=1)
CREATED_PER_SECOND = 1_000
"""Slower than any machine."""
LEAD_SECONDS = 3.0
MAX_JOBS = 100_000


@dataclass(frozen=True, slots=True)
class OverloadOptions:
    factor: Annotated[float, Option("How much more is due than workers can run.", 0.1, 1000)] = 3.0
    seconds: Seconds = 60.0
    workers: Workers = 1
    concurrency: Annotated[int, Option("Concurrent runs in each worker.", 1, 10_000)] = 20
    run_seconds: Annotated[float, Option("Duration of each run.", 0.001, 60)] = 0.1
    beside: Annotated[int, Option("Number of webhooks of another tenant, due each second.", 1, 10_000)] = 10

    @property
    def capacity(self) -> float:
        """Runs per second of all workers."""
        return self.workers * self.concurrency / self.run_seconds

    @property
    def jobs(self) -> int:
        return max(1, round(self.factor * self.capacity))

    @property
    def whole_seconds(self) -> int:
        """Each of them has the same number of ticks."""
        return math.ceil(self.seconds)


async def run(testbed: Testbed, options: OverloadOptions) -> dict[str, Any]:
    receiver = await testbed.fleet.start("receiver", "evertick.bench.http_processes", "receive", "1")
    (url,) = json.loads(await receiver.line())
    await asyncio.gather(
        start_cluster(testbed, options.workers, options.concurrency), testbed.fleet.scheduler("dispatcher")
    )
    interval = from_at, until_at = await _create(testbed, options, url)
    await testbed.sleep_until(from_at, "waiting for the first tick")
    cpu, base = testbed.cpu_seconds(), await queries.written_rows(testbed.pool)
    sampler = Sampler(testbed)
    await sampler.during(testbed.sleep_until(until_at, "overload"))
    overloaded = tuple(sampler.samples)
    cores_used = cpu_used(cpu, testbed.cpu_seconds(), options.whole_seconds, digits=3)
    due = (options.jobs + options.beside) * options.whole_seconds
    drained_at = await sampler.during(wait_until_drained(testbed, base, due, "draining", due_before=until_at + SOON))
    testbed.progress.begin("reading results")
    own = await ledger_fields(testbed, interval, options.jobs * options.whole_seconds)
    beside = await ledger_fields(testbed, interval, options.beside * options.whole_seconds, HTTP_QUEUE)
    return {
        **total_fields([own, beside]),
        "capacity_per_second": round(options.capacity, 1),
        **rate_fields(own["runs"], (drained_at - from_at).total_seconds()),
        "drain_seconds": seconds_between(until_at, drained_at),
        "overload": own,
        "beside": beside,
        "memory_mb": memory_fields(overloaded),
        "cores_used": cores_used,
        "samples": series_fields(sampler.samples),
    }


async def _create(testbed: Testbed, options: OverloadOptions, url: str) -> Interval:
    """Create all jobs. Returns the interval of their ticks."""
    lead = timedelta(seconds=LEAD_SECONDS + (options.jobs + options.beside) / CREATED_PER_SECOND)
    from_at = (await testbed.now() + lead).replace(microsecond=0)
    until_at = from_at + options.whole_seconds * SECOND
    every = {
        "schedule": "every 1s",
        "start_at": from_at.isoformat(),
        "end_at": (until_at - SECOND / 2).isoformat(),
        "jitter_seconds": 1,
    }
    await testbed.load(_jobs(options, every), options.jobs, "creating jobs")
    (tenant_id,) = await queries.add_tenants(testbed.pool, 1)
    other = replace(testbed.tenant, tenant_id=tenant_id)
    webhook = {**every, "target": {"type": "http", "url": url}, "priority": "high"}
    await testbed.create_in_chunks(
        repeat(webhook, options.beside),
        options.beside,
        "creating jobs of another tenant",
        partial(create_many, other),
        1,
    )
    if await testbed.now() >= from_at:
        raise BenchFailed("creating jobs took longer than estimated: is the machine busy?")
    return Interval(from_at, until_at)


def _jobs(options: OverloadOptions, every: workload.Fields) -> Iterator[workload.Fields]:
    fields = {
        **every,
        "target": workload.target(handler=workload.OCCUPY),
        "payload": {"seconds": options.run_seconds},
    }
    kinds = (
        {**fields, "concurrent_policy": "ALLOW", "max_concurrent": workload.MAX_OPEN_RUNS},
        {**fields, "concurrent_policy": "SKIP"},
    )
    return islice(cycle(kinds), options.jobs)


def fault(options: OverloadOptions) -> str | None:
    if options.jobs > MAX_JOBS:
        return f"--factor times the capacity of the workers must be at most {MAX_JOBS} runs per second"
    return None


SCENARIO = Scenario(
    "overload",
    "What happens while more is due than workers can run, how long it takes to drain, and whether memory stays flat.",
    "evertick bench overload --factor 3 --seconds 60 --json",
    OverloadOptions,
    run,
    fault,
    reuses_database=False,
)
