"""Computes the fields of a result from the runs in the database."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from evertick.bench import queries
from evertick.bench.queries import RunStatistics
from evertick.bench.testbed import Testbed
from evertick.bench.workload import QUEUE

PERCENTILES = ("p50", "p95", "p99", "max")


async def read_runs(testbed: Testbed, from_at: datetime, until_at: datetime, queue: str = QUEUE) -> RunStatistics:
    testbed.progress.begin("reading results")
    return await queries.runs(testbed.pool, queue, from_at, until_at)


def count_fields(runs: RunStatistics, expected: int) -> dict[str, Any]:
    """How many runs there are, how many of the expected ones are missing, and how many starts were duplicates."""
    return {"runs": runs.runs, "missing": expected - runs.succeeded, "duplicates": runs.duplicates}


def rate_fields(count: int, seconds: float) -> dict[str, Any]:
    return {"seconds": round(seconds, 3), "rate_per_second": round(count / seconds) if seconds > 0 else None}


def lag_fields(runs: RunStatistics) -> dict[str, Any]:
    """How late runs started, counted from their due time."""
    if not runs.lags_ms:
        return {"lag_ms": None}
    return {"lag_ms": {name: round(value, 2) for name, value in zip(PERCENTILES, runs.lags_ms, strict=True)}}


def cpu_used(before: Mapping[str, float], after: Mapping[str, float], by: float, digits: int = 1) -> dict[str, float]:
    """CPU time that each kind of process used between two readings, divided by `by`."""
    return {name: round((seconds - before.get(name, 0.0)) / by, digits) for name, seconds in after.items()}


def seconds_between(from_at: datetime | None, to_at: datetime | None) -> float | None:
    return None if from_at is None or to_at is None else round((to_at - from_at).total_seconds(), 3)
