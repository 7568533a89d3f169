"""Where timers and gaps belong after the database's clock was set back: pure decisions from rules and the time.

While the clock was ahead, ticks were fired or declared missed and timers moved on. Ticks that lie ahead of the
corrected clock come again: each runs at its time, unless it has run already.
"""

import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from evertick.domain.ids import Prefix, format_id
from evertick.domain.jitter import due_at, jitter_offset
from evertick.domain.rule import OneOff, Rule, from_canonical
from evertick.domain.schedule.instants import from_us, to_us
from evertick.roles.janitor.healing import only_tick
from evertick.store.clock import TOLERANCE
from evertick.store.housekeeping import Healing
from evertick.store.replan import AheadGap, AheadTimer, FinishedAhead, Move, Trim

logger = logging.getLogger("evertick.janitor")

_ZERO = timedelta(0)
rule_from = functools.lru_cache(maxsize=4096)(from_canonical)


def moves_of(
    timers: Iterable[AheadTimer], rules: Mapping[int, str], specs_ahead: Mapping[int, str], now_at: datetime
) -> Iterator[Move]:
    """The timers that lie beyond what is plausible, and where each belongs."""
    for timer in timers:
        try:
            at = _tick_at(timer, rules, specs_ahead, now_at) if timer.kind == "tick" else _due_at(timer, now_at)
        except Exception as error:  # noqa: BLE001 - a corrupt row must not stop its neighbours
            _report(timer.job_id, error)
            continue
        if at is not None:
            yield Move(timer, *at)


def _tick_at(
    timer: AheadTimer, rules: Mapping[int, str], specs_ahead: Mapping[int, str], now_at: datetime
) -> tuple[datetime, datetime] | None:
    """A tick's timer stands at the first tick after now at the latest. A one-off asked for ahead counts from now."""
    rule = rule_from(rules[timer.rule_id])
    fire_at = _first_tick(rule, timer, specs_ahead, now_at)
    if fire_at is None or fire_at >= timer.fire_at:
        return None
    return fire_at, _due(timer.job_id, rule, fire_at)


def _first_tick(rule: Rule, timer: AheadTimer, specs_ahead: Mapping[int, str], now_at: datetime) -> datetime | None:
    if isinstance(rule.spec, OneOff):
        spec = specs_ahead.get(timer.job_id)
        return None if spec is None else only_tick(timer.job_id, spec, now_at)
    next_us = rule.ticks().next(to_us(now_at))
    return None if next_us is None else from_us(next_us)


def _due_at(timer: AheadTimer, now_at: datetime) -> tuple[datetime, datetime] | None:
    """A run that began to wait while the clock was ahead waits as long from now on, and keeps its fire time."""
    if timer.due_at is None or timer.due_at - now_at <= TOLERANCE:
        return None
    since_at = timer.since_at or timer.due_at
    return None if since_at <= now_at else (timer.fire_at, now_at + max(timer.due_at - since_at, _ZERO))


def trims_of(gaps: Iterable[AheadGap], now_at: datetime) -> Iterator[Trim]:
    """What is left of gaps: the ticks up to now. Those after it are still to come."""
    for gap in gaps:
        try:
            yield _trim(gap, now_at)
        except Exception as error:  # noqa: BLE001 - a corrupt row must not stop its neighbours
            _report(gap.job_id, error)


def _trim(gap: AheadGap, now_at: datetime) -> Trim:
    if gap.first_at > now_at:
        return Trim(gap, None, 0)
    ticks = rule_from(gap.canonical).ticks()
    first_us, end_us = to_us(gap.first_at), to_us(now_at) + 1
    last_us = max(first_us, ticks.prev(end_us) or first_us)
    return Trim(gap, from_us(last_us), 1 + ticks.count(first_us + 1, end_us))


def reopened(jobs: Iterable[FinishedAhead], now_at: datetime) -> Iterator[Healing]:
    """Jobs that have ticks to come after all."""
    for job in jobs:
        try:
            rule = rule_from(job.canonical)
            if isinstance(rule.spec, OneOff):
                fire_at = None if job.has_run else only_tick(job.job_id, job.spec, min(job.created_at, now_at))
            else:
                next_us = rule.ticks().next(to_us(now_at))
                fire_at = None if next_us is None else from_us(next_us)
            if fire_at is not None and fire_at > now_at:
                yield Healing(job.job_id, fire_at, _due(job.job_id, rule, fire_at))
        except Exception as error:  # noqa: BLE001 - a corrupt row must not stop its neighbours
            _report(job.job_id, error)


def _due(job_id: int, rule: Rule, fire_at: datetime) -> datetime:
    return due_at(fire_at, jitter_offset(job_id, timedelta(microseconds=rule.jitter_us)))


def _report(job_id: int, error: Exception) -> None:
    name = format_id(Prefix.JOB, job_id)
    logger.error("%s cannot be planned anew: %s", name, error)
