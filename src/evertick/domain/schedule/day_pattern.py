"""The pattern behind cron and recurrences: matching days of a year, and on each its matching times."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from evertick.domain.schedule.instants import DAY_S, FIRST_YEAR, LAST_YEAR, first_day, from_day

Days = Callable[[int], Sequence[int]]
"""The days of a year that match, ascending."""

Times = Callable[[int], Sequence[int]]
"""The seconds of a day that match, ascending."""

GIVE_UP_YEARS = 50
"""A calendar that matches nothing for so long never will: 29 February on a given weekday returns within 40."""

ALL_YEARS = range(FIRST_YEAR, LAST_YEAR + 1)

KEPT_YEARS = 64
"""Years whose days are kept for each calendar. A scheduler at work asks about this year and the next."""


def compact(times: list[int]) -> Sequence[int]:
    """As a range if evenly spaced: the 86,400 seconds of a day then cost nothing to keep."""
    if len(times) > 1:
        evenly = range(times[0], times[-1] + 1, times[1] - times[0])
        if len(evenly) == len(times) and all(map(int.__eq__, evenly, times)):
            return evenly
    return tuple(times)


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
