"""RFC 5545 recurrences as days and times of day.

dateutil walks a rule from its DTSTART, which a rule by the minute with an old DTSTART cannot afford. So it is asked
only which days of one year a rule's day parts name; INTERVAL becomes a remainder of the period's number, the times of
a day follow from the time parts, and COUNT is compared with how many walls were before. Then no answer takes a walk
from DTSTART.
"""

from dataclasses import replace

from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.instants import DAY_S, SECOND_US
from evertick.domain.schedule.patterns.bounded import AmendedPattern, CountedPattern, WithinPattern
from evertick.domain.schedule.patterns.days import GIVE_UP_YEARS, DayPattern
from evertick.domain.schedule.patterns.times import SameTimes, Times
from evertick.domain.schedule.patterns.wall import ListPattern, StepPattern, WallPattern, is_in
from evertick.domain.schedule.rrule.days import aligned_days, aligned_years
from evertick.domain.schedule.rrule.positions import ChosenPositions
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.rrule.text import PERIOD_S, Freq
from evertick.domain.schedule.rrule.times import offsets, same_times, stepped_times, steps_freely
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
