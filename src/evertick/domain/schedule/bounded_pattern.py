"""Patterns made of a pattern: within bounds, the first so many, some walls added and some taken away."""

from bisect import bisect_left
from collections.abc import Sequence

from evertick.domain.schedule.instants import DAY_S, first_day, from_day
from evertick.domain.schedule.pattern import ListPattern, WallPattern


class WithinPattern:
    """The walls of `inner` from `first` to `last`, both included; None means no bound."""

    def __init__(self, inner: WallPattern, first: int | None, last: int | None) -> None:
        self._inner = inner
        self._first = first
        self._last = last

    def next_from(self, wall: int) -> int | None:
        found = self._inner.next_from(wall if self._first is None else max(wall, self._first))
        return None if found is None or (self._last is not None and found > self._last) else found

    def prev_before(self, wall: int) -> int | None:
        found = self._inner.prev_before(wall if self._last is None else min(wall, self._last + 1))
        return None if found is None or (self._first is not None and found < self._first) else found

    def count(self, low: int, high: int) -> int:
        low = low if self._first is None else max(low, self._first)
        high = high if self._last is None else min(high, self._last + 1)
        return self._inner.count(low, high)


class CountedPattern:
    """The first `most` walls of `inner`, none of which is before `first`."""

    def __init__(self, inner: WallPattern, first: int, most: int) -> None:
        self._inner = inner
        self._first = first
        self._most = most
        self._first_year = from_day(first // DAY_S).year
        # Walls before each year from the first on, as far as anyone asked. By number, so that two threads that find out
        # the same at once do not note it twice.
        self._before_year = {0: 0}

    def next_from(self, wall: int) -> int | None:
        found = self._inner.next_from(wall)
        return None if found is None or self._before(found) >= self._most else found

    def prev_before(self, wall: int) -> int | None:
        if self._before(wall) < self._most:
            return self._inner.prev_before(wall)
        walls = range(self._first, wall)
        return walls[bisect_left(walls, self._most, key=lambda at: self._before(at + 1))]

    def count(self, low: int, high: int) -> int:
        return max(0, min(self._before(high), self._most) - min(self._before(low), self._most))

    def _before(self, wall: int) -> int:
        """How many walls of `inner` are before `wall`; beyond `most` only that there are as many."""
        if wall <= self._first:
            return 0
        year = from_day(wall // DAY_S).year
        counts = self._before_year
        wanted, last = year - self._first_year, len(counts) - 1
        while last < wanted and counts[last] < self._most:
            counts[last + 1] = counts[last] + self._held(self._first_year + last)
            last += 1
        if last < wanted:
            return counts[last]
        return counts[wanted] + self._held(year, wall)

    def _held(self, year: int, end: int | None = None) -> int:
        """How many walls of the year are before `end`."""
        low, high = max(self._first, first_day(year) * DAY_S), first_day(year + 1) * DAY_S
        return self._inner.count(low, high if end is None else min(end, high))


class AmendedPattern:
    """The walls of `inner`, with some added and some taken away (RDATE and EXDATE)."""

    def __init__(self, inner: WallPattern, added: Sequence[int], removed: Sequence[int]) -> None:
        self._inner = inner
        self._removed = frozenset(removed)
        self._added = ListPattern([w for w in added if w not in self._removed and inner.next_from(w) != w])
        self._taken = ListPattern([w for w in self._removed if inner.next_from(w) == w])

    def next_from(self, wall: int) -> int | None:
        found = self._inner.next_from(wall)
        while found in self._removed:
            found = self._inner.next_from(found + 1)
        extra = self._added.next_from(wall)
        return min((w for w in (found, extra) if w is not None), default=None)

    def prev_before(self, wall: int) -> int | None:
        found = self._inner.prev_before(wall)
        while found in self._removed:
            found = self._inner.prev_before(found)
        extra = self._added.prev_before(wall)
        return max((w for w in (found, extra) if w is not None), default=None)

    def count(self, low: int, high: int) -> int:
        return self._inner.count(low, high) + self._added.count(low, high) - self._taken.count(low, high)
