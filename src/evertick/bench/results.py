"""What results consist of: counts, rates, lags, CPU time, and the time that a scheduler takes to look up due timers."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any, NamedTuple

from evertick.bench import queries
from evertick.bench.queries import RunStatistics
from evertick.bench.testbed import Testbed
from evertick.bench.workload import QUEUE
from evertick.config.settings import Settings
from evertick.domain.ids import PARTITIONS
from evertick.roles.scheduler.loading import FIRST_PARTITIONS, MAX_ANSWER, POLL_AHEAD, POLL_LIMIT
from evertick.store.engine import timers

EARLIEST_AT = datetime(1, 1, 2, tzinfo=UTC)
HORIZON = Settings().load_horizon
"""The default: processes of the bench do not inherit settings from the environment."""
PERCENTILES = ("p50", "p95", "p99", "max")
COUNTS = ("runs", "missing", "duplicates")


class Interval(NamedTuple):
    """Fire times from an instant to before another."""

    from_at: datetime
    until_at: datetime


async def read_runs(testbed: Testbed, from_at: datetime, until_at: datetime, queue: str = QUEUE) -> RunStatistics:
    testbed.progress.begin("reading results")
    return await queries.runs(testbed.pool, queue, from_at, until_at)


def count_fields(runs: RunStatistics, expected: int) -> dict[str, Any]:
    """How many runs there are, how many of the expected ones are missing, and how many starts were duplicates."""
    return {"runs": runs.runs, "missing": expected - runs.succeeded, "duplicates": runs.duplicates}


async def ledger_fields(
    testbed: Testbed, interval: Interval, due: int, queue: str = QUEUE, tenant_ids: Sequence[int] | None = None
) -> dict[str, Any]:
    """What became of the ticks of an interval: each runs once or is in a gap. `missing` are those that did neither."""
    runs = await queries.runs(testbed.pool, queue, *interval, tenant_ids)
    skipped = await queries.skipped(testbed.pool, queue, *interval, tenant_ids)
    return {
        "due": due,
        **count_fields(runs, due - sum(skipped.values())),
        "skipped": {"total": sum(skipped.values()), **skipped},
        **lag_fields(runs),
    }


def total_fields(parts: Sequence[Mapping[str, Any]], names: Sequence[str] = COUNTS) -> dict[str, Any]:
    """The fields of several results, added up."""
    return {name: sum(part[name] for part in parts) for name in names}


def created_fields(created: int, expected: int) -> dict[str, Any]:
    """How many jobs were created, and how many are missing or too many."""
    return {"jobs": created, "missing": max(expected - created, 0), "duplicates": max(created - expected, 0)}


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


@dataclass(frozen=True, slots=True)
class LookupTimes:
    """One lookup for each group of partitions: the duration of each, and how many timers all of them found."""

    took_ms: tuple[float, ...]
    timers: int

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "p50": round(median(self.took_ms), 3),
            "max": round(max(self.took_ms), 3),
            "groups": len(self.took_ms),
            "timers": self.timers,
        }


async def time_load_lookups(testbed: Testbed) -> LookupTimes:
    """Look up what is due within the load horizon, as a scheduler does after it has taken over partitions."""
    return await _look_up(testbed, HORIZON, MAX_ANSWER // FIRST_PARTITIONS)


async def time_poll_lookups(testbed: Testbed) -> LookupTimes:
    """Look up what is due now, group by group. A scheduler's poll each second queries all groups at once."""
    return await _look_up(testbed, POLL_AHEAD, POLL_LIMIT)


async def _look_up(testbed: Testbed, ahead: timedelta, limit: int) -> LookupTimes:
    before_at = await testbed.now() + ahead
    took, found = [], 0
    async with testbed.pool.acquire() as session:
        await timers.load(session, [], [], before_at, limit)  # prepares the statement
        for first in range(0, PARTITIONS, FIRST_PARTITIONS):
            group = range(first, min(first + FIRST_PARTITIONS, PARTITIONS))
            began = time.perf_counter()
            found += len(await timers.load(session, group, [EARLIEST_AT] * len(group), before_at, limit))
            took.append((time.perf_counter() - began) * 1000)
    return LookupTimes(tuple(took), found)
