"""From due timers to what the fire statement is given. Pure: the domain decides once for all jobs that fire alike."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.domain.jitter import jitter_offset
from evertick.domain.misfire import plan
from evertick.domain.policies import ConcurrentPolicy
from evertick.domain.rule import Rule
from evertick.domain.schedule.instants import duration_us, from_us, to_us
from evertick.roles.scheduler.agenda import Entry
from evertick.store.timers import Firing, Timer

_ZERO = timedelta(0)
_UNASKED = ConcurrentPolicy.SKIP
"""The policy that stands for runs which nothing keeps waiting: retries, manual runs, replays."""


class GapRow(NamedTuple):
    """Ticks that do not run, as the store takes them."""

    first_at: datetime
    last_at: datetime
    ticks: int
    reason: str


class Tick(NamedTuple):
    """What becomes of the tick timers that share a rule, a fire time and a jitter."""

    run_at: datetime | None
    reason: str | None
    next_fire_at: datetime | None
    gaps: tuple[GapRow, ...]
    policy: str
    limit: int


@dataclass(frozen=True, slots=True)
class Planned:
    """What to fire, the entries it is about in the same order, and jobs whose rule failed, with the reason."""

    firing: Firing
    entries: list[Entry]
    unreadable: dict[int, str]


def plan_firing(entries: Iterable[Entry], rules: Mapping[int, Rule], now_us: int) -> Planned:
    """Plan due timers. One fire of a job at a time: the next tick sees in the database what this one leaves open."""
    firing = Firing()
    planned: list[Entry] = []
    unreadable: dict[int, str] = {}
    ticks: dict[tuple[int, datetime, timedelta], Tick] = {}
    for entry in entries:
        timer = entry.timer
        if timer.kind != "tick":
            rule = rules.get(timer.rule_id) if timer.kind == "queued" else None
            _append_waiting(firing, timer, rule)
            planned.append(entry)
            continue
        try:
            rule = rules[timer.rule_id]
            jitter = jitter_offset(timer.job_id, timedelta(microseconds=rule.jitter_us)) if rule.jitter_us else _ZERO
            key = (timer.rule_id, timer.fire_at, jitter)
            tick = ticks.get(key)
            if tick is None:
                tick = ticks[key] = _plan_tick(rule, timer.fire_at, jitter, now_us)
        except (OSError, MemoryError):
            raise  # of the machine, not of the rule: it passes
        except Exception as error:  # noqa: BLE001 - whatever a rule does, its neighbours fire
            unreadable[timer.job_id] = f"rule {timer.rule_id} cannot be planned: {type(error).__name__}: {error}"
            continue
        _append_tick(firing, timer, tick, jitter)
        planned.append(entry)
    return Planned(firing, planned, unreadable)


def _plan_tick(rule: Rule, fire_at: datetime, jitter: timedelta, now_us: int) -> Tick:
    decided = plan(rule, to_us(fire_at), now_us, jitter_us=duration_us(jitter), most_fires=1)
    fire = decided.fires[0] if decided.fires else None
    gaps = tuple(
        GapRow(from_us(gap.first_us), from_us(gap.last_us), gap.count, gap.reason.value) for gap in decided.gaps
    )
    return Tick(
        run_at=None if fire is None else from_us(fire.fire_us),
        reason=None if fire is None else fire.reason.value,
        next_fire_at=None if decided.next_us is None else from_us(decided.next_us),
        gaps=gaps,
        policy=rule.concurrent_policy.value,
        limit=rule.max_concurrent,
    )


def _append_tick(firing: Firing, timer: Timer, tick: Tick, jitter: timedelta) -> None:
    firing.job_ids.append(timer.job_id)
    firing.kinds.append(timer.kind)
    firing.fire_ats.append(timer.fire_at)
    firing.due_ats.append(timer.due_at)
    firing.rule_ids.append(timer.rule_id)
    firing.run_ats.append(tick.run_at)
    firing.reasons.append(tick.reason)
    firing.next_fire_ats.append(tick.next_fire_at)
    firing.next_due_ats.append(None if tick.next_fire_at is None else tick.next_fire_at + jitter)
    firing.policies.append(tick.policy)
    firing.limits.append(tick.limit)
    number = len(firing.job_ids)
    for gap in tick.gaps:
        firing.gap_numbers.append(number)
        firing.gap_first_ats.append(gap.first_at)
        firing.gap_last_ats.append(gap.last_at)
        firing.gap_ticks.append(gap.ticks)
        firing.gap_reasons.append(gap.reason)


def _append_waiting(firing: Firing, timer: Timer, rule: Rule | None) -> None:
    """A run that stands already: a retry, a manual run, a replay, or one that waits for the run before it."""
    firing.job_ids.append(timer.job_id)
    firing.kinds.append(timer.kind)
    firing.fire_ats.append(timer.fire_at)
    firing.due_ats.append(timer.due_at)
    firing.rule_ids.append(timer.rule_id)
    firing.run_ats.append(timer.fire_at)
    firing.reasons.append(None)
    firing.next_fire_ats.append(None)
    firing.next_due_ats.append(None)
    firing.policies.append((rule.concurrent_policy if rule else _UNASKED).value)
    firing.limits.append(rule.max_concurrent if rule else 1)
