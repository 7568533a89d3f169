"""The pattern behind cron and recurrences: matching days of a year, and on each its matching times.

The seconds of a day are kept small: 86,400 of them are a range or a product, not a list.
"""

import itertools
from array import array
from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Callable, Sequence
from typing import Protocol, overload

from evertick.domain.schedule.budget import spend
from evertick.domain.schedule.instants import DAY_S, FIRST_YEAR, LAST_YEAR, first_day, from_day

LISTED = 96
"""Up to this many times are listed, which is the fastest to search; more are kept as a product."""
Days = Callable[[int], Sequence[int]]
"""The days of a year that match, ascending; its first day is 0."""
GIVE_UP_YEARS = 50
"""A calendar that matches nothing for so long never will: 29 February on a given weekday returns within 40."""
ALL_YEARS = range(FIRST_YEAR, LAST_YEAR + 1)
_PASSING_YEARS = "years without a match"
_PASSING_DAYS = "days on which no step meets the rule's hours, minutes and seconds"


class Times(Protocol):
    """The times of each day. `uniform`: every day has the same. `day_steps`: what looking at one day costs."""

    uniform: bool
    day_steps: int

    def of(self, day: int) -> Sequence[int]:
        """Return the seconds of the day that match, ascending."""

    def number(self, day: int) -> int:
        """Return how many there are."""


class SameTimes:
    """Every day has the same times."""

    uniform = True
    day_steps = 1

    def __init__(self, times: Sequence[int]) -> None:
        self._times = times

    def of(self, day: int) -> Sequence[int]:  # noqa: ARG002 - the protocol's shape
        return self._times

    def number(self, day: int) -> int:  # noqa: ARG002
        return len(self._times)


class ProductTimes(Sequence[int]):
    """Each of `outer` plus each of `inner`, whose span is shorter than any distance in `outer`."""

    __slots__ = ("inner", "outer")

    def __init__(self, outer: Sequence[int], inner: Sequence[int]) -> None:
        self.outer = outer
        self.inner = inner

    def __len__(self) -> int:
        return len(self.outer) * len(self.inner)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        i, j = divmod(range(len(self))[place], len(self.inner))
        return self.outer[i] + self.inner[j]

    def place_of(self, second: int) -> int:
        i = bisect_right(self.outer, second) - 1
        return i * len(self.inner) + place(self.inner, second - self.outer[i]) if i >= 0 else 0


def place(times: Sequence[int], second: int) -> int:
    """How many of the times are before `second`."""
    return times.place_of(second) if type(times) is ProductTimes else bisect_left(times, second)


def distances(times: Sequence[int]) -> set[int]:
    """The distances between neighbours."""
    if isinstance(times, ProductTimes):
        span = times.inner[-1] - times.inner[0]
        return distances(times.inner) | {distance - span for distance in distances(times.outer)}
    if isinstance(times, range):
        return {times.step} if len(times) > 1 else set()
    return {later - earlier for earlier, later in itertools.pairwise(times)}


def spread(outer: Sequence[int], inner: Sequence[int]) -> Sequence[int]:
    """Each of `outer` plus each of `inner`, in the smallest form: a range if they are evenly spaced."""
    if not outer or not inner:
        return ()
    if not inner[-1] and isinstance(outer, range | ProductTimes):
        return outer
    times = ProductTimes(outer, inner)
    apart = distances(times)
    if len(apart) == 1:
        return range(times[0], times[-1] + 1, apart.pop())
    return times if len(times) > LISTED else array("i", times)


def times_within(hours: Sequence[int], minutes: Sequence[int], seconds: Sequence[int]) -> Sequence[int]:
    """The times of a day with one of these hours, minutes and seconds."""
    return spread([hour * 3600 for hour in hours], spread([minute * 60 for minute in minutes], seconds))


def mask(unit: int, hours: Sequence[int], minutes: Sequence[int], seconds: Sequence[int]) -> bytes:
    """A byte for each hour, minute or second of a day, as `unit` says: 1 where all limits hold; empty means all."""
    second = bytes(not seconds or number in seconds for number in range(60 if unit < 60 else 1))
    minute = [not minutes or number in minutes for number in range(60 if unit < 3600 else 1)]
    hour = b"".join(second if holds else bytes(len(second)) for holds in minute)
    return b"".join(hour if not hours or number in hours else bytes(len(hour)) for number in range(24))


