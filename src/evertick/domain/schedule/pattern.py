"""Patterns of wall times: which readings of the clock on the wall a schedule names, before any zone is involved.

All walls are integer seconds. A pattern answers three questions without walking from one wall to the next: the
first at or after, the last before, and how many between.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol

from evertick.domain.schedule.instants import DAY_S, FIRST_YEAR, LAST_YEAR, first_day, from_day


class WallPattern(Protocol):
    """A set of wall times, ordered."""

    def next_from(self, wall: int) -> int | None:
        """Return the first wall at or after `wall`."""

    def prev_before(self, wall: int) -> int | None:
        """Return the last wall before `wall`."""

    def count(self, low: int, high: int) -> int:
        """Return the number of walls in [low, high)."""


Days = Callable[[int], Sequence[int]]
"""The days of a year that match, ascending."""

Times = Callable[[int], Sequence[int]]
"""The seconds of a day that match, ascending."""

GIVE_UP_YEARS = 50
"""A calendar that matches nothing for so long never will: 29 February on a given weekday returns within 40."""

ALL_YEARS = range(FIRST_YEAR, LAST_YEAR + 1)

KEPT_YEARS = 64
"""Years whose days are kept for each calendar. A scheduler at work asks about this year and the next."""


class DayPattern:
    """Matching days, and on each its matching times.

    `uniform` says that every day has the same times, which makes counting independent of the number of days.
    `years` are those that may have days at all; `give_up` of them without a match mean that none will come.
    """

    def __init__(
        self, days: Days, times: Times, *, uniform: bool, years: range = ALL_YEARS, give_up: int = GIVE_UP_YEARS
    ) -> None:
        self._days = days
        self._times = times
        self._uniform = uniform
        self._years = years
        self._give_up = give_up

    def next_from(self, wall: int) -> int | None:
        day, second = divmod(wall, DAY_S)
        year = from_day(day).year
        first = _index(self._years, year)
        for y in self._years[first : first + self._give_up + 1]:
            days = self._days(y)
            for i in range(bisect_left(days, day) if y == year else 0, len(days)):
                times = self._times(days[i])
                j = bisect_left(times, second) if days[i] == day else 0
                if j < len(times):
                    return days[i] * DAY_S + times[j]
                if self._uniform and not times:
                    return None  # nor does any other day
        return None

    def prev_before(self, wall: int) -> int | None:
        day, second = divmod(wall, DAY_S)
        year = from_day(day).year
        end = _index(self._years, year + 1)
        for y in reversed(self._years[max(0, end - self._give_up - 1) : end]):
            days = self._days(y)
            for i in range(bisect_left(days, day + 1) if y == year else len(days), 0, -1):
                times = self._times(days[i - 1])
                j = bisect_left(times, second) if days[i - 1] == day else len(times)
                if j > 0:
                    return days[i - 1] * DAY_S + times[j - 1]
                if self._uniform and not times:
                    return None
        return None

    def count(self, low: int, high: int) -> int:
        if low >= high:
            return 0
        (first, first_second), (last, last_second) = divmod(low, DAY_S), divmod(high, DAY_S)
        whole = self._count_days(first, last)
        return whole - self._count_on(first, first_second) + self._count_on(last, last_second)

    def _count_days(self, low: int, high: int) -> int:
        """How many walls the days [low, high) hold."""
        total = 0
        for year in self._years[_index(self._years, from_day(low).year) : _index(self._years, from_day(high).year + 1)]:
            days = self._days(year)
            i = bisect_left(days, low) if low > first_day(year) else 0
            j = bisect_left(days, high) if high < first_day(year + 1) else len(days)
            if i >= j:
                continue
            if self._uniform:
                total += (j - i) * len(self._times(days[i]))
            else:
                total += sum(len(self._times(day)) for day in days[i:j])
        return total

    def _count_on(self, day: int, second: int) -> int:
        """How many walls `day` holds before `second`."""
        days = self._days(from_day(day).year)
        i = bisect_left(days, day)
        return bisect_left(self._times(day), second) if i < len(days) and days[i] == day else 0


def _index(years: range, year: int) -> int:
    """The place in `years` of the first one that is `year` or later."""
    return min(max(0, -(-(year - years.start) // years.step)), len(years))


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

    def next_from(self, wall: int) -> int | None:
        found = self._inner.next_from(wall)
        return None if found is None or self._before(found) >= self._most else found

    def prev_before(self, wall: int) -> int | None:
        if self._before(wall) <= self._most:
            return self._inner.prev_before(wall)
        walls = range(self._first, wall)
        return walls[bisect_left(walls, self._most, key=lambda at: self._before(at + 1))]

    def count(self, low: int, high: int) -> int:
        return max(0, min(self._before(high), self._most) - min(self._before(low), self._most))

    def _before(self, wall: int) -> int:
        return self._inner.count(self._first, wall)


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
