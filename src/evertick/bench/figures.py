"""From what the ledgers say to the figures of a result."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from evertick.bench import figures_queries
from evertick.bench.figures_queries import Runs
from evertick.bench.stage import Stage
from evertick.bench.workload import QUEUE

PERCENTILES = ("p50", "p95", "p99", "max")


async def read_runs(stage: Stage, from_at: datetime, until_at: datetime, queue: str = QUEUE) -> Runs:
    stage.progress.begin("reading the ledgers")
    return await figures_queries.runs(stage.pool, queue, from_at, until_at)


def accounted(runs: Runs, expected: int) -> dict[str, Any]:
    """Whether each run that was to be came to a success, and once."""
    return {"runs": runs.runs, "missing": expected - runs.succeeded, "duplicates": runs.duplicates}


def rated(count: int, seconds: float) -> dict[str, Any]:
    return {"seconds": round(seconds, 3), "rate_per_second": round(count / seconds) if seconds > 0 else None}


def lags(runs: Runs) -> dict[str, Any]:
    """How late runs began, from their due time on."""
    if not runs.lags_ms:
        return {"lag_ms": None}
    return {"lag_ms": {name: round(value, 2) for name, value in zip(PERCENTILES, runs.lags_ms, strict=True)}}


def spent(before: Mapping[str, float], after: Mapping[str, float], by: float, digits: int = 1) -> dict[str, float]:
    """How much CPU time each kind of process took, divided by something."""
    return {name: round((seconds - before.get(name, 0.0)) / by, digits) for name, seconds in after.items()}


def seconds_between(from_at: datetime | None, to_at: datetime | None) -> float | None:
    return None if from_at is None or to_at is None else round((to_at - from_at).total_seconds(), 3)
