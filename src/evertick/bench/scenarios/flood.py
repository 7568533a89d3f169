"""Scenario `flood`: how punctual small tenants are beside tenants with very much to do.

Each small tenant has one webhook, due each second. First they are alone. Then one tenant has many webhooks that are due
at one instant, and another one has many that have been overdue for an hour, as after an outage. The same scheduler and
dispatcher serve all of them. The scenario does not wait until the large tenants are done.
"""

import asyncio
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import repeat
from typing import Annotated, Any

from evertick.bench import queries, workload
from evertick.bench.processes import BenchFailed, peak_memory_mb
from evertick.bench.results import Interval, ledger_fields, total_fields
from evertick.bench.scenario import MAX_COUNT, Option, Scenario, Seconds
from evertick.bench.steps import vacuum_and_checkpoint
from evertick.bench.testbed import CONCURRENT_CALLS, Testbed
from evertick.bench.waiting import POLL_SECONDS, TIMEOUT_SECONDS, wait_for_ownership
from evertick.contract.target import HTTP_QUEUE
from evertick.domain.ids import PARTITIONS
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.create_many import create_many

SECOND = timedelta(seconds=1)
NOT_DUE = timedelta(days=300)
OVERDUE = timedelta(hours=1)
WARM_UP = timedelta(seconds=5)
START = timedelta(seconds=20)
"""The flood is due about so long after the scheduler is started again, or later on a slow machine. In half of this time
it loads timers, in the other half small tenants are beside the overdue jobs alone."""
STARTS = 6
"""The same, as a multiple of what the first start took."""


@dataclass(frozen=True, slots=True)
class FloodOptions:
    tenants: Annotated[int, Option("Number of small tenants, with one webhook each second.", 1, 10_000)] = 50
    flood: Annotated[int, Option("Number of webhooks of one tenant, due at one instant.", 1, MAX_COUNT)] = 100_000
    overdue: Annotated[int, Option("Number of overdue webhooks of another tenant.", 1, MAX_COUNT)] = 1_000_000
    seconds: Seconds = 30.0


async def run(testbed: Testbed, options: FloodOptions) -> dict[str, Any]:
    receiver = await testbed.fleet.start("receiver", "evertick.bench.http_processes", "receive", "3")
    small_url, *large_urls = json.loads(await receiver.line())
    large = await _create_large(testbed, (options.flood, options.overdue), large_urls)
    small = await _create_small(testbed, options.tenants, small_url)
    await vacuum_and_checkpoint(testbed)
    testbed.progress.begin("starting scheduler and dispatcher")
    began = time.monotonic()
    scheduler, _ = await asyncio.gather(testbed.fleet.scheduler(), testbed.fleet.scheduler("dispatcher"))
    await wait_for_ownership(testbed)
    start = max(START, STARTS * timedelta(seconds=time.monotonic() - began))
    alone = await _measure(testbed, options, small, await testbed.now() + WARM_UP, "small tenants alone")
    await testbed.fleet.stop(scheduler)
    now_at = await testbed.now()
    await _make_due(testbed, large[1:], options.overdue, now_at - OVERDUE)
    each = (await testbed.now() - now_at) / options.overdue
    due_at = await testbed.now() + start + 2 * options.flood * each
    await _make_due(testbed, large[:1], options.flood, due_at)
    # Without ticks that they missed while the scheduler was stopped: those would count as an outage of their own.
    await _make_due(testbed, small, options.tenants, due_at - start / 2)
    testbed.progress.begin("starting the scheduler again")
    scheduler = await testbed.fleet.scheduler()
    await wait_for_ownership(testbed)
    if await testbed.now() > due_at - start / 2:
        raise BenchFailed("the scheduler started after small tenants were due: is the machine busy?")
    flooded = await _measure(testbed, options, small, due_at, "small tenants beside large ones")
    return {
        **total_fields([alone, flooded]),
        "p99_ratio": _ratio(flooded["lag_ms"], alone["lag_ms"]),
        "alone": alone,
        "flooded": flooded,
        "left": (await queries.backlog(testbed.pool))._asdict(),
        "scheduler_peak_memory_mb": peak_memory_mb(scheduler.pid),
    }


async def _create_large(testbed: Testbed, jobs: Sequence[int], urls: Sequence[str]) -> list[int]:
    """Tenants with so many jobs that are not due, each with a host of its own."""
    tenant_ids = await queries.add_tenants(testbed.pool, len(jobs))
    schedule = (await testbed.now() + NOT_DUE).isoformat()
    for tenant_id, count, url in zip(tenant_ids, jobs, urls, strict=True):
        tenant = replace(testbed.tenant, tenant_id=tenant_id)
        fields = {"schedule": schedule, "target": {"type": "http", "url": url}}
        await testbed.create_in_chunks(
            repeat(fields, count),
            count,
            "creating jobs of a large tenant",
            partial(create_many, tenant),
            CONCURRENT_CALLS,
        )
    return tenant_ids


async def _create_small(testbed: Testbed, count: int, url: str) -> list[int]:
    """Tenants with a job that skips no tick, however late it is."""
    tenant_ids = await queries.add_tenants(testbed.pool, count)
    job = {
        "name": "each second",
        "schedule": "every 1s",
        "target": {"type": "http", "url": url},
        "misfire_grace_seconds": workload.GRACE_SECONDS,
        "jitter_seconds": 1,  # not all at the start of each second
        "concurrent_policy": "ALLOW",
        "max_concurrent": workload.MAX_OPEN_RUNS,
    }
    testbed.progress.begin("creating small tenants with a job each", count)
    for number, tenant_id in enumerate(tenant_ids):
        await create(replace(testbed.tenant, tenant_id=tenant_id), job)
        testbed.progress.reach(number)
    return tenant_ids


async def _make_due(testbed: Testbed, tenant_ids: Sequence[int], jobs: int, fire_at: datetime) -> None:
    testbed.progress.begin("making jobs due", PARTITIONS)
    made = 0
    for partition in range(PARTITIONS):
        made += await queries.make_due(testbed.pool, HTTP_QUEUE, partition, fire_at, tenant_ids)
        testbed.progress.reach(partition + 1)
    if made != jobs:
        raise BenchFailed(f"of {jobs} jobs {made} have a timer")


async def _measure(
    testbed: Testbed, options: FloodOptions, tenant_ids: Sequence[int], after_at: datetime, what: str
) -> dict[str, Any]:
    """The ticks of small tenants in the seconds after an instant, when all have ended."""
    from_at = max(after_at, await testbed.now()).replace(microsecond=0) + SECOND
    seconds = math.ceil(options.seconds)  # whole seconds: their number of fire times is known
    interval = Interval(from_at, from_at + seconds * SECOND)
    await testbed.sleep_until(interval.until_at, what)
    testbed.progress.begin("waiting for the last run")
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        testbed.fleet.check()
        found = await ledger_fields(testbed, interval, seconds * len(tenant_ids), HTTP_QUEUE, tenant_ids)
        if not found["missing"] or time.monotonic() > deadline:
            return found
        await asyncio.sleep(POLL_SECONDS)


def _ratio(flooded: Mapping[str, float] | None, alone: Mapping[str, float] | None) -> float | None:
    return None if flooded is None or alone is None else round(flooded["p99"] / alone["p99"], 2)


SCENARIO = Scenario(
    "flood",
    "How punctual small tenants are, alone and beside tenants with very much to do.",
    "evertick bench flood --tenants 50 --flood 100000 --overdue 1000000 --seconds 30 --json",
    FloodOptions,
    run,
    reuses_database=False,
)
