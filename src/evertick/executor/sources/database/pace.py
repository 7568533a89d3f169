"""How much to lease at once: as much as is done in about a second, so that no attempt is leased and idle.

And how far ahead: that depends on how far away the database is, and how much ends in that time.
"""

import math
import time
from collections import deque
from collections.abc import Callable

MAX_SIZE = 8192
FAST_SECONDS = 0.5
SLOW_SECONDS = 2.0
SAMPLES = 4
SLOW_TRIP_SECONDS = 0.05
TRIPS_PER_LEASE = 2
"""One leases, one reads."""
FADE = 0.8
LOOK_SECONDS = 0.25
"""Between two looks at how much has ended."""


class Pace:
    """The size of the next lease, which follows how long the last ones took; never below `least`."""

    def __init__(self, least: int) -> None:
        self._least = least
        self.size = least

    def finished(self, seconds: float, *, is_cut: bool) -> None:
        """A batch was done after so many seconds. `is_cut`: it had as many attempts as its size allowed."""
        if seconds < FAST_SECONDS and is_cut:
            self.size = max(self._least, min(2 * self.size, MAX_SIZE))
        elif seconds > SLOW_SECONDS:
            self.size = max(self._least, self.size // 2)


class Batch:
    """The leases that one statement gave. The end of the last of them adjusts the pace."""

    __slots__ = ("_begun", "_is_cut", "_leases", "_pace")

    def __init__(self, pace: Pace, leases: int, *, is_cut: bool) -> None:
        self._pace = pace
        self._leases = leases
        self._is_cut = is_cut
        self._begun = time.monotonic()

    def lease_done(self) -> None:
        self._leases -= 1
        if not self._leases:
            self._pace.finished(time.monotonic() - self._begun, is_cut=self._is_cut)


class RoundTrip:
    """The shortest of the last samples: the others waited for something else as well."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=SAMPLES)

    def note(self, seconds: float) -> None:
        self._samples.append(seconds)

    @property
    def seconds(self) -> float:
        return min(self._samples, default=0.0)

    @property
    def is_slow(self) -> bool:
        return self.seconds > SLOW_TRIP_SECONDS


class CompletionRate:
    """How many attempts end in a second, by the best of the last moments."""

    def __init__(self, round_trip: RoundTrip, monotonic: Callable[[], float]) -> None:
        self._round_trip = round_trip
        self._monotonic = monotonic
        self._rate = 0.0
        self._total = 0
        self._at = monotonic()

    def look(self, total: int) -> None:
        """`total` attempts have ended since the start."""
        now = self._monotonic()
        if now >= self._at + LOOK_SECONDS:
            self._rate = max((total - self._total) / (now - self._at), FADE * self._rate)
            self._total, self._at = total, now

    @property
    def per_lease(self) -> int:
        """How many end while a lease is on its way, over a slow line."""
        if not self._round_trip.is_slow:
            return 0
        return math.ceil(self._rate * TRIPS_PER_LEASE * self._round_trip.seconds)
