"""Scenario `forecast`: how long a forecast of many jobs takes, and how much memory.

Rules and timers are written by SQL: a forecast is counted from them alone. The clock stands meanwhile.

`shared`: cron rules in several zones, each of many jobs. `spread`: a rule for each minute of the day, with jitter.
`distinct`: one rule for every two jobs, as intervals have that count from the creation of their jobs.
"""

import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from statistics import median
from typing import Annotated, Any, TypeVar

from evertick.bench.scenario import MAX_COUNT, Option, Scenario
from evertick.bench.testbed import Testbed
from evertick.contract.forecast import ForecastHorizon
from evertick.domain.rule import Policies, Rule, rule_of
from evertick.domain.schedule.instants import from_us, to_us
from evertick.domain.schedule.schedule import Schedule
from evertick.store import statements
from evertick.store.jobs import references
from evertick.usecases.forecast.reading import ForecastWish, advise, forecast

_T = TypeVar("_T")
_SQL = statements.load("forecast", "evertick.bench")
_INDEXES = _SQL["indexes"].values(str)
_RULE_IDS = _SQL["rule_ids"].values(int)
_ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Asia/Tokyo", "Australia/Sydney")
_CHUNK = 500_000
_STEP = timedelta(hours=1)
_APART_US = 700
"""So far apart are the phases of distinct intervals: five million of them fill an hour."""
_SLOW_SECONDS = 3600


class Distribution(StrEnum):
    """How jobs share rules."""

    SHARED = "shared"
    SPREAD = "spread"
    DISTINCT = "distinct"


@dataclass(frozen=True, slots=True)
class ForecastOptions:
    jobs: Annotated[int, Option("Number of jobs.", 1, MAX_COUNT)] = 1_000_000
    rules: Annotated[int, Option("Number of rules that they share, if they are shared.", 1, 100_000)] = 1_000
    distribution: Annotated[Distribution, Option("How they share rules.")] = Distribution.SHARED
    repeats: Annotated[int, Option("Forecasts of each kind.", 1, 100)] = 3


async def run(testbed: Testbed, options: ForecastOptions) -> dict[str, Any]:
    loaded = await _load(testbed, options)
    testbed.progress.begin("vacuum")
    async with testbed.pool.acquire() as session:
        await session.execute("VACUUM (ANALYZE) timers, rules", timeout=_SLOW_SECONDS)
    testbed.progress.begin("forecasting")
    before_mb = _peak_mb()
    day, found = await _timed(options.repeats, lambda: forecast(testbed.tenant, ForecastWish(ForecastHorizon.DAY)))
    month, _ = await _timed(options.repeats, lambda: forecast(testbed.tenant, ForecastWish(ForecastHorizon.MONTH)))
    advising, advice = await _timed(options.repeats, lambda: advise(testbed.tenant, {}, None))
    return {
        "runs": found.total,
        "jobs": found.counted_jobs,
        "distribution": str(options.distribution),
        "loading_seconds": round(loaded, 1),
        "seconds": round(median(day), 3),
        "seconds_24h": _summary(day),
        "seconds_30d": _summary(month),
        "seconds_advice": _summary(advising),
        "peak": found.peak,
        "peak_after_advice": advice.peak_after,
        "advised_jobs": advice.jobs,
        "advised_jitter_seconds": advice.jitter_seconds,
        "is_estimate": found.is_estimate,
        "is_advice_estimate": advice.is_estimate,
        "relative_error": found.relative_error,
        "memory_mb": {"before": before_mb, "after": _peak_mb()},
    }


async def _timed(repeats: int, compute: Callable[[], Awaitable[_T]]) -> tuple[list[float], _T]:
    took, found = [], []
    for _ in range(repeats):
        began = time.monotonic()
        found.append(await compute())
        took.append(time.monotonic() - began)
    return took, found[-1]


def _summary(took: list[float]) -> dict[str, float]:
    return {"first": round(took[0], 3), "median": round(median(took), 3), "max": round(max(took), 3)}


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


