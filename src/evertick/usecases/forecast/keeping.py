"""Forecasts for pages: counted once for all that look, and kept for a while.

Counting the timers of a million jobs takes a second. A page does not wait for it: the counting goes on without it, and
the next look finds the result.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import TypeAlias

from evertick.contract.forecast import Forecast, ForecastAdvice

logger = logging.getLogger("evertick.dashboard")

MAX_KEPT = 100
MAX_AGE_SECONDS = 60.0
FAILED_SECONDS = 5.0
TIMES_AS_LONG = 10
"""A result is kept for so many times as long as it took, so that counting takes a tenth of the time at most."""

Result: TypeAlias = tuple[Forecast, ForecastAdvice]


@dataclass(slots=True)
class _Count:
    """A result, or the counting of one. `before`: the result to show until then."""

    task: asyncio.Task[Result]
    began: float
    before: Result | None = None
    took: float | None = None

    @property
    def result(self) -> Result | None:
        return self.before if self.took is None else self.task.result()

    def is_usable(self, max_age: float, now: float) -> bool:
        """Whether it is counted, or young enough; a failure is, too, so that it is seen and not repeated at once."""
        if not self.task.done():
            return True
        if self.took is None:
            return now - self.began < FAILED_SECONDS
        age = now - self.began - self.took
        return age < max(max_age, min(TIMES_AS_LONG * self.took, MAX_AGE_SECONDS))


class Forecasts:
    """What is counted and kept, by what was asked."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._counts: dict[Hashable, _Count] = {}

    async def get(
        self, asked: Hashable, count: Callable[[], Awaitable[Result]], *, patience: float, max_age: float = 0.0
    ) -> Result | None:
        """A result that is hardly older than `max_age`, or the one before while another is counted.

        None: the first one is still being counted after `patience` seconds.
        """
        found = self._counts.get(asked)
        if found is None or not found.is_usable(max_age, self._monotonic()):
            found = self._start(asked, count, None if found is None else found.result)
        await asyncio.wait({found.task}, timeout=patience)
        return found.task.result() if found.task.done() else found.before

    def _start(self, asked: Hashable, count: Callable[[], Awaitable[Result]], before: Result | None) -> _Count:
        now = self._monotonic()
        self._counts.pop(asked, None)
        for old in [key for key, each in self._counts.items() if not each.is_usable(MAX_AGE_SECONDS, now)]:
            del self._counts[old]
        if len(self._counts) >= MAX_KEPT:
            del self._counts[next(iter(self._counts))]
        begun = _Count(asyncio.ensure_future(count()), now, before)
        begun.task.add_done_callback(lambda task: _note(begun, task, self._monotonic()))
        self._counts[asked] = begun
        return begun


def _note(count: _Count, task: asyncio.Task[Result], now: float) -> None:
    """A failure is that of those who look while it is kept; for the others it is logged."""
    if task.cancelled():
        return
    if (failure := task.exception()) is None:
        count.took = now - count.began
    else:
        count.began = now
        logger.warning("a forecast could not be counted: %r", failure)
