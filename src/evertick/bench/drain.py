"""Scenario `drain`: how fast workers run what is ready.

One-offs that do nothing are fired into the lanes while no worker runs. Then the workers start. The rate counts from the
first lease to the last outcome.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from itertools import repeat
from typing import Any

from evertick.bench import workload
from evertick.bench.crowds import tidy
from evertick.bench.figures import accounted, rated, read_runs, seconds_between
from evertick.bench.measuring import Scenario
from evertick.bench.stage import Stage
from evertick.bench.watching import first_lease, until_drained, until_fired
from evertick.store import bench_figures


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to run, and by how many."""

    runs: int = 500_000
    payload_bytes: int = 300
    workers: int = 1
    concurrency: int | None = None
    seed: int = 1


async def run(stage: Stage, settings: Settings) -> dict[str, Any]:
    fire_at = await stage.now()
    fields = workload.once(fire_at, payload=workload.payload(settings.payload_bytes, settings.seed))
    await stage.load(repeat(fields, settings.runs), settings.runs, "creating jobs")
    fire_seconds = await _make_ready(stage, settings.runs)
    base = await bench_figures.counters(stage.pool)
    started_at = await stage.now()
    stage.progress.begin("starting workers")
    starting = asyncio.gather(*(stage.fleet.worker(settings.concurrency) for _ in range(settings.workers)))
    leased_at, _ = await asyncio.gather(first_lease(stage), starting)
    drained_at = await until_drained(stage, base, settings.runs, "draining")
    runs = await read_runs(stage, fire_at, fire_at + timedelta(microseconds=1))
    first_at = min(at for at in (leased_at, runs.first_started_at, drained_at) if at is not None)
    return {
        **accounted(runs, settings.runs),
        **rated(settings.runs, (drained_at - first_at).total_seconds()),
        "with_process_start_seconds": seconds_between(started_at, drained_at),
        "making_ready_seconds": round(fire_seconds, 3),
    }


async def _make_ready(stage: Stage, runs: int) -> float:
    """Let a scheduler fire all of it, and leave; returns how long that took."""
    await tidy(stage)
    began_at = await stage.now()
    scheduler = await stage.fleet.scheduler()
    await until_fired(stage, began_at, runs, "firing into the lanes")
    fired_at = await stage.now()
    await stage.fleet.stop(scheduler)
    return (fired_at - began_at).total_seconds()


SCENARIO = Scenario("drain", run)
