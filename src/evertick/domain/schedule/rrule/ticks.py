"""RFC 5545 recurrences as days and times of day.

dateutil walks a rule from its DTSTART, which a rule by the minute with an old DTSTART cannot afford. So it is asked
only which days of one year a rule's day parts name; INTERVAL becomes a remainder of the period's number, the times of
a day follow from the time parts, and COUNT is compared with how many walls were before. Then no answer takes a walk
from DTSTART.
"""

import functools
import itertools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.budget import spend_up_to
from evertick.domain.schedule.instants import DAY_S, LIKE_YEARS, SECOND_US, first_day, from_day
from evertick.domain.schedule.patterns.days import GIVE_UP_YEARS, DayPattern, Days, SameTimes, Times
from evertick.domain.schedule.patterns.wall import (
    AmendedPattern,
    CountedPattern,
    ListPattern,
    StepPattern,
    WallPattern,
    WithinPattern,
    is_in,
)
from evertick.domain.schedule.rrule.days import KEPT_YEARS, PASSING_PERIODS, aligned_days, aligned_years, period_number
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.rrule.text import PERIOD_S, Freq
from evertick.domain.schedule.rrule.times import choose, offsets, same_times, stepped_times, steps_freely
from evertick.domain.schedule.ticks import ExceptTicks, JoinedTicks, ListTicks, Ticks, WithinTicks
from evertick.domain.schedule.zone import Zone
from evertick.domain.schedule.zoned import ZonedTicks

MAX_YEARS = 1000
"""How far a rule whose periods are decades long is looked for at most."""


def ticks_of(rule: RRule, zone: Zone, gap: DstGap, overlap: DstOverlap) -> Ticks:
    """The rule's own ticks up to UNTIL, without the excluded ones; then the added dates, which UNTIL does not end."""
    own, excluded = pattern_of(replace(rule, rdates=())), frozenset(rule.exdates)
    ticks: Ticks = ZonedTicks(own, zone, gap, overlap, elapsed=rule.elapsed)
    if rule.until_us is not None:
        ticks = WithinTicks(ticks, None, rule.until_us)
    if rule.rdates:
        # Each is a time on the clock, also where the rule itself follows elapsed time. What the rule surely has is
        # left out, so that a jump does not lose it twice.
        unsure = rule.elapsed or rule.until_us is not None
        new = (wall for wall in rule.rdates if unsure or not is_in(own, wall))
        added = [wall for wall in new if wall not in excluded]
        ticks = JoinedTicks(ticks, ZonedTicks(ListPattern(added), zone, gap, overlap))
    if rule.rdates_us:
        # A date is excluded however it was written.
        instants = [at for at in rule.rdates_us if zone.wall_at(at // SECOND_US) not in excluded]
        ticks = JoinedTicks(ticks, ListTicks(instants))
    return ExceptTicks(ticks, rule.exdates_us) if rule.exdates_us else ticks


def pattern_of(rule: RRule) -> WallPattern:
    plain = _arithmetic(rule) or _day_pattern(rule)
    inner: WallPattern = WithinPattern(plain, rule.first, rule.until_wall)
    if rule.count is not None and not rule.is_unanchored and not isinstance(plain, StepPattern):
        assert rule.first is not None
        inner = CountedPattern(inner, rule.first, rule.count)
    return AmendedPattern(inner, rule.rdates, rule.exdates) if rule.rdates or rule.exdates else inner


def _arithmetic(rule: RRule) -> StepPattern | None:
    """A rule that steps freely and not by whole parts of a day: every 7 hours needs no days, only numbers."""
    within = offsets(rule) if rule.elapsed and rule.interval > 1 and steps_freely(rule) else []
    unit = PERIOD_S[rule.freq]
    step = rule.interval * unit
    if len(within) != 1 or DAY_S % step == 0:
        return None
    start = rule.base // unit * unit + within[0]
    if rule.first is not None and start < rule.first:
        start += -(-(rule.first - start) // step) * step
    total = None if rule.is_unanchored else rule.count
    return StepPattern(lambda number: start + number * step, range(step, step + 1), total)


def _day_pattern(rule: RRule) -> DayPattern:
    days = aligned_days(rule)
    times: Times
    if rule.elapsed:
        times = stepped_times(rule)
    else:
        same = same_times(rule)
        times = SameTimes(same)
        if rule.bysetpos and rule.freq < Freq.DAILY:
            times = ChosenPositions(rule, days, same)
            days = times.days
    # A period of many years steps over most of them, so as many more must pass before none will come.
    period_years = -(-rule.interval * PERIOD_S[rule.freq] // PERIOD_S[Freq.YEARLY]) if rule.freq > Freq.YEARLY else 1
    give_up = min(GIVE_UP_YEARS * period_years, MAX_YEARS)
    return DayPattern(days, times, years=aligned_years(rule), give_up=give_up)


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
