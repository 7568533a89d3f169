"""The database's clock, estimated between two looks at it from a monotonic clock. A node's wall clock decides nothing.

Due-ness is checked again by the statement that fires, on the real clock: a guess may be wrong without harm.
"""

import time
from collections import deque
from datetime import datetime, timedelta
from typing import Protocol

from evertick.domain.schedule.instants import from_us, to_us

SAMPLES = 16
STEP_US = 1_000_000
"""A sample this far behind the others means that the database's clock was set back."""


class Clock(Protocol):
    """What time it is in the database."""

    def now_us(self) -> int: ...

    def observe(self, now_at: datetime) -> None:
        """Learn from an answer of the database, as soon as it arrives."""


class DatabaseClock:
    """Each answer's time has passed when it arrives, so each sample bounds the true offset from below.

    The best of the last samples is the tightest bound: an answer that was slow to arrive changes nothing.
    """

    def __init__(self) -> None:
        self._offsets: deque[int] = deque(maxlen=SAMPLES)
        self._offset_us = time.time_ns() // 1000 - _monotonic_us()  # until the first sample

    def now_us(self) -> int:
        return _monotonic_us() + self._offset_us

    def observe(self, now_at: datetime) -> None:
        offset_us = to_us(now_at) - _monotonic_us()
        if self._offsets and offset_us < max(self._offsets) - STEP_US:
            self._offsets.clear()
        self._offsets.append(offset_us)
        self._offset_us = max(self._offsets)


class VirtualClock:
    """A clock that stands still until it is moved, for tests on a virtual time."""

    def __init__(self, now_at: datetime) -> None:
        self.now_at = now_at

    def now_us(self) -> int:
        return to_us(self.now_at)

    def observe(self, now_at: datetime) -> None:
        self.now_at = now_at


def now_of(clock: Clock) -> datetime:
    """The clock's time as an aware datetime in UTC."""
    return from_us(clock.now_us())


def ago(clock: Clock, seconds: float) -> datetime:
    """The instant that lies so many seconds before now."""
    return now_of(clock) - timedelta(seconds=seconds)


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000
