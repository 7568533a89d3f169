"""BYSETPOS: which days and times of a period a recurrence chooses by their position."""

import functools
import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from evertick.domain.schedule.budget import spend_up_to
from evertick.domain.schedule.instants import DAY_S, LIKE_YEARS, first_day, from_day
from evertick.domain.schedule.patterns.days import Days
from evertick.domain.schedule.rrule.days import KEPT_YEARS, PASSING_PERIODS, period_number
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.rrule.text import PERIOD_S, Freq
from evertick.domain.schedule.rrule.times import choose


def _most_days(rule: RRule) -> int:
    """No period has more days than this: a position beyond it need not be looked for."""
    days = PERIOD_S[rule.freq] // DAY_S
    weekdays = {weekday for _, weekday in rule.byday} or set(range(7))
    return min(days, -(-days // 7) * len(weekdays))


class _Chosen(NamedTuple):
    """What BYSETPOS leaves of a year: the days, and the times of each."""

    days: Sequence[int]
    times: dict[int, Sequence[int]]


class ChosenPositions:
    """BYSETPOS over years, months or weeks: of all days and times of a period, some by their position."""

    uniform = False
    day_steps = 1

    def __init__(self, rule: RRule, days: Days, times: Sequence[int]) -> None:
        number_of = period_number(rule)
        assert number_of is not None
        self._number_of = number_of
        most = _most_days(rule) * len(times)
        self._positions = [position for position in rule.bysetpos if abs(position) <= most]
        self._all_days = days
        self._all_times = times
        # Without an INTERVAL over months or weeks, years with the same calendar have the same positions.
        self._repeats = rule.interval == 1 or rule.freq is Freq.YEARLY
        self._year = functools.lru_cache(maxsize=None if self._repeats else KEPT_YEARS)(self._choose)
        self._periods = 1 + PERIOD_S[Freq.YEARLY] // PERIOD_S[rule.freq]

    def days(self, year: int) -> Sequence[int]:
        named = len(self._all_days(year)) if self._positions else 0
        if not named:
            return ()
        if self._repeats:
            return self._year(LIKE_YEARS[year % 400]).days
        for beside in (year - 1, year + 1):  # paid for here, since the choice below is kept
            self._all_days(beside)
        looks = named + min(named, self._periods) * len(self._positions)
        spend_up_to(1 + looks // 2, (self, year), PASSING_PERIODS)
        return self._year(year).days

    def of(self, day: int) -> Sequence[int]:
        year = from_day(day).year
        found = self._year(LIKE_YEARS[year % 400] if self._repeats else year)
        return found.times.get(day - first_day(year), ())

    def number(self, day: int) -> int:
        return len(self.of(day))

    def _picked(self, days: list[int]) -> Iterator[int]:
        """The walls of one period, by arithmetic: a year of seconds has too many to list them."""
        per_day = len(self._all_times)
        for place in choose(range(len(days) * per_day), self._positions):
            yield days[place // per_day] * DAY_S + self._all_times[place % per_day]

    def _choose(self, year: int) -> _Chosen:
        # A week may begin in the year before or end in the year after.
        around = [*self._absolute(year - 1)[-7:], *self._absolute(year), *self._absolute(year + 1)[:7]]
        walls: list[int] = []
        for _, days in itertools.groupby(around, key=self._number_of):
            walls += self._picked(list(days))
        start, end = first_day(year) * DAY_S, first_day(year + 1) * DAY_S
        inside = (divmod(wall - start, DAY_S) for wall in walls if start <= wall < end)
        times: dict[int, Sequence[int]] = {
            day: array("i", (second for _, second in of_day))
            for day, of_day in itertools.groupby(inside, lambda w: w[0])
        }
        return _Chosen(array("h", times), times)

    def _absolute(self, year: int) -> list[int]:
        start = first_day(year)
        return [start + day for day in self._all_days(year)]
