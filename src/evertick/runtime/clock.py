"""The database's clock, estimated from samples and a monotonic clock. A node's wall clock decides nothing.

The statement that fires checks the due time again, on the real clock: a wrong estimate does no harm. Steps of the
database's clock are detected here, because the monotonic clock makes none. The remote worker uses this module without
the store.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

from evertick.domain.schedule.instants import from_us, to_us

logger = logging.getLogger("evertick")

SAMPLES = 16
STEP_US = 1_000_000
"""A sample that is so far off the others, beyond what its round trip explains, means that the clock was set."""

Stepped = Callable[[timedelta], None]


class Clock(Protocol):
    """The time in the database. `steps` counts how often its clock was set; `listeners` are called with by how much.

    `skew_us`: how far this machine's clock is off. Nothing depends on it but people.
    """

    steps: int
    listeners: list[Stepped]

    @property
    def skew_us(self) -> int: ...

    def now_us(self) -> int: ...

    def observe(self, now_at: datetime, asked_us: int | None = None) -> None:
        """Learn from an answer of the database, as soon as it arrives.

        `asked_us` is what `monotonic_us` was before the question.
        """


class DatabaseClock:
    """Estimates the offset between the database's clock and the monotonic one.

    The database read its clock between question and answer. So each sample bounds the true offset from below by the
    time of the answer, and from above by the time of the question. The tightest of the last bounds count: an answer
    that was slow to arrive changes nothing. Only bounds that exclude each other prove a step.
    """

    def __init__(self, monotonic: Callable[[], int] | None = None) -> None:
        self.steps = 0
        self.listeners: list[Stepped] = []
        self._monotonic_us = monotonic or monotonic_us
        self._lows: deque[int] = deque(maxlen=SAMPLES)
        self._highs: deque[int] = deque(maxlen=SAMPLES)
        self._offset_us = time.time_ns() // 1000 - self._monotonic_us()  # until the first sample

    @property
    def skew_us(self) -> int:
        """How far this machine's wall clock is from the database's, at least: by the bounds of the last samples."""
        wall_us = time.time_ns() // 1000 - self._monotonic_us()
        too_low = max(self._lows) - wall_us if self._lows else 0
        too_high = wall_us - min(self._highs) if self._highs else 0
        return max(too_low, too_high, 0)

    def now_us(self) -> int:
        return self._monotonic_us() + self._offset_us

    def observe(self, now_at: datetime, asked_us: int | None = None) -> None:
        low_us = to_us(now_at) - self._monotonic_us()
        high_us = None if asked_us is None else to_us(now_at) - asked_us
        is_behind = bool(self._lows) and low_us < max(self._lows) - STEP_US
        if high_us is None and is_behind:
            if self._highs:
                return  # slow, or set back: the next sample with a known round trip decides
            self._lows.clear()
        step_us = self._step(low_us, high_us)
        if step_us:
            self._lows.clear()
            self._highs.clear()
        self._lows.append(low_us)
        if high_us is not None:
            self._highs.append(high_us)
        self._offset_us = max(self._lows)
        if step_us:
            self._report(timedelta(microseconds=step_us))

    def _step(self, low_us: int, high_us: int | None) -> int:
        """By how much the clock was set since the last samples; 0: this sample proves no step."""
        is_ahead = bool(self._highs) and low_us > min(self._highs) + STEP_US
        is_back = bool(self._lows) and high_us is not None and high_us < max(self._lows) - STEP_US
        return low_us - max(self._lows) if is_ahead or is_back else 0

    def _report(self, by: timedelta) -> None:
        self.steps += 1
        size = timedelta(seconds=round(abs(by).total_seconds()))
        logger.warning(
            "the database's clock %s %s", "jumped ahead by" if by > timedelta(0) else "was set back by", size
        )
        for listener in self.listeners:
            listener(by)


class VirtualClock:
    """A clock that stands still until it is moved, for tests on a virtual time."""

    skew_us = 0

    def __init__(self, now_at: datetime) -> None:
        self.now_at = now_at
        self.steps = 0
        self.listeners: list[Stepped] = []

    def now_us(self) -> int:
        return to_us(self.now_at)

    def observe(self, now_at: datetime, asked_us: int | None = None) -> None:  # noqa: ARG002 - it has no round trips
        self.now_at = now_at


def now_of(clock: Clock) -> datetime:
    """The clock's time as an aware datetime in UTC."""
    return from_us(clock.now_us())


def monotonic_us() -> int:
    return time.monotonic_ns() // 1000
