"""Which seconds of a day a recurrence names, the same each day or stepping on from day to day."""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from evertick.domain.schedule.day_pattern import Times, compact
from evertick.domain.schedule.instants import DAY_S
from evertick.domain.schedule.rrule_spec import ALL_WEEKDAYS, RRule
from evertick.domain.schedule.rrule_text import PERIOD_S, Freq


def same_times(rule: RRule) -> Sequence[int]:
    product = itertools.product(rule.byhour, rule.byminute, rule.bysecond)
    times = [hour * 3600 + minute * 60 + second for hour, minute, second in product]
    return compact(choose(times, rule.bysetpos if rule.freq is Freq.DAILY else ()))


def stepped_times(rule: RRule) -> tuple[Times, bool]:
    """Times of a rule by the hour, minute or second, and whether they are the same each day."""
    unit = PERIOD_S[rule.freq]
    step = rule.interval * unit
    base = rule.base // unit * unit
    within = offsets(rule)
    if not within:
        return (lambda _: ()), True  # no period has the positions that BYSETPOS asks for

    @functools.lru_cache(maxsize=512)
    def from_first(first: int) -> Sequence[int]:
        if within == [0] and not (rule.byhour or rule.byminute or rule.bysecond):
            return range(first, DAY_S, step)
        return compact([start + offset for start in _starts(rule, first, step) for offset in within])

    if DAY_S % step == 0 or step % DAY_S == 0:  # whole steps in a day, or whole days in a step
        same = from_first(base % min(step, DAY_S))
        return (lambda _: same), True
    residue = math.gcd(step, DAY_S)
    if next(_starts(rule, base % residue, residue), None) is None:
        return (lambda _: ()), True  # on no day can a step meet the limits
    return (lambda day: from_first((base - day * DAY_S) % step)), False


def offsets(rule: RRule) -> list[int]:
    """The seconds into an hour or minute that the finer parts name."""
    minutes = rule.byminute if rule.freq is Freq.HOURLY else (0,)
    seconds = rule.bysecond if rule.freq < Freq.SECONDLY else (0,)
    return choose([minute * 60 + second for minute in minutes for second in seconds], rule.bysetpos)


def steps_freely(rule: RRule) -> bool:
    """Whether no part stops some steps of a rule by the hour, minute or second from happening."""
    coarser = (rule.bymonth, rule.byweekno, rule.byyearday, rule.bymonthday, rule.byhour)
    by_minute, by_second = rule.freq >= Freq.MINUTELY and rule.byminute, rule.freq >= Freq.SECONDLY and rule.bysecond
    return rule.byday == ALL_WEEKDAYS and not any((*coarser, by_minute, by_second))


def _starts(rule: RRule, first: int, step: int) -> Iterator[int]:
    """The steps from `first` on that fall into the hours, minutes and seconds to which the rule is limited."""
    limits = [
        (frozenset(limit), unit, span)
        for limit, unit, span in ((rule.byhour, 3600, 24), (rule.byminute, 60, 60), (rule.bysecond, 1, 60))
        if limit and unit >= PERIOD_S[rule.freq]
    ]
    if step >= 60:  # few steps in a day: look at each
        steps = range(first, DAY_S, step)
        return (at for at in steps if all(at // unit % span in limit for limit, unit, span in limits))
    return (at for low, width in _windows(limits) for at in range(low + (first - low) % step, low + width, step))


def _windows(limits: list[tuple[frozenset[int], int, int]]) -> Iterator[tuple[int, int]]:
    """The stretches of a day, as (start, length), in which all limits hold."""
    lows, width = [0], DAY_S
    for limit, unit, span in limits:
        # A wider window is cut at the next coarser unit first: BYMINUTE alone holds in every hour.
        cuts = [low + cut for low in lows for cut in range(0, width, unit * span)]
        lows, width = [cut + number * unit for cut in cuts for number in sorted(limit)], unit
    return ((low, width) for low in lows)


def choose(items: Sequence[int], positions: Iterable[int]) -> list[int]:
    """The items at the positions, 1 being the first and -1 the last; all of them if no position is given."""
    if not positions:
        return list(items)
    picked = (p - 1 if p > 0 else len(items) + p for p in positions)
    return [items[i] for i in sorted({i for i in picked if 0 <= i < len(items)})]
