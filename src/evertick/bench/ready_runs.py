"""Runs that are ready: a scheduler fires them into the lanes and leaves, then workers come and drain them."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

from evertick.bench.figures import accounted, rated, read_runs, seconds_between
from evertick.bench.stage import Stage
from evertick.bench.watching import first_lease, until_drained, until_fired
from evertick.store import bench_figures


async def make_ready(stage: Stage, runs: int) -> float:
    """Let a scheduler fire all that is due by now, and leave; returns how long that took."""
    began_at = await stage.now()
    scheduler = await stage.fleet.scheduler()
    await until_fired(stage, began_at, runs, "firing into the lanes")
    fired_at = await stage.now()
    await stage.fleet.stop(scheduler)
    return (fired_at - began_at).total_seconds()


async def drain_ready(
    stage: Stage, fire_at: datetime, runs: int, workers: int, concurrency: int | None
) -> dict[str, Any]:
    """Let workers run what was fired for an instant, and leave. The rate counts from first lease to last outcome."""
    base = await bench_figures.counters(stage.pool)
    started_at = await stage.now()
    stage.progress.begin("starting workers")
    starting = asyncio.gather(*(stage.fleet.worker(concurrency) for _ in range(workers)))
    leased_at, processes = await asyncio.gather(first_lease(stage), starting)
    drained_at = await until_drained(stage, base, runs, "draining")
    await stage.fleet.stop(*processes)
    found = await read_runs(stage, fire_at, fire_at + timedelta(microseconds=1))
    first_at = min(at for at in (leased_at, found.first_started_at, drained_at) if at is not None)
    return {
        **accounted(found, runs),
        **rated(runs, (drained_at - first_at).total_seconds()),
        "with_process_start_seconds": seconds_between(started_at, drained_at),
    }
