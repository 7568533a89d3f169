"""RFC 5545 recurrences as days and times of day.

dateutil walks a rule from its DTSTART, which a rule by the minute with an old DTSTART cannot afford. So it is asked
only which days of one year a rule's day parts name; INTERVAL becomes a remainder of the period's number, the times of
a day follow from the time parts, and COUNT is compared with how many walls were before. Then no answer takes a walk
from DTSTART.
"""

from dataclasses import replace

from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.instants import DAY_S
from evertick.domain.schedule.pattern import (
    GIVE_UP_YEARS,
    AmendedPattern,
    CountedPattern,
    DayPattern,
    ListPattern,
    StepPattern,
    WallPattern,
    WithinPattern,
)
from evertick.domain.schedule.rrule_days import ChosenPositions, aligned_days, aligned_years
from evertick.domain.schedule.rrule_spec import RRule
from evertick.domain.schedule.rrule_text import PERIOD_S, Freq
from evertick.domain.schedule.rrule_times import offsets, same_times, stepped_times, steps_freely
from evertick.domain.schedule.ticks import JoinedTicks, Ticks, WithinTicks
from evertick.domain.schedule.zone import Zone
from evertick.domain.schedule.zoned import ZonedTicks

MOST_YEARS = 1000
"""How far a rule whose periods are decades long is looked for at most."""


def ticks_of(rule: RRule, zone: Zone, gap: DstGap, overlap: DstOverlap) -> Ticks:
    zoned = ZonedTicks(pattern_of(rule), zone, gap, overlap, elapsed=rule.elapsed)
    if rule.until_us is None:
        return zoned
    if not rule.rdates:
        return WithinTicks(zoned, None, rule.until_us)
    # UNTIL ends the rule, not the dates that were added to it.
    ruled = WithinTicks(ticks_of(replace(rule, until_us=None, rdates=()), zone, gap, overlap), None, rule.until_us)
    added = ListPattern([wall for wall in rule.rdates if wall not in rule.exdates])
    return JoinedTicks(ruled, ZonedTicks(added, zone, gap, overlap, elapsed=rule.elapsed))


def pattern_of(rule: RRule) -> WallPattern:
    plain = _arithmetic(rule) or _day_pattern(rule)
    inner: WallPattern = WithinPattern(plain, rule.first, rule.until_wall)
    if rule.count is not None and not isinstance(plain, StepPattern):
        inner = CountedPattern(inner, rule.base, rule.count)
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
        start += step
    return StepPattern(lambda number: start + number * step, step, rule.count)


def _day_pattern(rule: RRule) -> DayPattern:
    days = aligned_days(rule)
    if rule.elapsed:
        times, uniform = stepped_times(rule)
    else:
        same = same_times(rule)
        times, uniform = (lambda _: same), True
        if rule.bysetpos and rule.freq < Freq.DAILY:
            chosen = ChosenPositions(rule, days, same)
            days, times, uniform = chosen.days, chosen.times, False
    # A period of many years steps over most of them, so as many more must pass before none will come.
    period_years = -(-rule.interval * PERIOD_S[rule.freq] // PERIOD_S[Freq.YEARLY]) if rule.freq > Freq.YEARLY else 1
    give_up = min(GIVE_UP_YEARS * period_years, MOST_YEARS)
    return DayPattern(days, times, uniform=uniform, years=aligned_years(rule), give_up=give_up)
