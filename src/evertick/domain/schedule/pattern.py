"""Patterns of wall times: which readings of the clock on the wall a schedule names, before any zone is involved.

All walls are integer seconds. A pattern answers three questions without walking from one wall to the next: the
first at or after, the last before, and how many between.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol


class WallPattern(Protocol):
    """A set of wall times, ordered."""

    def next_from(self, wall: int) -> int | None:
        """Return the first wall at or after `wall`."""

    def prev_before(self, wall: int) -> int | None:
        """Return the last wall before `wall`."""

    def count(self, low: int, high: int) -> int:
        """Return the number of walls in [low, high)."""


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


class StepPattern:
    """Walls computed by number: `wall_of(0) < wall_of(1) < …`, `total` of them or without end.

    `stride` is a rough distance between neighbours, from which the search by number starts.
    """

    def __init__(self, wall_of: Callable[[int], int | None], stride: int, total: int | None) -> None:
        self._wall_of = wall_of
        self._stride = stride
        self._total = total

    def next_from(self, wall: int) -> int | None:
        return self._at(self._rank(wall))

    def prev_before(self, wall: int) -> int | None:
        rank = self._rank(wall)
        return self._at(rank - 1) if rank else None

    def count(self, low: int, high: int) -> int:
        return max(0, self._rank(high) - self._rank(low))

    def _at(self, number: int) -> int | None:
        return self._wall_of(number) if self._total is None or number < self._total else None

    def _rank(self, wall: int) -> int:
        """How many walls are before `wall`: a bisection that starts around the rough guess."""
        start = self._at(0)
        if start is None or wall <= start:
            return 0
        low, high = 0, (wall - start) // self._stride * 2 + 2
        while low < high:
            middle = (low + high) // 2
            at = self._at(middle)
            if at is not None and at < wall:
                low = middle + 1
            else:
                high = middle
        return low
