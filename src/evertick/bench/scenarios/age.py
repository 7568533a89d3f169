"""Scenario `age`: whether late runs cost as much as the first ones.

The same jobs are made due, fired and drained in each step. Between steps only autovacuum cleans up. Each step reports
its rate, the growth of attempts and outcomes, and the size of the tables that must not grow. With `--pin-seconds`, a
last step runs while a transaction holds a snapshot, so that vacuum cannot remove dead rows.
"""

import asyncio
import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import repeat
from typing import Annotated, Any

from evertick.bench import queries, workload
from evertick.bench.processes import BenchFailed
from evertick.bench.queries import Footprint
from evertick.bench.results import total_fields
from evertick.bench.scenario import MAX_COUNT, Concurrency, Option, PayloadBytes, Scenario, Seed, Workers
from evertick.bench.steps import drain, fire_all, vacuum_and_checkpoint
from evertick.bench.testbed import Testbed
from evertick.domain.ids import PARTITIONS

PERIOD_DAYS = 30
"""The interval of the jobs: no tick of their own falls into the measurement."""
GROWING = ("attempts", "outcomes")
CONSTANT = ("timers", "lanes", "leases")


@dataclass(frozen=True, slots=True)
class AgeOptions:
    runs: Annotated[int, Option("Number of runs in all, rounded up to whole steps.", 1, 1_000_000_000)] = 10_000_000
    step: Annotated[int, Option("Number of jobs. Each runs once in a step.", 1, MAX_COUNT)] = 1_000_000
    pin_seconds: Annotated[float, Option("Hold a snapshot this long in an extra step. 0: no such step.", 0, 86_400)] = (
        0.0
    )
    payload_bytes: PayloadBytes = 300
    workers: Workers = 1
    concurrency: Concurrency = None
    seed: Seed = 1

    @property
    def steps(self) -> int:
        return math.ceil(self.runs / self.step)


async def run(testbed: Testbed, options: AgeOptions) -> dict[str, Any]:
    fields = _fields(options, await testbed.now())
    await testbed.load(repeat(fields, options.step), options.step, "creating jobs")
    await vacuum_and_checkpoint(testbed)
    steps = [await _step(testbed, options, number) for number in range(1, options.steps + 1)]
    pinned = await _pinned_step(testbed, options) if options.pin_seconds else None
    every = [*steps, *([pinned] if pinned else [])]
    return {**total_fields(every), "steps": steps, "pinned": pinned}


def _fields(options: AgeOptions, now_at: datetime) -> workload.Fields:
    return {
        "schedule": f"every {PERIOD_DAYS}d",
        "start_at": (now_at + timedelta(days=PERIOD_DAYS)).isoformat(),
        "target": workload.target(),
        "misfire_grace_seconds": workload.GRACE_SECONDS,
        "payload": workload.payload(options.payload_bytes, options.seed),
    }


async def _step(testbed: Testbed, options: AgeOptions, number: int) -> dict[str, Any]:
    before = await queries.footprint(testbed.pool)
    fire_at = await _make_due(testbed, options.step)
    fire_seconds = await fire_all(testbed, options.step)
    result = await drain(testbed, fire_at, options.step, options.workers, options.concurrency)
    after = await queries.footprint(testbed.pool)
    return {
        "until_run": number * options.step,
        **result,
        "making_ready_seconds": round(fire_seconds, 3),
        "bytes_per_run": _per_run(before, after, options.step),
        "bytes": {name: getattr(after, name) for name in CONSTANT},
    }


async def _pinned_step(testbed: Testbed, options: AgeOptions) -> dict[str, Any]:
    """One more step while a snapshot is held."""
    async with asyncio.TaskGroup() as tasks:
        held = asyncio.Event()
        tasks.create_task(_pin(testbed, options.pin_seconds, held))
        await held.wait()
        return await _step(testbed, options, options.steps + 1)


async def _pin(testbed: Testbed, seconds: float, held: asyncio.Event) -> None:
    async with queries.held_snapshot(testbed.url):
        held.set()
        await asyncio.sleep(seconds)


async def _make_due(testbed: Testbed, jobs: int) -> datetime:
    """Make all jobs due now, and return the instant."""
    testbed.progress.begin("making jobs due again", PARTITIONS)
    fire_at = await testbed.now()
    made = 0
    for partition in range(PARTITIONS):
        made += await queries.make_due(testbed.pool, workload.QUEUE, partition, fire_at)
        testbed.progress.reach(partition + 1)
    if made != jobs:
        raise BenchFailed(f"of {jobs} jobs {made} have a timer")
    return fire_at


def _per_run(before: Footprint, after: Footprint, runs: int) -> dict[str, float]:
    grown = {name: (getattr(after, name) - getattr(before, name)) / runs for name in GROWING}
    return {name: round(each, 1) for name, each in {**grown, "total": sum(grown.values())}.items()}


SCENARIO = Scenario(
    "age",
    "Whether late runs cost as much as the first ones: the same jobs run repeatedly, and the tables age.",
    "evertick bench age --runs 1000000 --step 100000 --pin-seconds 60 --json",
    AgeOptions,
    run,
    reuses_database=False,
)
