"""Patterns of wall times: which readings of the clock on the wall a schedule names, before any zone is involved.

All walls are integer seconds. A pattern answers three questions without walking from one wall to the next: the
first at or after, the last before, and how many between. Some patterns are made of another one: within bounds, the
first so many of it, or with some walls added and some taken away.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from evertick.domain.schedule.budget import kept_work, note_paid, spend, spend_up_to
from evertick.domain.schedule.instants import DAY_S, first_day, from_day

LOOK_UP_STEPS = 8
"""What it costs to ask a pattern about one wall; a loop over walls that are listed pays it for each."""
LONGEST_REMOVED_S = 50 * 366 * DAY_S
"""A schedule has ended if all its times in such a period are removed, or if none in it matches."""
PASSING_DATES = "dates that are listed beside the rule"
_PASSING_COUNTED = "years whose ticks COUNT has to count"


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
        return self._inner.count(*self._within(low, high))

    def walls(self, low: int, high: int) -> Sequence[int]:
        return self._inner.walls(*self._within(low, high))

    def _within(self, low: int, high: int) -> tuple[int, int]:
        low = low if self._first is None else max(low, self._first)
        return low, high if self._last is None else min(high, self._last + 1)


class _Before(NamedTuple):
    """Walls before a year, and the steps that it takes to count them."""

    walls: int
    steps: int


class CountedPattern:
    """The first `most` walls of `inner`, none of which is before `first`."""

    def __init__(self, inner: WallPattern, first: int, most: int) -> None:
        self._inner = inner
        self._first = first
        self._most = most
        self._first_year = from_day(first // DAY_S).year
        # For each year from the first on, as far as was asked. By number, so that two threads that find out
        # the same at once do not note it twice.
        self._before_year = {0: _Before(0, 0)}

    def next_from(self, wall: int) -> int | None:
        found = self._inner.next_from(wall)
        return None if found is None or self._before(found) >= self._most else found

    def prev_before(self, wall: int) -> int | None:
        if self._before(wall) < self._most:
            return self._inner.prev_before(wall)
        return self._last_in(self._years_to(from_day(wall // DAY_S).year - self._first_year))

    def count(self, low: int, high: int) -> int:
        return max(0, min(self._before(high), self._most) - min(self._before(low), self._most))

    def walls(self, low: int, high: int) -> Sequence[int]:
        return self._inner.walls(max(low, self._first), high)[: max(0, self._most - self._before(low))]

    def _last_in(self, number: int) -> int:
        """The last wall of all, of which the year of that number or the one before is known to hold it."""
        before = self._before_year[number].walls
        if before >= self._most:
            number -= 1
            before = self._before_year[number].walls
        year, wanted = self._first_year + number, self._most - before
        low, high = max(self._first, first_day(year) * DAY_S), first_day(year + 1) * DAY_S
        # Each look counts only half of what is left, so that all of them together count about a year.
        while high - low > 1:
            middle = (low + high) // 2
            held = self._inner.count(low, middle)
            if held >= wanted:
                high = middle
            else:
                low, wanted = middle, wanted - held
        return low

    def _before(self, wall: int) -> int:
        """How many walls of `inner` are before `wall`; beyond `most` only that there are as many."""
        if wall <= self._first:
            return 0
        year = from_day(wall // DAY_S).year
        last = self._years_to(year - self._first_year)
        before = self._before_year[last].walls
        return before + self._held(year, wall) if last == year - self._first_year else before

    def _years_to(self, wanted: int) -> int:
        """Count the years before the wanted one, until there are enough; return how many that took."""
        counts = self._before_year
        last = min(wanted, len(counts) - 1)
        spend_up_to(counts[last].steps, self, _PASSING_COUNTED)  # the budget must not depend on what is known already
        while last < wanted and counts[last].walls < self._most:
            with kept_work(_PASSING_COUNTED) as steps:
                walls = counts[last].walls + self._held(self._first_year + last)
                counts[last + 1] = _Before(walls, counts[last].steps + steps())
            last += 1
            note_paid(counts[last].steps, self)
        return last

    def _held(self, year: int, end: int | None = None) -> int:
        """How many walls of the year are before `end`."""
        low, high = max(self._first, first_day(year) * DAY_S), first_day(year + 1) * DAY_S
        return self._inner.count(low, high if end is None else min(end, high))


class AmendedPattern:
    """The walls of `inner`, with some added and some taken away (RDATE and EXDATE)."""

    def __init__(self, inner: WallPattern, added: Sequence[int], removed: Sequence[int]) -> None:
        self._inner = inner
        self._removed = frozenset(removed)
        self._added = ListPattern([w for w in added if w not in self._removed and not is_in(inner, w)])
        self._taken = ListPattern([w for w in self._removed if is_in(inner, w)])

    def next_from(self, wall: int) -> int | None:
        found = self._inner.next_from(wall)
        while found in self._removed:
            spend(LOOK_UP_STEPS, PASSING_DATES)
            found = self._inner.next_from(found + 1) if found - wall <= LONGEST_REMOVED_S else None
        extra = self._added.next_from(wall)
        return min((w for w in (found, extra) if w is not None), default=None)

    def prev_before(self, wall: int) -> int | None:
        found = self._inner.prev_before(wall)
        while found in self._removed:
            spend(LOOK_UP_STEPS, PASSING_DATES)
            found = self._inner.prev_before(found) if wall - found <= LONGEST_REMOVED_S else None
        extra = self._added.prev_before(wall)
        return max((w for w in (found, extra) if w is not None), default=None)

    def count(self, low: int, high: int) -> int:
        return self._inner.count(low, high) + self._added.count(low, high) - self._taken.count(low, high)

    def walls(self, low: int, high: int) -> Sequence[int]:
        return sorted({*self._inner.walls(low, high)} - self._removed | {*self._added.walls(low, high)})
