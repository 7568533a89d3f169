"""How long finding what is due takes, by the same look-ups as a scheduler's."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from evertick.bench.stage import Stage
from evertick.config import Settings
from evertick.domain.ids import PARTITIONS
from evertick.roles.scheduler.loading import FIRST_PARTITIONS, MAX_ANSWER, POLL_AHEAD, POLL_LIMIT
from evertick.store import timers

BEGINNING_AT = datetime(1, 1, 2, tzinfo=UTC)
HORIZON = Settings().load_horizon
"""The default, which holds because no setting of whoever measures reaches the processes."""


@dataclass(frozen=True, slots=True)
class LookUps:
    """One look-up for each group of partitions: how long each took, and how many timers all of them found."""

    took_ms: tuple[float, ...]
    timers: int

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "p50": round(median(self.took_ms), 3),
            "max": round(max(self.took_ms), 3),
            "groups": len(self.took_ms),
            "timers": self.timers,
        }


async def look_up_groups(stage: Stage) -> LookUps:
    """Look up what is due within the horizon, group by group: as a scheduler does that has just got its partitions."""
    return await _look_up(stage, HORIZON, MAX_ANSWER // FIRST_PARTITIONS)


async def poll_groups(stage: Stage) -> LookUps:
    """Look up what is due right now, group by group; a scheduler's poll each second asks for all groups at once."""
    return await _look_up(stage, POLL_AHEAD, POLL_LIMIT)


async def _look_up(stage: Stage, ahead: timedelta, most: int) -> LookUps:
    before_at = await stage.now() + ahead
    took, found = [], 0
    async with stage.pool.acquire() as session:
        await timers.load(session, [], [], before_at, most)  # as ever after the first: prepared
        for group in _groups():
            began = time.perf_counter()
            found += len(await timers.load(session, group, [BEGINNING_AT] * len(group), before_at, most))
            took.append((time.perf_counter() - began) * 1000)
    return LookUps(tuple(took), found)


def _groups() -> Iterator[range]:
    for first in range(0, PARTITIONS, FIRST_PARTITIONS):
        yield range(first, min(first + FIRST_PARTITIONS, PARTITIONS))
