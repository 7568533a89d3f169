"""How near two ticks of a schedule can come to each other, on the clock on the wall.

Found from the times of one day and the distance of its days, which a short walk samples: up to a day nothing is
nearer, and longer distances are those of some common and leap years. What daylight saving does to a single day is left
out: an hour's jump is not the schedule's rhythm.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

from evertick.domain.schedule.budget import bounded, spend
from evertick.domain.schedule.cron import Cron, times_of_day
from evertick.domain.schedule.instants import DAY_S, first_day
from evertick.domain.schedule.interval import Every, EveryMonths
from evertick.domain.schedule.patterns.days import distances, times_within
from evertick.domain.schedule.patterns.wall import LOOK_UP_STEPS, PASSING_DATES, WallPattern
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.rrule.text import PERIOD_S, Freq
from evertick.domain.schedule.spec import Manual, Once, Soon, Spec, pattern_of

_FROM_WALL = first_day(2027) * DAY_S  # a common year, and a leap year after it
_YEARS_S = 5 * 366 * DAY_S
_MAX_STEPS = 128


@bounded
def shortest_interval(spec: Spec) -> timedelta | None:
    """The smallest distance between two ticks; None if there are never two."""
    if isinstance(spec, Every):
        return None if spec.total == 1 else timedelta(microseconds=spec.step_us)
    seconds = _seconds(spec)
    return None if seconds is None else timedelta(seconds=seconds)


def _seconds(spec: Cron | RRule | EveryMonths | Once | Soon | Manual) -> int | None:
    match spec:
        case Cron():
            return _in_cron(spec)
        case RRule():
            return _in_rrule(spec)
        case EveryMonths():
            return _walked(spec.pattern(), spec.start_wall)
        case Once() | Soon() | Manual():
            return None


def _in_cron(spec: Cron) -> int:
    times = times_of_day(*spec.fields[:3])
    if not spec.both_days:  # either may match, so two days in a row may
        return _smallest_gap(times, DAY_S)
    dom, month, dow = spec.fields[3:]
    days = replace(spec, fields=("0", "0", "0", dom, month, dow)).pattern()
    return _smallest_gap(times, _walked(days, _FROM_WALL) or DAY_S)


def _in_rrule(spec: RRule) -> int | None:
    if spec.count == 1 and not spec.rdates:
        return None
    plain = replace(spec, count=None, until_wall=None, until_us=None, rdates=(), exdates=())
    if spec.bysetpos:
        found = _walked(pattern_of(plain), max(plain.base, _FROM_WALL), enough=1) or PERIOD_S[spec.freq]
    else:
        found = _stepped(plain) if spec.elapsed else _on_days(plain)
    return min([found, *_beside_extra_dates(spec)])


def _on_days(plain: RRule) -> int:
    times = times_within(plain.byhour, plain.byminute, plain.bysecond)
    days = replace(plain, byhour=(0,), byminute=(0,), bysecond=(0,), first=None)
    return _smallest_gap(times, _walked(pattern_of(days), max(plain.base, _FROM_WALL)) or DAY_S)


def _stepped(plain: RRule) -> int:
    """By the hour or finer: the parts below the step lie within one period, and periods follow each other."""
    period = plain.interval * PERIOD_S[plain.freq]
    minutes = plain.byminute if plain.freq is Freq.HOURLY else (0,)
    seconds = plain.bysecond if plain.freq < Freq.SECONDLY else (0,)
    within = [minute * 60 + second for minute in minutes for second in seconds]
    least = _smallest_gap(within, period)
    if len(within) > 1 or not (plain.byhour or plain.byminute or plain.bysecond):
        return least
    # Coarser parts take periods away: HOURLY at BYHOUR=9 is daily.
    return max(least, _walked(pattern_of(plain), max(plain.base, _FROM_WALL), enough=least) or least)


def _smallest_gap(offsets: Sequence[int], period: int) -> int:
    """The smallest distance in a row of ascending offsets that repeats every `period`."""
    return min([offsets[0] + period - offsets[-1], *distances(offsets)])


def _walked(pattern: WallPattern, wall: int, enough: int = DAY_S) -> int | None:
    """The smallest distance seen on a short walk, which ends early once nothing below `enough` can come."""
    at = pattern.next_from(wall)
    least = None
    for _ in range(_MAX_STEPS):
        spend(LOOK_UP_STEPS, "fire times whose distance is measured")
        following = None if at is None else pattern.next_from(at + 1)
        if at is None or following is None:
            break
        least = following - at if least is None else min(least, following - at)
        if least <= enough or following > wall + _YEARS_S:
            break
        at = following
    return least


def _beside_extra_dates(spec: RRule) -> Iterator[int]:
    if not spec.rdates:
        return
    # Without its ends the rule has more ticks than with them, and none has to be counted.
    pattern = pattern_of(replace(spec, count=None, until_wall=None, until_us=None, exdates=()))
    for wall in spec.rdates:
        spend(2 * LOOK_UP_STEPS, PASSING_DATES)
        neighbours = pattern.prev_before(wall), pattern.next_from(wall + 1)
        yield from (abs(wall - near) for near in neighbours if near is not None)
