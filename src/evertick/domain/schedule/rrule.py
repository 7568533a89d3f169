"""RFC 5545 recurrences as days and times of day.

dateutil walks a rule from its DTSTART, which a rule by the minute with an old DTSTART cannot afford. So it is asked
only which days of one year a rule's day parts name; INTERVAL becomes a remainder of the period's number, the times of
a day follow from the time parts, and COUNT becomes the wall time of the last tick. Then nothing depends on how far
the search is from DTSTART.
"""

import functools
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from dateutil import rrule as dateutil_rrule

from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.cron import compact
from evertick.domain.schedule.instants import DAY_S, LAST_YEAR, first_day, from_day, from_wall, to_day
from evertick.domain.schedule.pattern import (
    GIVE_UP_YEARS,
    AmendedPattern,
    DayPattern,
    Days,
    Times,
    WallPattern,
    WithinPattern,
)
from evertick.domain.schedule.rrule_text import PERIOD_S, Freq, Parts
from evertick.domain.schedule.ticks import Ticks, WithinTicks
from evertick.domain.schedule.zone import Zone
from evertick.domain.schedule.zoned import ZonedTicks

COUNT_YEARS = 200
"""A COUNT that is not used up after so long is cut there: finding its last tick must not take seconds."""

ALL_WEEKDAYS = tuple((0, day) for day in range(7))


@dataclass(frozen=True, slots=True)
class RRule:
    """A recurrence with all that DTSTART implies made explicit, so that DTSTART matters only where it must.

    `base` is the wall from which periods are numbered; `first` bounds the rule from below.
    """

    freq: Freq
    interval: int
    wkst: int
    bymonth: tuple[int, ...]
    byweekno: tuple[int, ...]
    byyearday: tuple[int, ...]
    bymonthday: tuple[int, ...]
    byday: tuple[tuple[int, int], ...]
    byhour: tuple[int, ...]
    byminute: tuple[int, ...]
    bysecond: tuple[int, ...]
    bysetpos: tuple[int, ...]
    base: int
    first: int | None
    count: int | None
    until_wall: int | None
    until_us: int | None
    rdates: tuple[int, ...]
    exdates: tuple[int, ...]

    @property
    def elapsed(self) -> bool:
        """Whether it steps by the hour or finer, and so follows elapsed time as `*` does in cron."""
        return self.freq > Freq.DAILY

    def pattern(self) -> WallPattern:
        inner: WallPattern = WithinPattern(_day_pattern(self), self.first, self.until_wall)
        if self.count is not None:
            inner = WithinPattern(inner, self.first, _nth_wall(inner, self.base, self.count))
        return AmendedPattern(inner, self.rdates, self.exdates) if self.rdates or self.exdates else inner

    def ticks(self, zone: Zone, gap: DstGap, overlap: DstOverlap) -> ZonedTicks | Ticks:
        zoned = ZonedTicks(self.pattern(), zone, gap, overlap, elapsed=self.elapsed)
        return zoned if self.until_us is None else WithinTicks(zoned, None, self.until_us)


