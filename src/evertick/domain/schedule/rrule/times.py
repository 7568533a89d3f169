"""Which seconds of a day a recurrence names, the same each day or stepping on from day to day."""

import functools
import math
from array import array
from collections.abc import Iterable, Sequence
from itertools import compress

from evertick.domain.schedule.instants import DAY_S
from evertick.domain.schedule.patterns.days import SameTimes, Times, mask, spread, times_within
from evertick.domain.schedule.rrule.spec import ALL_WEEKDAYS, RRule
from evertick.domain.schedule.rrule.text import PERIOD_S, Freq

_KEPT_DAYS = 16
_LOOKED_AT_PER_STEP = 256


def same_times(rule: RRule) -> Sequence[int]:
    times = times_within(rule.byhour, rule.byminute, rule.bysecond)
    return array("i", choose(times, rule.bysetpos)) if rule.freq is Freq.DAILY and rule.bysetpos else times


def stepped_times(rule: RRule) -> Times:
    """Times of a rule by the hour, minute or second."""
    unit = PERIOD_S[rule.freq]
    step = rule.interval * unit
    base = rule.base // unit * unit
    within = offsets(rule)
    if not within:
        return SameTimes(())  # no period has the positions that BYSETPOS asks for
    steps = Steps(unit, step, _limits(rule))
    if DAY_S % step == 0 or step % DAY_S == 0:  # whole steps in a day, or whole days in a step
        return SameTimes(spread(steps.from_first(base % min(step, DAY_S)), within))
    if not steps.may_meet(base):
        return SameTimes(())
    return SteppedTimes(steps, base, within)


_Limits = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _limits(rule: RRule) -> _Limits:
    """The hours, minutes and seconds into which a step must fall; what is finer than a step lies within it."""
    minutes = rule.byminute if rule.freq >= Freq.MINUTELY else ()
    return rule.byhour, minutes, rule.bysecond if rule.freq >= Freq.SECONDLY else ()


class Steps:
    """Steps of so many seconds through a day, of which only those count that fall into the limits."""

    def __init__(self, unit: int, step: int, limits: _Limits) -> None:
        self._unit = unit
        self.step = step
        self._limits = limits
        self._mask = mask(unit, *limits) if any(limits) else None

    def from_first(self, first: int) -> Sequence[int]:
        """The steps that count on a day whose first step is at the second `first`."""
        if self._mask is None:
            return range(first, DAY_S, self.step)
        if 60 % self.step == 0:  # each minute has the same
            hours, minutes, seconds = self._limits
            named = [second for second in seconds or range(60) if (second - first) % self.step == 0]
            return times_within(hours or range(24), minutes or range(60), named)
        return array("i", compress(range(first, DAY_S, self.step), self._taken(first)))

    def number(self, first: int) -> int:
        return len(range(first, DAY_S, self.step)) if self._mask is None else self._taken(first).count(1)

    def may_meet(self, base: int) -> bool:
        """Whether on some day a step can meet the limits: over the days they come by all seconds with a remainder."""
        residue = math.gcd(self.step, DAY_S)
        return self._mask is None or any(self._mask[base % residue // self._unit :: residue // self._unit])

    def _taken(self, first: int) -> bytes:
        assert self._mask is not None
        return self._mask[first // self._unit :: self.step // self._unit]


class SteppedTimes:
    """Times of a rule whose steps fall on other times each day."""

    uniform = False

    def __init__(self, steps: Steps, base: int, within: Sequence[int]) -> None:
        self._steps = steps
        self._base = base
        self._within = within
        self.day_steps = 1 + DAY_S // steps.step // _LOOKED_AT_PER_STEP
        kept = max(1, _KEPT_DAYS * steps.step // DAY_S)
        self._from_first = functools.lru_cache(maxsize=kept)(lambda first: spread(steps.from_first(first), within))

    def of(self, day: int) -> Sequence[int]:
        return self._from_first((self._base - day * DAY_S) % self._steps.step)

    def number(self, day: int) -> int:
        return self._steps.number((self._base - day * DAY_S) % self._steps.step) * len(self._within)


def offsets(rule: RRule) -> Sequence[int]:
    """The seconds into an hour or minute that the finer parts name."""
    minutes = rule.byminute if rule.freq is Freq.HOURLY else (0,)
    seconds = rule.bysecond if rule.freq < Freq.SECONDLY else (0,)
    inside = spread([minute * 60 for minute in minutes], seconds)
    return array("i", choose(inside, rule.bysetpos)) if rule.bysetpos else inside


def steps_freely(rule: RRule) -> bool:
    """Whether no part stops some steps of a rule by the hour, minute or second from happening."""
    coarser = (rule.bymonth, rule.byweekno, rule.byyearday, rule.bymonthday, rule.byhour)
    by_minute, by_second = rule.freq >= Freq.MINUTELY and rule.byminute, rule.freq >= Freq.SECONDLY and rule.bysecond
    return rule.byday == ALL_WEEKDAYS and not any((*coarser, by_minute, by_second))


def choose(items: Sequence[int], positions: Iterable[int]) -> list[int]:
    """The items at the positions, 1 being the first and -1 the last."""
    picked = (p - 1 if p > 0 else len(items) + p for p in positions)
    return [items[i] for i in sorted({i for i in picked if 0 <= i < len(items)})]
