"""The smear advisor: which jobs should get jitter, and how much, so that the peak of a forecast falls.

1. A rule may be smeared if none of its jobs has jitter, and its ticks are at least as far apart as the jitter is long
   and no less than a minute. One-offs are meant for their instant.
2. The firings of the heaviest of these rules are counted once, minute by minute.
3. For each jitter that is tried, the rules that make the hottest minute are smeared, then those of the minute that is
   the hottest after that, until a minute has too little that can be smeared. What that leaves is computed from the
   counted minutes (`smearing`).
4. The shortest jitter is advised that does most of what the best one would.

An advice is for no more jobs than one smear may have. Of a rule that alone has more, a part is smeared.
"""

import math
from collections.abc import Generator, Iterable, Sequence
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from evertick.domain.errors import ScheduleTooCostly
from evertick.domain.forecast.horizon import Horizon, RuleLoad
from evertick.domain.forecast.smearing import MinuteLoad, minute_load, spread_evenly
from evertick.domain.limits import SMEAR_JITTERS_S
from evertick.domain.rule import OneOff, Rule, RuleSpec, from_canonical
from evertick.domain.schedule.spacing import shortest_interval
from evertick.domain.schedule.spec import Manual

MAX_SMEARED = 500_000
"""Jobs of one smear."""
_ENOUGH = 0.8
"""The part of the largest fall of the peak that is enough: runs should not be later than that takes."""
_LEAST_FALL = 0.02
"""Of the peak: an advice that lowers it by less is not worth a change."""
_LEAST_SHARE = 0.002
"""Of a bucket: rules with less are not worth a change."""
_MAX_ROUNDS = 60
_MAX_RULES = 500
_STEP_RULES = 20


class Unsmeared(StrEnum):
    """Why jobs are left alone."""

    HAS_JITTER = "has_jitter"  # they have jitter already
    TOO_FREQUENT = "too_frequent"  # their ticks are nearer to each other than the jitter is long
    ONE_OFF = "one_off"  # they are meant for their instant
    OPTED_OUT = "opted_out"  # they have the label smear:never


class Advice(NamedTuple):
    """Loads that should get a jitter, each with the part of its jobs that should: all, unless it is too large."""

    jitter_s: int
    moved: tuple[tuple[MinuteLoad, float], ...]
    counts: Sequence[float]
    """What is left of the forecast."""

    @property
    def keys(self) -> list[int]:
        return [load.key for load, _ in self.moved]

    @property
    def jobs(self) -> int:
        return sum(round(load.jobs * part) for load, part in self.moved)

    @property
    def peak(self) -> int:
        return math.ceil(max(self.counts) - 1e-6)  # without what floating point adds to a whole number


def reason_against(rule: Rule, jitter_s: int) -> Unsmeared | None:
    """Why a rule must not get this jitter; None if it may."""
    if isinstance(rule.spec, OneOff | Manual):
        return Unsmeared.ONE_OFF
    if rule.jitter_us:
        return Unsmeared.HAS_JITTER
    return Unsmeared.TOO_FREQUENT if _interval(rule.spec) < timedelta(seconds=max(jitter_s, 60)) else None


@lru_cache(maxsize=4096)
def _interval(spec: RuleSpec) -> timedelta:
    """The shortest distance of its ticks; zero where that is too costly to find out."""
    if isinstance(spec, OneOff):
        return timedelta.max
    try:
        interval = shortest_interval(spec)
    except ScheduleTooCostly:
        return timedelta()
    return timedelta.max if interval is None else interval


def smearable(canonical: str, jitter_s: int) -> Rule | None:
    """The rule of a canonical text, if it may get this jitter."""
    try:
        rule = from_canonical(canonical)
        return rule if reason_against(rule, jitter_s) is None else None
    except (ValueError, KeyError, TypeError):
        return None  # its zone is gone, or the row is corrupt


def advise_in_steps(
    ranked: Sequence[tuple[int, RuleLoad]], counts: Sequence[int], horizon: Horizon, max_jobs: int
) -> Generator[None, None, Advice | None]:
    """The advice for a forecast of these minutes, whose heaviest rules are given. None: nothing would help.

    `max_jobs`: how many may be changed.
    """
    open_loads: list[tuple[timedelta, MinuteLoad]] = []
    for number, (key, load) in enumerate(ranked):
        if reason_against(load.rule, SMEAR_JITTERS_S[0]) is None:
            open_loads.append((_interval(load.rule.spec), minute_load(key, load, horizon)))
        if number % _STEP_RULES == 0:
            yield
    found: list[Advice] = []
    for jitter_s in SMEAR_JITTERS_S:
        loads = [load for interval, load in open_loads if interval >= timedelta(seconds=jitter_s)]
        advice = yield from _with_jitter(loads, counts, jitter_s, max_jobs)
        found += [advice] if advice is not None else []
    peak = max(counts, default=0)
    lowest = min((advice.peak for advice in found), default=peak)
    if not found or lowest > peak * (1 - _LEAST_FALL):
        return None
    return next(advice for advice in found if peak - advice.peak >= _ENOUGH * (peak - lowest))


def _with_jitter(
    loads: Iterable[MinuteLoad], counts: Sequence[int], jitter_s: int, max_jobs: int
) -> Generator[None, None, Advice | None]:
    """The best that a jitter does. What a round moves may make another minute hotter: the best of all rounds counts."""
    open_loads = {load.key: load for load in loads}
    after: Sequence[float] = counts
    moved: list[tuple[MinuteLoad, float]] = []
    best: Advice | None = None
    jobs_left, lowest = max_jobs, float(max(counts, default=0))
    for _ in range(_MAX_ROUNDS):
        yield
        worth = _worth_moving(open_loads.values(), after)[: _MAX_RULES - len(moved)]
        chosen = list(_fitting(worth, jobs_left))
        if not chosen and worth and not moved:
            chosen = [(worth[0], jobs_left / worth[0].jobs)]
        if not chosen:
            break
        moved += chosen
        jobs_left -= sum(min(load.jobs, jobs_left) for load, _ in chosen)
        for load, _ in chosen:
            del open_loads[load.key]
        after = spread_evenly(after, chosen, jitter_s)
        if max(after) < lowest:
            lowest, best = max(after), Advice(jitter_s, tuple(moved), after)
    return best


def _worth_moving(loads: Iterable[MinuteLoad], counts: Sequence[float]) -> list[MinuteLoad]:
    """What makes the hottest minute, the largest share first."""
    peak = max(counts)
    place = counts.index(peak)
    least = max(2, peak * _LEAST_SHARE)
    worth = [load for load in loads if load.firings.get(place, 0) >= least]
    return sorted(worth, key=lambda load: -load.firings[place])


def _fitting(loads: Iterable[MinuteLoad], jobs_left: int) -> Generator[tuple[MinuteLoad, float], None, None]:
    """Those that one smear can take together."""
    for load in loads:
        if load.jobs <= jobs_left:
            jobs_left -= load.jobs
            yield load, 1.0