def resolve(parts: Parts, default_start: int) -> RRule:
    """Make explicit what DTSTART implies. Without DTSTART, periods are numbered from `default_start`, and times
    that a BYHOUR or BYMINUTE leaves open are zero: BYHOUR=14 means 14:00.
    """
    numbers = parts.numbers
    base = default_start if parts.dtstart is None else parts.dtstart
    start = from_wall(base)
    if parts.dtstart is None:
        if "BYHOUR" in numbers:
            start = start.replace(minute=0, second=0)
        if "BYMINUTE" in numbers:
            start = start.replace(second=0)
    bymonth, bymonthday, byday = numbers.get("BYMONTH", ()), numbers.get("BYMONTHDAY", ()), parts.byday
    if not (byday or {"BYWEEKNO", "BYYEARDAY", "BYMONTHDAY"} & numbers.keys()):
        match parts.freq:
            case Freq.YEARLY:
                bymonth, bymonthday = bymonth or (start.month,), (start.day,)
            case Freq.MONTHLY:
                bymonthday = (start.day,)
            case Freq.WEEKLY:
                byday = ((0, start.weekday()),)
            case _:
                byday = ALL_WEEKDAYS
    byhour = numbers.get("BYHOUR", (start.hour,) if parts.freq < Freq.HOURLY else ())
    byminute = numbers.get("BYMINUTE", (start.minute,) if parts.freq < Freq.MINUTELY else ())
    bysecond = numbers.get("BYSECOND", (start.second,) if parts.freq < Freq.SECONDLY else ())
    phased = parts.interval > 1 or parts.count is not None or parts.dtstart is not None
    return RRule(
        freq=parts.freq,
        interval=parts.interval,
        wkst=parts.wkst,
        bymonth=bymonth,
        byweekno=numbers.get("BYWEEKNO", ()),
        byyearday=numbers.get("BYYEARDAY", ()),
        bymonthday=bymonthday,
        byday=byday,
        byhour=byhour,
        byminute=byminute,
        bysecond=bysecond,
        bysetpos=numbers.get("BYSETPOS", ()),
        base=base if phased else 0,
        first=base if parts.dtstart is not None or parts.count is not None else None,
        count=parts.count,
        until_wall=parts.until_wall,
        until_us=parts.until_us,
        rdates=tuple(sorted(set(parts.rdates))),
        exdates=tuple(sorted(set(parts.exdates))),
    )


