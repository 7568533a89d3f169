"""Patterns of wall times: which readings of the clock on the wall a schedule names, before any zone is involved.

All walls are integer seconds. A pattern answers three questions without walking from one wall to the next: the
first at or after, the last before, and how many between.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol

from evertick.domain.schedule.budget import spend
from evertick.domain.schedule.instants import DAY_S

LOOK_UP_STEPS = 8
"""What it costs to ask a pattern about one wall; a loop over walls that are listed pays it for each."""
LONGEST_REMOVED_S = 50 * 366 * DAY_S
"""A schedule of which all is removed for so long has ended, as has one that matches nothing for so long."""
PASSING_DATES = "dates that are listed beside the rule"


class WallPattern(Protocol):
    """A set of wall times, ordered."""

    def next_from(self, wall: int) -> int | None:
        """Return the first wall at or after `wall`."""

    def prev_before(self, wall: int) -> int | None:
        """Return the last wall before `wall`."""

    def count(self, low: int, high: int) -> int:
        """Return the number of walls in [low, high)."""

    def walls(self, low: int, high: int) -> Sequence[int]:
        """Return the walls in [low, high), a few hours apart at most: there may be one each second."""


def is_in(pattern: WallPattern, wall: int) -> bool:
    """Whether the pattern has this wall: a look at one day, where `next_from` might search for decades."""
    spend(LOOK_UP_STEPS, PASSING_DATES)
    return pattern.count(wall, wall + 1) > 0


class ListPattern:
    """A few walls, listed."""

    def __init__(self, walls: Sequence[int]) -> None:
        self._walls = sorted(set(walls))

    def next_from(self, wall: int) -> int | None:
        i = bisect_left(self._walls, wall)
        return self._walls[i] if i < len(self._walls) else None

    def prev_before(self, wall: int) -> int | None:
        i = bisect_left(self._walls, wall)
        return self._walls[i - 1] if i else None

    def count(self, low: int, high: int) -> int:
        return max(0, bisect_left(self._walls, high) - bisect_left(self._walls, low))

    def walls(self, low: int, high: int) -> Sequence[int]:
        return self._walls[bisect_left(self._walls, low) : bisect_left(self._walls, high)]


class StepPattern:
    """Walls computed by number: `wall_of(0) < wall_of(1) < …`, `total` of them or without end.

    `strides` are the lengths that a step may have, on average from the first wall on.
    """

    def __init__(self, wall_of: Callable[[int], int | None], strides: range, total: int | None) -> None:
        self._wall_of = wall_of
        self._shortest, self._longest = strides[0], strides[-1]
        self._total = total

    def next_from(self, wall: int) -> int | None:
        return self._at(self._rank(wall))

    def prev_before(self, wall: int) -> int | None:
        rank = self._rank(wall)
        return self._at(rank - 1) if rank else None

    def count(self, low: int, high: int) -> int:
        return max(0, self._rank(high) - self._rank(low))

    def walls(self, low: int, high: int) -> Sequence[int]:
        found = map(self._at, range(self._rank(low), self._rank(high)))
        return [wall for wall in found if wall is not None]

    def _at(self, number: int) -> int | None:
        return self._wall_of(number) if self._total is None or number < self._total else None

    def _rank(self, wall: int) -> int:
        """How many walls are before `wall`: a bisection between the numbers that it may have."""
        start = self._at(0)
        if start is None or wall <= start:
            return 0
        low, high = (wall - start) // self._longest, (wall - start) // self._shortest + 2
        if self._total is not None:
            low, high = min(low, self._total), min(high, self._total)
        if low and self._at(low - 1) is None:  # beyond the last year
            low = 0
        while low < high:
            spend(LOOK_UP_STEPS // 2, "numbered steps")
            middle = (low + high) // 2
            at = self._at(middle)
            if at is not None and at < wall:
                low = middle + 1
            else:
                high = middle
        return low
