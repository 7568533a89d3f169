"""The pattern behind cron and recurrences: matching days of a year, and on each its matching times."""

from bisect import bisect_left
from calendar import isleap
from collections.abc import Callable, Sequence

from evertick.domain.schedule.budget import spend
from evertick.domain.schedule.instants import DAY_S, FIRST_YEAR, LAST_YEAR, first_day, from_day
from evertick.domain.schedule.patterns.times import Times, place

Days = Callable[[int], Sequence[int]]
"""The days of a year that match, ascending; its first day is 0."""

GIVE_UP_YEARS = 50
"""A calendar that matches nothing for so long never will: 29 February on a given weekday returns within 40."""

ALL_YEARS = range(FIRST_YEAR, LAST_YEAR + 1)

_PASSING_YEARS = "years without a match"
_PASSING_DAYS = "days on which no step meets the rule's hours, minutes and seconds"


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