def _day_pattern(rule: RRule) -> DayPattern:
    period_years = -(-rule.interval * PERIOD_S[rule.freq] // PERIOD_S[Freq.YEARLY])
    horizon = GIVE_UP_YEARS * max(1, period_years)
    days = _aligned_days(rule)
    if rule.elapsed:
        times, uniform = _stepped_times(rule)
    else:
        same = _same_times(rule)
        times, uniform = (lambda _: same), True
        if rule.bysetpos and rule.freq < Freq.DAILY:
            chosen = _ChosenPositions(rule, days, same)
            days, times, uniform = chosen.days, chosen.times, False
    return DayPattern(days, times, uniform=uniform, horizon=horizon)


def _nth_wall(pattern: WallPattern, base: int, count: int) -> int:
    """The wall of tick number `count`: the right year by counting, then the second by bisection."""
    low, year = base, from_wall(base).year
    for following in range(year + 1, min(year + COUNT_YEARS, LAST_YEAR) + 1):
        high = first_day(following) * DAY_S
        held = pattern.count(low, high)
        if held >= count:
            start = low
            return bisect_left(range(start, high), count, key=lambda wall: pattern.count(start, wall + 1)) + start
        count -= held
        low = high
    return low


# Days


def _aligned_days(rule: RRule) -> Days:
    """The days of a year that the day parts name and whose period INTERVAL does not step over."""
    find = _days_of_year(rule.wkst, rule.bymonth or _implied_months(rule), *_day_parts(rule))
    number_of = _period_number(rule)
    if rule.interval == 1 or number_of is None:
        return find
    base = number_of(rule.base // DAY_S)

    @functools.lru_cache(maxsize=256)
    def aligned(year: int) -> Sequence[int]:
        first, last = number_of(first_day(year)) - base, number_of(first_day(year + 1) - 1) - base
        if first // rule.interval == last // rule.interval and first % rule.interval:
            return ()  # no period of this year counts: do not ask for its days
        return tuple(day for day in find(year) if (number_of(day) - base) % rule.interval == 0)

    return aligned


def _implied_months(rule: RRule) -> tuple[int, ...]:
    # Within a month, 1MO is the month's first Monday: naming all months tells dateutil so in a yearly rule.
    return tuple(range(1, 13)) if rule.freq is Freq.MONTHLY else ()


def _day_parts(
    rule: RRule,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
    return rule.byweekno, rule.byyearday, rule.bymonthday, rule.byday


def _period_number(rule: RRule) -> Callable[[int], int] | None:
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
    weekdays = [dateutil_rrule.weekday(day, nth or None) for nth, day in byday]
    every_day = byday == ALL_WEEKDAYS and not (bymonth or byweekno or byyearday or bymonthday)

    @functools.lru_cache(maxsize=256)
    def find(year: int) -> Sequence[int]:
        if every_day:
            return range(first_day(year), first_day(year + 1))
        found = dateutil_rrule.rrule(
            dateutil_rrule.YEARLY,
            dtstart=datetime(year, 1, 1),  # noqa: DTZ001 - wall times
            until=datetime(year, 12, 31),  # noqa: DTZ001
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
        return tuple(to_day(at.date()) for at in found)

    return find


class _ChosenPositions:
    """BYSETPOS over years, months or weeks: of all days and times of a period, some by their position."""

    def __init__(self, rule: RRule, days: Days, times: Sequence[int]) -> None:
        number_of = _period_number(rule)
        assert number_of is not None
        self._number_of = number_of
        self._positions = rule.bysetpos
        self._all_days = days
        self._all_times = times
        self._year = functools.lru_cache(maxsize=256)(self._choose)

    def days(self, year: int) -> Sequence[int]:
        return tuple(self._year(year))

    def times(self, day: int) -> Sequence[int]:
        return self._year(from_day(day).year).get(day, ())

    def _choose(self, year: int) -> dict[int, Sequence[int]]:
        # A week may begin in the year before or end in the year after.
        around = [*self._all_days(year - 1)[-7:], *self._all_days(year), *self._all_days(year + 1)[:7]]
        walls: list[int] = []
        for _, days in itertools.groupby(around, key=self._number_of):
            walls += choose([day * DAY_S + time for day in days for time in self._all_times], self._positions)
        inside = (wall for wall in walls if from_day(wall // DAY_S).year == year)
        return {
            day: tuple(w % DAY_S for w in of_day) for day, of_day in itertools.groupby(inside, lambda w: w // DAY_S)
        }


def choose(items: Sequence[int], positions: Iterable[int]) -> list[int]:
    """The items at the positions, 1 being the first and -1 the last; all of them if no position is given."""
    if not positions:
        return list(items)
    picked = (p - 1 if p > 0 else len(items) + p for p in positions)
    return [items[i] for i in sorted({i for i in picked if 0 <= i < len(items)})]


# Times


def _same_times(rule: RRule) -> Sequence[int]:
    product = itertools.product(rule.byhour, rule.byminute, rule.bysecond)
    times = [hour * 3600 + minute * 60 + second for hour, minute, second in product]
    return compact(choose(times, rule.bysetpos if rule.freq is Freq.DAILY else ()))


def _stepped_times(rule: RRule) -> tuple[Times, bool]:
    """Times of a rule by the hour, minute or second, and whether they are the same each day."""
    unit = PERIOD_S[rule.freq]
    step = rule.interval * unit
    base = rule.base // unit * unit
    within = list(choose(list(_offsets(rule)), rule.bysetpos))

    @functools.lru_cache(maxsize=512)
    def from_first(first: int) -> Sequence[int]:
        starts = range(first, DAY_S, step)
        if within == [0] and not (rule.byhour or rule.byminute or rule.bysecond):
            return starts
        return compact([start + offset for start in starts if _allows(rule, start) for offset in within])

    return (lambda day: from_first((base - day * DAY_S) % step)), DAY_S % step == 0


def _offsets(rule: RRule) -> Iterator[int]:
    """The seconds into an hour or minute that the finer parts name."""
    minutes = rule.byminute if rule.freq is Freq.HOURLY else (0,)
    seconds = rule.bysecond if rule.freq < Freq.SECONDLY else (0,)
    return (minute * 60 + second for minute in minutes for second in seconds)


def _allows(rule: RRule, start: int) -> bool:
    """Whether the parts as coarse as the step or coarser let it happen at this second of the day."""
    return (
        (not rule.byhour or start // 3600 in rule.byhour)
        and (rule.freq < Freq.MINUTELY or not rule.byminute or start // 60 % 60 in rule.byminute)
        and (rule.freq < Freq.SECONDLY or not rule.bysecond or start % 60 in rule.bysecond)
    )
