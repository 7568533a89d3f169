"""Where timers belong that were lost, and timers and gaps after the database's clock was set back: pure decisions from
rules and the time.

While the clock was ahead, ticks were fired or declared missed and timers moved on. Ticks after the time that was
corrected to (`after_at`) are to come again: each runs at its time, unless it has run already. What was asked for while
the clock was ahead waits for as long from now.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

import msgspec

from evertick.contract.job import timing_of
from evertick.contract.job_reading import read_spec
from evertick.domain.ids import Prefix, format_id
from evertick.domain.job.timing import resolve_alone
from evertick.domain.rule import OneOff, Rule, from_canonical
from evertick.domain.schedule.instants import EPOCH_AT, from_us, to_us
from evertick.domain.stable_hash import due_at, jitter_offset
from evertick.runtime.logs import job_fields
from evertick.store.engine.clock import TOLERANCE
from evertick.store.maintenance.replan import (
    AheadGap,
    AheadTimer,
    FinishedAhead,
    GapTrim,
    Timerless,
    TimerMove,
    TimerRepair,
)

logger = logging.getLogger("evertick.janitor")

_ZERO = timedelta(0)
_KEPT = 65_536
_R = TypeVar("_R", AheadTimer, AheadGap, FinishedAhead, Timerless)
_D = TypeVar("_D")
rule_from = functools.lru_cache(maxsize=_KEPT)(from_canonical)


class Correction(NamedTuple):
    """What time it is, and after which time ticks are to come again. After a mere step back that is later than now."""

    now_at: datetime
    after_at: datetime


def moves_of(
    timers: Iterable[AheadTimer], rules: Mapping[int, str], specs_ahead: Mapping[int, str], to: Correction
) -> Iterator[TimerMove]:
    """The timers that lie beyond what is plausible, and where each belongs."""

    def move_of(timer: AheadTimer) -> TimerMove | None:
        if timer.kind == "tick":
            at = _tick_at(timer, rules[timer.rule_id], specs_ahead.get(timer.job_id), to)
        else:
            at = _due_at(timer, to.now_at)
        return None if at is None else TimerMove(timer, *at)

    return _decided(timers, move_of)


def _tick_at(
    timer: AheadTimer, canonical: str, spec_ahead: str | None, to: Correction
) -> tuple[datetime, datetime] | None:
    """The next tick, if the timer stands beyond it. A one-off that was asked for ahead counts its delay from now."""
    rule = rule_from(canonical)
    if isinstance(rule.spec, OneOff):
        fire_at = None if spec_ahead is None else only_tick(timer.job_id, spec_ahead, to.now_at)
    else:
        fire_at = _next_tick(canonical, to.after_at)
    if fire_at is None or fire_at >= timer.fire_at:
        return None
    return fire_at, _due(timer.job_id, rule, fire_at)


@functools.lru_cache(maxsize=_KEPT)
def _next_tick(canonical: str, after_at: datetime) -> datetime | None:
    """Found once for all jobs of a rule."""
    next_us = rule_from(canonical).ticks().next(to_us(after_at))
    return None if next_us is None else from_us(next_us)


def _due_at(timer: AheadTimer, now_at: datetime) -> tuple[datetime, datetime] | None:
    """A run that began to wait while the clock was ahead waits as long from now on, and keeps its fire time."""
    if timer.due_at is None or timer.due_at - now_at <= TOLERANCE:
        return None
    since_at = timer.since_at or timer.due_at
    return None if since_at <= now_at else (timer.fire_at, now_at + max(timer.due_at - since_at, _ZERO))


def trims_of(gaps: Iterable[AheadGap], after_at: datetime) -> Iterator[GapTrim]:
    """What is left of gaps: the ticks up to an instant. Those after it are to come."""
    return _decided(gaps, lambda gap: _trim(gap, after_at))


def _trim(gap: AheadGap, after_at: datetime) -> GapTrim:
    if gap.first_at > after_at:
        return GapTrim(gap, None, 0)
    ticks = rule_from(gap.canonical).ticks()
    first_us, end_us = to_us(gap.first_at), to_us(after_at) + 1
    last_us = max(first_us, ticks.prev(end_us) or first_us)
    return GapTrim(gap, from_us(last_us), 1 + ticks.count(first_us + 1, end_us))


def reopened(jobs: Iterable[FinishedAhead], to: Correction) -> Iterator[TimerRepair]:
    """Jobs that were finished by ticks which are to come, and when they go on."""

    def repair_of(job: FinishedAhead) -> TimerRepair | None:
        fire_at = _goes_on_at(job, to)
        if fire_at is None:
            return None
        return TimerRepair(job.job_id, fire_at, _due(job.job_id, rule_from(job.canonical), fire_at))

    return _decided(jobs, repair_of)


def _goes_on_at(job: FinishedAhead, to: Correction) -> datetime | None:
    if not isinstance(rule_from(job.canonical).spec, OneOff):
        return _next_tick(job.canonical, to.after_at)
    fire_at = None if job.has_run else only_tick(job.job_id, job.spec, min(job.created_at, to.now_at))
    return None if fire_at is None or fire_at <= to.after_at else fire_at


def _due(job_id: int, rule: Rule, fire_at: datetime) -> datetime:
    return due_at(fire_at, jitter_offset(job_id, timedelta(microseconds=rule.jitter_us)))


def _decided(rows: Iterable[_R], decide: Callable[[_R], _D | None]) -> Iterator[_D]:
    """Decide on each row. A job whose rule or spec cannot be read is left as it is, and logged."""
    for row in rows:
        try:
            decision = decide(row)
        except Exception as error:  # noqa: BLE001 - a corrupt row must not stop its neighbours
            name = format_id(Prefix.JOB, row.job_id)
            logger.error("%s cannot be planned anew: %s", name, error, extra=job_fields(row.job_id))  # noqa: TRY400 - the row is at fault
        else:
            if decision is not None:
                yield decision


def repair_all(jobs: Iterable[Timerless]) -> Iterator[TimerRepair]:
    """When jobs that lost their timer fire next."""
    return _decided(jobs, _repair)


def _repair(job: Timerless) -> TimerRepair:
    """The tick after the last one that is accounted for, so that those in between are treated as any missed ones.

    Nothing is older than the spec, and what history has forgotten is not brought up again.
    """
    rule = from_canonical(job.canonical)
    if isinstance(rule.spec, OneOff):
        fire_at = only_tick(job.job_id, job.spec, job.created_at) if job.known_at is None else None
    else:
        since_at = max(at for at in (job.known_at, job.effective_at, job.forgotten_at) if at is not None)
        next_us = rule.ticks().next(to_us(since_at))
        fire_at = None if next_us is None else from_us(next_us)
    if fire_at is None:
        return TimerRepair(job.job_id, None, None)
    return TimerRepair(job.job_id, fire_at, _due(job.job_id, rule, fire_at))


def only_tick(job_id: int, spec: str, created_at: datetime) -> datetime | None:
    """A one-off's instant is in its timer alone, and has to be read from its text again."""
    timing = timing_of(read_spec(msgspec.json.decode(spec)))
    resolved = resolve_alone(timing, format_id(Prefix.JOB, job_id), created_at)
    return resolved.schedule.next(EPOCH_AT)
