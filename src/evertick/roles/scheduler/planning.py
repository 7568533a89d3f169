"""From due timers to what the fire statement is given. Pure: the domain decides once for all jobs that fire alike."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from evertick.domain.jitter import jitter_offset
from evertick.domain.misfire import plan, wait_us
from evertick.domain.policies import ConcurrentPolicy
from evertick.domain.rule import Rule
from evertick.domain.schedule.instants import duration_us, from_us, to_us
from evertick.roles.scheduler.agenda import Entry
from evertick.store.timers import Firing, Gap, Plan, Timer

_ZERO = timedelta(0)
_UNASKED = ConcurrentPolicy.SKIP
"""The policy that stands for runs which nothing keeps waiting: retries, manual runs, replays."""

_Likeness: TypeAlias = tuple[int, datetime, datetime, timedelta]
"""What ticks have in common that fire alike: rule, fire time, due time and jitter."""


class Group(NamedTuple):
    """Due timers that fire alike."""

    plan: Plan
    entries: list[Entry]

    @property
    def is_plain(self) -> bool:
        """Whether it changes nothing but its timers and what nobody else has: it runs into no locks."""
        return (
            self.plan.kind == "tick"
            and self.plan.policy == ConcurrentPolicy.SKIP
            and self.plan.next_fire_at is not None
            and not self.plan.gaps
        )


@dataclass(frozen=True, slots=True)
class Planned:
    """What to fire, and jobs whose rule failed, with the reason."""

    groups: list[Group]
    unreadable: dict[int, str] = field(default_factory=dict)

    @property
    def firing(self) -> Firing:
        return [(group.plan, [entry.timer.job_id for entry in group.entries]) for group in self.groups]

    @property
    def entries(self) -> list[Entry]:
        """In the order of their places in the firing."""
        return [entry for group in self.groups for entry in group.entries]

    def split(self) -> "list[Planned]":
        """The plain ones and the others, or two halves of one kind; nothing for a single timer."""
        plain = [group for group in self.groups if group.is_plain]
        if plain and len(plain) < len(self.groups):
            return [Planned(plain), Planned([group for group in self.groups if not group.is_plain])]
        half = self.entries[: len(self.entries) // 2]
        return self.parted({entry.timer.job_id for entry in half}) if half else []

    def parted(self, job_ids: set[int]) -> "list[Planned]":
        """All but some jobs, and those; none of both is empty."""
        parts = [Planned(self._of(lambda job_id: job_id not in job_ids)), Planned(self._of(job_ids.__contains__))]
        return [part for part in parts if part.groups]

    def _of(self, is_wanted: Callable[[int], bool]) -> list[Group]:
        groups = [
            Group(plan, [each for each in entries if is_wanted(each.timer.job_id)]) for plan, entries in self.groups
        ]
        return [group for group in groups if group.entries]


def plan_firing(entries: Iterable[Entry], rules: Mapping[int, Rule], now_us: int) -> Planned:
    """Plan due timers. One fire of a job at a time: the next tick sees in the database what this one leaves open."""
    alike: dict[_Likeness, Group] = {}
    waiting: list[Group] = []
    unreadable: dict[int, str] = {}
    for entry in entries:
        timer = entry.timer
        try:
            if timer.kind != "tick":
                known = rules.get(timer.rule_id) if timer.kind == "queued" else None
                waiting.append(Group(_plan_waiting(timer, known), [entry]))
                continue
            rule = rules.get(timer.rule_id)
            if rule is None:
                unreadable[timer.job_id] = f"rule {timer.rule_id} is missing"
                continue
            jitter = jitter_offset(timer.job_id, timedelta(microseconds=rule.jitter_us)) if rule.jitter_us else _ZERO
            likeness = (timer.rule_id, timer.fire_at, timer.due_at, jitter)
            group = alike.get(likeness)
            if group is None:
                group = alike[likeness] = Group(_plan_tick(timer, rule, jitter, now_us), [])
        except (OSError, MemoryError):
            raise  # of the machine, not of the rule: it passes
        except Exception as error:  # noqa: BLE001 - whatever a rule does, its neighbours fire
            unreadable[timer.job_id] = f"rule {timer.rule_id} cannot be planned: {type(error).__name__}: {error}"
            continue
        group.entries.append(entry)
    return Planned([*alike.values(), *waiting], unreadable)


def _plan_tick(timer: Timer, rule: Rule, jitter: timedelta, now_us: int) -> Plan:
    decided = plan(rule, to_us(timer.fire_at), now_us, jitter_us=duration_us(jitter), most_fires=1)
    fire = decided.fires[0] if decided.fires else None
    next_fire_at = None if decided.next_us is None else from_us(decided.next_us)
    return Plan(
        kind=timer.kind,
        fire_at=timer.fire_at,
        due_at=timer.due_at,
        rule_id=timer.rule_id,
        run_at=None if fire is None else from_us(fire.fire_us),
        reason=None if fire is None else fire.reason.value,
        next_fire_at=next_fire_at,
        next_due_at=None if next_fire_at is None else next_fire_at + jitter,
        policy=rule.concurrent_policy.value,
        limit=rule.max_concurrent,
        gaps=tuple(
            Gap(from_us(gap.first_us), from_us(gap.last_us), gap.count, gap.reason.value) for gap in decided.gaps
        ),
        wait=_ZERO if fire is None else timedelta(microseconds=wait_us(fire.fire_us, decided.next_us)),
    )


def _plan_waiting(timer: Timer, rule: Rule | None) -> Plan:
    """A run that stands already: a retry, a manual run, a replay, or one that waits for the run before it."""
    fire_us = to_us(timer.fire_at)
    return Plan(
        kind=timer.kind,
        fire_at=timer.fire_at,
        due_at=timer.due_at,
        rule_id=timer.rule_id,
        run_at=timer.fire_at,
        reason=None,
        next_fire_at=None,
        next_due_at=None,
        policy=(rule.concurrent_policy if rule else _UNASKED).value,
        limit=rule.max_concurrent if rule else 1,
        wait=timedelta(microseconds=wait_us(fire_us, rule.ticks().next(fire_us) if rule else None)),
    )
