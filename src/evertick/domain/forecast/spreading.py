"""Ticks of a rule as firings of its jobs in minutes: jitter makes the jobs due at their own offsets after each tick."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TypeAlias

from evertick.domain.forecast.horizon import MINUTE_US
from evertick.domain.schedule.instants import SECOND_US
from evertick.domain.schedule.ticks import Ticks

AddMinute: TypeAlias = Callable[[int, int], None]
"""Takes a minute since 1970, and a number of firings in it."""


class Spread:
    """How the jobs of a rule spread over the minutes after a tick. `offsets` has their number for each second."""

    def __init__(self, offsets: Mapping[int, int]) -> None:
        self.furthest_s = max(offsets, default=0)
        self._offsets = offsets
        self._by_second: dict[int, list[tuple[int, int]]] = {}

    def of(self, second: int) -> list[tuple[int, int]]:
        """Minutes ahead, and the jobs in each, for a tick at this second of its minute."""
        found = self._by_second.get(second)
        if found is None:
            minutes: defaultdict[int, int] = defaultdict(int)
            for offset_s, jobs in self._offsets.items():
                minutes[(second + offset_s) // 60] += jobs
            found = self._by_second[second] = list(minutes.items())
        return found

    def put(self, ticks: Ticks, between_us: tuple[int, int], first_minute: int, add_minute: AddMinute) -> None:
        """Walk through the ticks between two instants. Firings before the first minute are left out."""
        low_us, high_us = between_us
        at_us = ticks.next(low_us - 1)
        while at_us is not None and at_us < high_us:
            minute, rest_us = divmod(at_us, MINUTE_US)
            for ahead, jobs in self.of(rest_us // SECOND_US):
                if minute + ahead >= first_minute:
                    add_minute(minute + ahead, jobs)
            at_us = ticks.next(at_us)