async def _load(testbed: Testbed, options: ForecastOptions) -> float:
    """Write rules and timers; returns the seconds that it took."""
    began = time.monotonic()
    now_at = await testbed.now()
    testbed.progress.begin("writing timers", options.jobs)
    if options.distribution is Distribution.DISTINCT:
        write, values = await _intervals(testbed, max(1, options.jobs // 2), now_at)
    else:
        write, values = await _shared(testbed, options, now_at)
    async with testbed.pool.acquire() as session:
        indexes = await _INDEXES.all(session)
        await _SQL["drop_indexes"].execute(session)
        await _SQL["drop_key"].execute(session)
        for first in range(1, options.jobs + 1, _CHUNK):
            last = min(first + _CHUNK - 1, options.jobs)
            arguments = write.arguments({**values, "tenant_id": testbed.tenant.tenant_id, "first": first, "last": last})
            await session.execute(write.text, *arguments, timeout=_SLOW_SECONDS)
            testbed.progress.reach(last)
        for definition in indexes:
            await session.execute(definition, timeout=_SLOW_SECONDS)
        await _SQL["keep_clock"].execute(session, now_at=now_at)
        await _SQL["stop_clock"].execute(session)
    return time.monotonic() - began


async def _shared(
    testbed: Testbed, options: ForecastOptions, now_at: datetime
) -> tuple[statements.Statement, dict[str, Any]]:
    is_spread = options.distribution is Distribution.SPREAD
    rules = list(_spread_rules() if is_spread else _cron_rules(options.rules))
    await references.add_rules(testbed.pool, {rule.digest(): rule.canonical() for rule in rules})
    rule_ids = await _RULE_IDS.all(testbed.pool, digests=[rule.digest() for rule in rules])
    next_us = [rule.ticks().next(to_us(now_at)) for rule in rules]
    return _SQL["add_timers"], {
        "rule_ids": rule_ids,
        "fire_ats": [from_us(at or 0) for at in next_us],
        "jitters_us": [rule.jitter_us for rule in rules],
    }


def _cron_rules(count: int) -> Iterator[Rule]:
    """Of ten rules one fires each minute, three each hour, five each day and one on weekdays."""
    for number in range(count):
        minute, hour = number % 60, number // 60 % 24
        text = (
            f"*/{1 + number // 10 % 10} * * * *",
            *[f"{minute} * * * *"] * 3,
            *[f"{minute} {hour} * * *"] * 5,
            f"{minute} {hour} * * 1-5",
        )[number % 10]
        policies = Policies(misfire_grace=timedelta(seconds=60 + number))  # so that each is a rule of its own
        yield rule_of(Schedule(text, _ZONES[number // 10 % len(_ZONES)]), policies)


def _spread_rules() -> Iterator[Rule]:
    for number in range(1440):
        yield rule_of(Schedule(f"{number % 60} {number // 60} * * *"), Policies(jitter=timedelta(seconds=300)))


async def _intervals(testbed: Testbed, count: int, now_at: datetime) -> tuple[statements.Statement, dict[str, Any]]:
    anchor_at = datetime(1970, 1, 1, tzinfo=UTC)
    rule = rule_of(Schedule("every 1h", anchor_at=anchor_at), Policies())
    step_us = int(_STEP.total_seconds()) * 1_000_000
    apart = {"count": count, "apart_us": _APART_US, "from_us": to_us(now_at), "step_us": step_us}
    insert = _SQL["add_intervals"]
    async with testbed.pool.acquire() as session:
        arguments = insert.arguments({**apart, "canonical": rule.canonical()})
        await session.execute(insert.text, *arguments, timeout=_SLOW_SECONDS)
    return _SQL["add_interval_timers"], apart


SCENARIO = Scenario(
    "forecast",
    "How long a forecast of many jobs takes, for a day in minutes and a month in hours, and how much memory.",
    "evertick bench forecast --jobs 10000000 --distribution shared --json",
    ForecastOptions,
    run,
    reuses_database=False,
)
