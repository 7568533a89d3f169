"""The hottest buckets of a forecast, and which rules make them."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heappush, heappushpop, nlargest, nsmallest
from typing import NamedTuple

from evertick.domain.forecast.horizon import MINUTE_US, Horizon, RuleLoad
from evertick.domain.rule import OneOff, RuleSpec
from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.instants import SECOND_US
from evertick.domain.schedule.interval import Every
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.rrule.text import Freq
from evertick.domain.schedule.spec import Manual

MAX_LOOKED_AT = 1_000
"""Rules that are asked for their part in a bucket: those that may have the largest."""


class Share(NamedTuple):
    """What one rule adds to a bucket."""

    key: int
    firings: int


def hottest(counts: Sequence[int], most: int) -> list[int]:
    """The places of the fullest buckets, fullest first, and of equal ones the earliest."""
    places = nsmallest(most, range(len(counts)), key=lambda place: (-counts[place], place))
    return [place for place in places if counts[place]]


def ranked(loads: Iterable[tuple[int, RuleLoad]]) -> list[tuple[int, RuleLoad]]:
    """Loads by key, those that may have most firings in a minute first."""
    return nlargest(MAX_LOOKED_AT, loads, key=lambda item: item[1].jobs * per_minute(item[1].rule.spec))


def shares(loads: Iterable[tuple[int, RuleLoad]], horizon: Horizon, place: int, most: int) -> list[Share]:
    """Which of the loads make a bucket, the largest share first."""
    found: list[tuple[int, int, int]] = []  # the largest, as a heap; of equal ones the first
    for number, (key, load) in enumerate(loads):
        most_firings = load.jobs * per_minute(load.rule.spec) * (horizon.bucket_us // MINUTE_US)
        if len(found) == most and found[0][0] >= most_firings:
            continue
        if firings := firings_in(load, horizon, place):
            push = heappush if len(found) < most else heappushpop
            push(found, (firings, -number, key))
    return [Share(key, firings) for firings, _, key in sorted(found, reverse=True)]


def firings_in(load: RuleLoad, horizon: Horizon, place: int) -> int:
    """How many firings of a load are in one bucket."""
    low_us = horizon.from_us + place * horizon.bucket_us
    high_us = low_us + horizon.bucket_us
    start_us, total = max(low_us, horizon.start_us), 0
    if low_us <= horizon.now_us < high_us:  # what is due already fires now
        total = sum(jobs for fire_us, offset_s, jobs in load.pending if fire_us + offset_s * SECOND_US < start_us)
    if isinstance(load.rule.spec, OneOff | Manual):
        due_us = [(fire_us + offset_s * SECOND_US, jobs) for fire_us, offset_s, jobs in load.pending]
        return total + sum(jobs for at_us, jobs in due_us if start_us <= at_us < high_us)
    offsets = [each.offset_s for each in load.pending]
    ticks = load.rule.ticks()
    if offsets[0] == offsets[-1]:
        offset_us = offsets[0] * SECOND_US
        return total + sum(
            jobs * ticks.count(max(start_us - offset_us, fire_us), high_us - offset_us)
            for fire_us, _, jobs in load.pending
        )
    at_us = ticks.next(start_us - offsets[-1] * SECOND_US - 1)
    while at_us is not None and at_us < high_us:
        first = bisect_left(offsets, -((at_us - start_us) // SECOND_US))
        end = bisect_left(offsets, -((at_us - high_us) // SECOND_US))
        total += sum(jobs for fire_us, _, jobs in load.pending[first:end] if fire_us <= at_us)
        at_us = ticks.next(at_us)
    return total


def per_minute(spec: RuleSpec) -> int:
    """The most ticks that a minute can have."""
    match spec:
        case Every():
            return max(1, -(-MINUTE_US // spec.step_us))
        case Cron():
            return 60 if spec.fields[0] == "*" else spec.fields[0].count(",") + 1
        case RRule():
            return 60 if spec.freq is Freq.SECONDLY else max(1, len(spec.bysecond)) + len(spec.rdates)
        case _:
            return 1
