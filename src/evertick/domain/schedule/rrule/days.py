"""Which days of a year a recurrence names: dateutil matches them, INTERVAL chooses among them."""

import functools
import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import date, datetime

from dateutil import rrule as dateutil_rrule

from evertick.domain.schedule.budget import spend, spend_up_to
from evertick.domain.schedule.instants import DAY_S, FIRST_YEAR, LAST_YEAR, LIKE_YEARS, first_day, from_day, to_day
from evertick.domain.schedule.patterns.days import ALL_YEARS, Days, every_day_of
from evertick.domain.schedule.rrule.spec import ALL_WEEKDAYS, RRule
from evertick.domain.schedule.rrule.text import PERIOD_S, Freq

KEPT_YEARS = 4
"""Years whose days are kept for each rule with an INTERVAL. A scheduler at work asks about this year and the next."""

_DAYS_PER_STEP = 8
"""Days of a year that are compared in one step of the budget."""
_LISTED_DAY_STEPS, _FEW_LISTED_DAYS = 42, 20
_PERIOD_STEPS = 3
"""What it costs to look at one week or month."""
PASSING_PERIODS = "years of which INTERVAL and BYSETPOS choose the days"


def aligned_years(rule: RRule) -> range:
    """The years that INTERVAL does not step over as a whole."""
    if rule.freq is not Freq.YEARLY:
        return ALL_YEARS
    base = from_day(rule.base // DAY_S).year
    first = FIRST_YEAR + (base - FIRST_YEAR) % rule.interval
    return range(first, LAST_YEAR + 1, rule.interval)


def aligned_days(rule: RRule) -> Days:
    """The days of a year that the day parts name and whose period INTERVAL does not step over."""
    months = rule.bymonth or _implied_months(rule)
    if rule.freq is Freq.MONTHLY:
        months = _visited_months(rule, months)
        if not months:
            return lambda _: ()
    # dateutil takes long over a long BYDAY, in each of the calendars that a year can have.
    spend(_LISTED_DAY_STEPS * max(0, len(rule.byday) - _FEW_LISTED_DAYS), "the weekdays that BYDAY lists")
    find = _days_of_year(rule.wkst, months, *_day_parts(rule))
    number_of = period_number(rule)
    if number_of is None:
        return _stepped_on_days(rule, find)
    if rule.interval == 1 or rule.freq is Freq.YEARLY:
        return find
    if rule.freq is Freq.DAILY:
        return _daily_days(rule, find)
    return _days_of_periods(rule, find, number_of)


def _daily_days(rule: RRule, find: Days) -> Days:
    """Every so many days, those that the day parts name too."""
    base = rule.base // DAY_S

    def steps(year: int) -> range:
        return range((base - first_day(year)) % rule.interval, len(every_day_of(year)), rule.interval)

    return steps if find is every_day_of else _common_days(steps, find)


def _days_of_periods(rule: RRule, find: Days, number_of: Callable[[int], int]) -> Days:
    """The days of every so many weeks or months."""
    base, start_of = number_of(rule.base // DAY_S), _period_start(rule)

    def periods(year: int) -> range:
        first, end = number_of(first_day(year)), number_of(first_day(year + 1) - 1) + 1
        return range(first + (base - first) % rule.interval, end, rule.interval)

    @functools.lru_cache(maxsize=KEPT_YEARS)
    def chosen(year: int) -> Sequence[int]:
        start, days, found = first_day(year), find(year), array("h")
        for number in periods(year):
            i, j = (bisect_left(days, start_of(edge) - start) for edge in (number, number + 1))
            found.extend(days[i:j])
        return found

    def aligned(year: int) -> Sequence[int]:
        counted = len(periods(year))
        if not counted:
            return ()
        spend_up_to(1 + counted * _PERIOD_STEPS, (chosen, year), PASSING_PERIODS)
        return chosen(year)

    return aligned


def _stepped_on_days(rule: RRule, find: Days) -> Days:
    """The days on which a rule by the hour, minute or second takes a step: all, unless a step is longer than a day."""
    unit = PERIOD_S[rule.freq]
    step, base = rule.interval * unit, rule.base // unit * unit
    if step <= DAY_S:
        return find

    def steps(year: int) -> Sequence[int]:
        start, end = first_day(year) * DAY_S, first_day(year + 1) * DAY_S
        return [(wall - start) // DAY_S for wall in range(start + (base - start) % step, end, step)]

    return _common_days(steps, find)


def _common_days(steps: Days, find: Days) -> Days:
    """The days of `steps`, which differ from year to year, that `find` has too."""

    @functools.lru_cache(maxsize=KEPT_YEARS)
    def chosen(year: int) -> Sequence[int]:
        days = frozenset(find(year))
        return array("h", (day for day in steps(year) if day in days))

    def common(year: int) -> Sequence[int]:
        named = len(find(year))
        taken = len(steps(year)) if named else 0
        if not taken:
            return ()
        spend_up_to(1 + (taken + named) // _DAYS_PER_STEP, (chosen, year), PASSING_PERIODS)
        return chosen(year)

    return common


def _implied_months(rule: RRule) -> tuple[int, ...]:
    # Within a month, 1MO is the month's first Monday: naming all months tells dateutil so in a yearly rule.
    return tuple(range(1, 13)) if rule.freq is Freq.MONTHLY else ()


def _visited_months(rule: RRule, months: tuple[int, ...]) -> tuple[int, ...]:
    """The months that INTERVAL ever reaches: a step of 18 months reaches only two of the twelve."""
    base = from_day(rule.base // DAY_S).month
    return tuple(month for month in months if (month - base) % math.gcd(rule.interval, 12) == 0)


def _day_parts(
    rule: RRule,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
    return rule.byweekno, rule.byyearday, rule.bymonthday, rule.byday


def period_number(rule: RRule) -> Callable[[int], int] | None:
    """Numbers the years, months, weeks or days of a rule; None if its periods are shorter."""
    match rule.freq:
        case Freq.YEARLY:
            return lambda day: from_day(day).year
        case Freq.MONTHLY:
            return lambda day: from_day(day).year * 12 + from_day(day).month
        case Freq.WEEKLY:
            return lambda day: (day + 3 - rule.wkst) // 7  # day 0, 1970-01-01, was a Thursday
        case Freq.DAILY:
            return lambda day: day
        case _:
            return None


def _period_start(rule: RRule) -> Callable[[int], int]:
    """The first day of the week or month with a number."""
    if rule.freq is Freq.WEEKLY:
        return lambda number: number * 7 - 3 + rule.wkst
    return lambda number: to_day(date((number - 1) // 12, (number - 1) % 12 + 1, 1))


# dateutil ends a search only when it finds something past UNTIL; for a year without any such day that is the year
# 9999. An interval beyond all years makes it look at one year alone.
_BEYOND_ALL_YEARS = 10_000


@functools.lru_cache(maxsize=1024)
def _days_of_year(  # noqa: PLR0913, PLR0917 - the day parts are the cache's key
    wkst: int,
    bymonth: tuple[int, ...],
    byweekno: tuple[int, ...],
    byyearday: tuple[int, ...],
    bymonthday: tuple[int, ...],
    byday: tuple[tuple[int, int], ...],
) -> Days:
    """A year's days by dateutil. All rules reduce to a yearly one here, since the period is taken care of apart."""
    plain, counted = (tuple(day for day in byday if bool(day[0]) is is_counted) for is_counted in (False, True))
    if plain and counted:
        # dateutil wants days that are both; the standard, days that are either.
        parts = (wkst, bymonth, byweekno, byyearday, bymonthday)
        return _either(_days_of_year(*parts, plain), _days_of_year(*parts, counted))
    weekdays = [dateutil_rrule.weekday(day, nth or None) for nth, day in byday]
    if byday == ALL_WEEKDAYS and not (bymonth or byweekno or byyearday or bymonthday):
        return every_day_of

    @functools.cache  # a few years stand for all
    def find(year: int) -> Sequence[int]:
        found = dateutil_rrule.rrule(
            dateutil_rrule.YEARLY,
            dtstart=datetime(year, 1, 1),  # noqa: DTZ001 - wall times
            interval=_BEYOND_ALL_YEARS,
            wkst=wkst,
            bymonth=bymonth or None,
            byweekno=byweekno or None,
            byyearday=byyearday or None,
            bymonthday=bymonthday or None,
            byweekday=weekdays or None,
            byhour=0,
            byminute=0,
            bysecond=0,
        )
        return array("h", (to_day(at.date()) - first_day(year) for at in found))

    return lambda year: find(LIKE_YEARS[year % 400])


def _either(one: Days, other: Days) -> Days:
    either = functools.cache(lambda year: array("h", sorted({*one(year), *other(year)})))
    return lambda year: either(LIKE_YEARS[year % 400])