def every_day_of(year: int) -> range:
    return range(366 if isleap(year) else 365)


class DayPattern:
    """Matching days, and on each its matching times.

    `years` are those that may have days at all; `give_up` of them without a match mean that none will come.
    """

    def __init__(self, days: Days, times: Times, *, years: range = ALL_YEARS, give_up: int = GIVE_UP_YEARS) -> None:
        self._days = days
        self._times = times
        self._years = years if not times.uniform or times.number(0) else range(0)
        self._give_up = give_up

    def next_from(self, wall: int) -> int | None:
        day, second = divmod(wall, DAY_S)
        year = from_day(day).year
        first = _index(self._years, year)
        for y in self._years[first : first + self._give_up + 1]:
            start, days = first_day(y), self._days(y)
            i = bisect_left(days, day - start) if y == year else 0
            while i < len(days):
                at = start + days[i]
                times = self._times.of(at)
                j = place(times, second) if at == day else 0
                if j < len(times):
                    return at * DAY_S + times[j]
                i = self._next_with_times(start, days, i + 1)
            spend(1, _PASSING_YEARS)
        return None

    def prev_before(self, wall: int) -> int | None:
        day, second = divmod(wall, DAY_S)
        year = from_day(day).year
        end = _index(self._years, year + 1)
        for y in reversed(self._years[max(0, end - self._give_up - 1) : end]):
            start, days = first_day(y), self._days(y)
            i = bisect_left(days, day + 1 - start) if y == year else len(days)
            while i > 0:
                at = start + days[i - 1]
                times = self._times.of(at)
                j = place(times, second) if at == day else len(times)
                if j > 0:
                    return at * DAY_S + times[j - 1]
                i = self._last_with_times(start, days, i - 1)
            spend(1, _PASSING_YEARS)
        return None

    def count(self, low: int, high: int) -> int:
        if low >= high:
            return 0
        (first, first_second), (last, last_second) = divmod(low, DAY_S), divmod(high, DAY_S)
        whole = self._count_days(first, last) if first < last else 0
        return whole - self._count_on(first, first_second) + self._count_on(last, last_second)

    def walls(self, low: int, high: int) -> Sequence[int]:
        found: list[int] = []
        for day in range(low // DAY_S, -(-high // DAY_S)):
            i, j = self._count_on(day, low - day * DAY_S), self._count_on(day, high - day * DAY_S)
            found += [day * DAY_S + second for second in self._times.of(day)[i:j]] if i < j else ()
        return found

    def _next_with_times(self, start: int, days: Sequence[int], i: int) -> int:
        """The place of the first day from `i` on that has any times."""
        if self._times.uniform:
            return i
        number, begun = self._times.number, i
        while i < len(days) and not number(start + days[i]):
            i += 1
        self._pass_days(i - begun)
        return i

    def _last_with_times(self, start: int, days: Sequence[int], i: int) -> int:
        """The same backwards: one more than the place of the last day before `i`."""
        if self._times.uniform:
            return i
        number, begun = self._times.number, i
        while i > 0 and not number(start + days[i - 1]):
            i -= 1
        self._pass_days(begun - i)
        return i

    def _pass_days(self, days: int) -> None:
        spend((days * self._times.day_steps + 1) // 2, _PASSING_DAYS)

    def _count_days(self, low: int, high: int) -> int:
        """How many walls the days [low, high) hold."""
        total = 0
        first, end = from_day(low).year, from_day(high - 1).year + 1
        for year in self._years[_index(self._years, first) : _index(self._years, end)]:
            start, days = first_day(year), self._days(year)
            i, j = bisect_left(days, low - start), bisect_left(days, high - start)
            if self._times.uniform:
                total += (j - i) * self._times.number(0)
            else:
                total += sum(self._times.number(start + day) for day in days[i:j])
                self._pass_days(j - i)
            spend(1, _PASSING_YEARS)
        return total

    def _count_on(self, day: int, second: int) -> int:
        """How many walls `day` holds before `second`."""
        year = from_day(day).year
        if second <= 0 or year not in self._years:
            return 0
        days, number = self._days(year), day - first_day(year)
        i = bisect_left(days, number)
        return place(self._times.of(day), second) if i < len(days) and days[i] == number else 0


def _index(years: range, year: int) -> int:
    """The place in `years` of the first one that is `year` or later."""
    return min(max(0, -(-(year - years.start) // years.step)), len(years))
