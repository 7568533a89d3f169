"""How far away the database is, and how much ends in that time: what decides how far ahead to lease."""

import math
from collections import deque
from collections.abc import Callable

SAMPLES = 4
SLOW_SECONDS = 0.05
TRIPS_PER_LEASE = 2
"""One leases, one reads."""
FADE = 0.8
LOOK_SECONDS = 0.25
"""Between two looks at how much has ended."""


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
        return self.seconds > SLOW_SECONDS


class CompletionRate:
    """How many attempts end in a second, by the best of the last moments."""

    def __init__(self, round_trip: RoundTrip, monotonic: Callable[[], float]) -> None:
        self._round_trip = round_trip
        self._monotonic = monotonic
        self._rate = 0.0
        self._total = 0
        self._at = monotonic()

    def look(self, total: int) -> None:
        """So many have ended in all."""
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
