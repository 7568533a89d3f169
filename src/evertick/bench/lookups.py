"""Measures the queries by which a scheduler finds due timers."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from evertick.bench.testbed import Testbed
from evertick.config import Settings
from evertick.domain.ids import PARTITIONS
from evertick.roles.scheduler.loading import FIRST_PARTITIONS, MAX_ANSWER, POLL_AHEAD, POLL_LIMIT
from evertick.store.engine import timers

EARLIEST_AT = datetime(1, 1, 2, tzinfo=UTC)
HORIZON = Settings().load_horizon
"""The default: processes of the bench do not inherit settings from the environment."""


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


async def _look_up(testbed: Testbed, ahead: timedelta, most: int) -> LookupTimes:
    before_at = await testbed.now() + ahead
    took, found = [], 0
    async with testbed.pool.acquire() as session:
        await timers.load(session, [], [], before_at, most)  # prepares the statement
        for group in _groups():
            began = time.perf_counter()
            found += len(await timers.load(session, group, [EARLIEST_AT] * len(group), before_at, most))
            took.append((time.perf_counter() - began) * 1000)
    return LookupTimes(tuple(took), found)


def _groups() -> Iterator[range]:
    for first in range(0, PARTITIONS, FIRST_PARTITIONS):
        yield range(first, min(first + FIRST_PARTITIONS, PARTITIONS))
