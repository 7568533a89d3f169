"""Scenario `age`: whether the millionth run costs what the first did.

The same jobs are made due, fired and drained again and again, and nothing is tidied in between: that is autovacuum's.
After each step: how fast it was, by how much the ledgers grew, and how large the tables are that must not grow. With
a pin, a last step during which somebody holds a snapshot, so that nothing that dies can be cleared away.
"""

import asyncio
import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any

from evertick.bench import age_queries, workload
from evertick.bench.age_queries import Footprint
from evertick.bench.measuring import Scenario
from evertick.bench.preparing import drain_ready, make_ready, tidy
from evertick.bench.processes import BenchFailed
from evertick.bench.stage import Stage
from evertick.domain.ids import PARTITIONS

PERIOD_DAYS = 30
"""So far away are the ticks that the jobs have by themselves: none falls into the measurement."""
LEDGERS = ("attempts", "outcomes")
LEVEL = ("timers", "lanes", "leases")


@dataclass(frozen=True, slots=True)
class Settings:
    """How many runs in all, how many at a time, and for how long a snapshot is held during an extra step."""

    runs: int = 10_000_000
    step: int = 1_000_000
    pin_seconds: float = 0.0
    payload_bytes: int = 300
    workers: int = 1
    concurrency: int | None = None
    seed: int = 1

    @property
    def steps(self) -> int:
        """All of one size, so the last may go beyond."""
        return math.ceil(self.runs / self.step)


async def run(stage: Stage, settings: Settings) -> dict[str, Any]:
    fields = _fields(settings, await stage.now())
    await stage.load(repeat(fields, settings.step), settings.step, "creating jobs")
    await tidy(stage)
    steps = [await _step(stage, settings, number) for number in range(1, settings.steps + 1)]
    pinned = await _pinned_step(stage, settings) if settings.pin_seconds else None
    every = [*steps, *([pinned] if pinned else [])]
    totals = {name: sum(step[name] for step in every) for name in ("runs", "missing", "duplicates")}
    return {**totals, "steps": steps, "pinned": pinned}


def _fields(settings: Settings, now_at: datetime) -> workload.Fields:
    return {
        "schedule": f"every {PERIOD_DAYS}d",
        "start_at": (now_at + timedelta(days=PERIOD_DAYS)).isoformat(),
        "target": workload.target(),
        "misfire_grace_seconds": workload.GRACE_SECONDS,
        "payload": workload.payload(settings.payload_bytes, settings.seed),
    }


async def _step(stage: Stage, settings: Settings, number: int) -> dict[str, Any]:
    before = await age_queries.footprint(stage.pool)
    fire_at = await _make_due(stage, settings.step)
    fire_seconds = await make_ready(stage, settings.step)
    figures = await drain_ready(stage, fire_at, settings.step, settings.workers, settings.concurrency)
    after = await age_queries.footprint(stage.pool)
    return {
        "until_run": number * settings.step,
        **figures,
        "making_ready_seconds": round(fire_seconds, 3),
        "bytes_per_run": _per_run(before, after, settings.step),
        "bytes": {name: getattr(after, name) for name in LEVEL},
    }


async def _pinned_step(stage: Stage, settings: Settings) -> dict[str, Any]:
    """One more step, under a snapshot that is held from before it, for so long as asked for."""
    async with asyncio.TaskGroup() as tasks:
        held = asyncio.Event()
        tasks.create_task(_pin(stage, settings.pin_seconds, held))
        await held.wait()
        return await _step(stage, settings, settings.steps + 1)


async def _pin(stage: Stage, seconds: float, held: asyncio.Event) -> None:
    async with age_queries.pinned(stage.url):
        held.set()
        await asyncio.sleep(seconds)


async def _make_due(stage: Stage, jobs: int) -> datetime:
    """Let all jobs be due now, and return the instant."""
    stage.progress.begin("making jobs due again", PARTITIONS)
    fire_at = await stage.now()
    made = 0
    for partition in range(PARTITIONS):
        made += await age_queries.make_due(stage.pool, workload.QUEUE, partition, fire_at)
        stage.progress.reach(partition + 1)
    if made != jobs:
        raise BenchFailed(f"of {jobs} jobs {made} have a timer")
    return fire_at


def _per_run(before: Footprint, after: Footprint, runs: int) -> dict[str, float]:
    grown = {name: (getattr(after, name) - getattr(before, name)) / runs for name in LEDGERS}
    return {name: round(each, 1) for name, each in {**grown, "total": sum(grown.values())}.items()}


SCENARIO = Scenario("age", run, reuses=False)
