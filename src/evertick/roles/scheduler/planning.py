"""From due timers to what the fire statement is given. Pure: the domain decides once for all jobs that fire alike."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from evertick.domain.errors import ScheduleTooCostly
from evertick.domain.misfire import plan, wait_us
from evertick.domain.policies import ConcurrentPolicy
from evertick.domain.rule import Rule
from evertick.domain.schedule.budget import PLAN_STEPS, at_most
from evertick.domain.schedule.instants import SECOND_US, duration_us, from_us, to_us
from evertick.domain.schedule.schedule import SHORTEST_INTERVAL
from evertick.domain.stable_hash import jitter_offset
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.store.engine.timers import FirePlan, Firing, PlannedGap, Timer

_ZERO = timedelta(0)
_NO_POLICY = ConcurrentPolicy.SKIP
"""Stands for the policy of runs that no other run delays: retries, manual runs, replays."""

GroupKey: TypeAlias = tuple[int, datetime, datetime, timedelta]
"""What ticks of one group share, and so their plan: rule, fire time, due time and jitter."""

LOOP_STEPS = 500
"""A plan that takes more steps is made in the background thread: so many take about half a millisecond."""
FRESH_US = 5 * SECOND_US
"""A plan from the background is used for so long. A later firing would call ticks on time that are not."""


class Group(NamedTuple):
    """Due timers that fire alike."""

    plan: FirePlan
    entries: list[PendingTimer]

    @property
    def is_plain(self) -> bool:
        """Whether it changes only its timers and adds rows: it runs into no locks."""
        return (
            self.plan.kind == "tick"
            and self.plan.policy == ConcurrentPolicy.SKIP
            and self.plan.next_fire_at is not None
            and not self.plan.gaps
        )


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """What to fire, and jobs whose rule failed, with the reason."""

    groups: list[Group]
    unreadable: dict[int, str] = field(default_factory=dict)

    @property
    def firing(self) -> Firing:
        return [(group.plan, [entry.timer.job_id for entry in group.entries]) for group in self.groups]

    @property
    def entries(self) -> list[PendingTimer]:
        """In the order of their positions in the firing."""
        return [entry for group in self.groups for entry in group.entries]

    @property
    def ticked_jobs(self) -> list[int]:
        """The jobs of which a tick is to run."""
        ticks = (entries for plan, entries in self.groups if plan.kind == "tick" and plan.run_at is not None)
        return [entry.timer.job_id for entries in ticks for entry in entries]

    def split(self) -> "list[PlannedBatch]":
        """The plain ones and the others, or two halves of one kind; nothing for a single timer."""
        plain = [group for group in self.groups if group.is_plain]
        if plain and len(plain) < len(self.groups):
            return [PlannedBatch(plain), PlannedBatch([group for group in self.groups if not group.is_plain])]
        half = {entry.key for entry in self.entries[: len(self.entries) // 2]}
        return self._split(lambda entry: entry.key not in half) if half else []

    def split_off(self, job_ids: set[int]) -> "list[PlannedBatch]":
        """Split into all but some jobs, and those jobs; without empty parts."""
        return self._split(lambda entry: entry.timer.job_id not in job_ids)

    def _split(self, is_first: Callable[[PendingTimer], bool]) -> "list[PlannedBatch]":
        parts = [PlannedBatch(self._of(is_first)), PlannedBatch(self._of(lambda entry: not is_first(entry)))]
        return [part for part in parts if part.groups]

    def _of(self, is_wanted: Callable[[PendingTimer], bool]) -> list[Group]:
        groups = [Group(plan, [each for each in entries if is_wanted(each)]) for plan, entries in self.groups]
        return [group for group in groups if group.entries]


class PreparedPlan(NamedTuple):
    """The plan of ticks that fire alike, or the reason why there is none, with the steps and the time of planning."""

    plan: FirePlan | None
    failure: str
    steps: int
    planned_us: int

    def is_fresh(self, now_us: int) -> bool:
        return 0 <= now_us - self.planned_us <= FRESH_US


class BatchPlanning:
    """Plans the due timers of one batch: one plan for all that fire alike, each of so many steps at most.

    What takes more steps is to be planned in the `background`. Once the batch `is_full`, what needs a further plan is
    `postponed` to the next batch.
    """

    def __init__(
        self,
        rules: Mapping[int, Rule],
        now_us: int,
        *,
        steps: int = PLAN_STEPS,
        costly: Container[int] = (),
        prepared: Mapping[GroupKey, PreparedPlan] = MappingProxyType({}),
    ) -> None:
        self._rules = rules
        self._now_us = now_us
        self._steps = steps
        self._costly = costly
        self._prepared = prepared
        self._ticks: list[Group] = []
        self._waiting: list[Group] = []
        self._failed: list[tuple[str, list[PendingTimer]]] = []
        self.background: dict[GroupKey, list[PendingTimer]] = {}
        self.postponed: list[PendingTimer] = []
        self.is_full = False

    @property
    def planned(self) -> PlannedBatch:
        unreadable = {entry.timer.job_id: reason for reason, entries in self._failed for entry in entries}
        return PlannedBatch([*self._ticks, *self._waiting], unreadable)

    def run(self, entries: Iterable[PendingTimer]) -> Iterator[None]:
        """Plan timers in this order. Yields after each plan that may have taken a while: other tasks can run."""
        rules = self._rules
        alike: dict[GroupKey, list[PendingTimer]] = {}
        for entry in entries:
            timer = entry.timer
            rule = rules.get(timer.rule_id)
            if timer.kind != "tick":
                self._plan_waiting(entry, rule if timer.kind == "queued" else None)
                yield
            elif rule is None:
                self._failed.append((f"rule {timer.rule_id} is missing", [entry]))
            else:
                jitter_us = rule.jitter_us
                jitter = jitter_offset(timer.job_id, timedelta(microseconds=jitter_us)) if jitter_us else _ZERO
                group_key = (timer.rule_id, timer.fire_at, timer.due_at, jitter)
                those = alike.get(group_key)
                if those is None:
                    those = alike[group_key] = self._plan_ticks(group_key, rule)
                    yield
                those.append(entry)

    def _plan_ticks(self, group_key: GroupKey, rule: Rule) -> list[PendingTimer]:
        """Plan ticks that fire alike, and return the list that they belong to."""
        if self.is_full:
            return self.postponed
        made = self._made(group_key, rule)
        if made is None:
            return self.background.setdefault(group_key, [])
        entries: list[PendingTimer] = []
        if made.plan is None:
            self._failed.append((made.failure, entries))
        else:
            self._ticks.append(Group(made.plan, entries))
        return entries

    def _made(self, group_key: GroupKey, rule: Rule) -> PreparedPlan | None:
        # Even if the rule counts as cheap by now: another plan of it may have taken fewer steps than this one.
        prepared = self._prepared.get(group_key) if self._prepared else None
        if prepared is not None and prepared.is_fresh(self._now_us):
            return prepared
        if group_key[0] in self._costly:
            return None
        try:
            return make_plan(group_key, rule, self._now_us, self._steps)
        except ScheduleTooCostly:
            return None

    def _plan_waiting(self, entry: PendingTimer, rule: Rule | None) -> None:
        try:
            self._waiting.append(Group(_plan_waiting(entry.timer, rule), [entry]))
        except (OSError, MemoryError):
            raise  # a fault of the machine, not of the rule
        except Exception as error:  # noqa: BLE001 - a rule that fails must not stop the others
            self._failed.append((_failure(entry.timer.rule_id, error), [entry]))


def make_plan(group_key: GroupKey, rule: Rule, now_us: int, steps: int = PLAN_STEPS) -> PreparedPlan:
    """Plan ticks that fire alike: a plan, or why there is none.

    Raises ScheduleTooCostly where `steps` are used up and a plan in the background may have more.
    """
    with at_most(steps) as work:
        try:
            return PreparedPlan(_plan_tick(group_key, rule, now_us), "", work.spent, now_us)
        except (OSError, MemoryError):
            raise  # a fault of the machine, not of the rule
        except Exception as error:
            if isinstance(error, ScheduleTooCostly) and steps < PLAN_STEPS:
                raise
            return PreparedPlan(None, _failure(group_key[0], error), work.spent, now_us)


def _failure(rule_id: int, error: Exception) -> str:
    return f"rule {rule_id} cannot be planned: {type(error).__name__}: {error}"


def _plan_tick(group_key: GroupKey, rule: Rule, now_us: int) -> FirePlan:
    """One fire of a job at a time: the next tick sees in the database what this one leaves open."""
    rule_id, fire_at, due_at, jitter = group_key
    decided = plan(rule, to_us(fire_at), now_us, jitter_us=duration_us(jitter))
    fire = decided.fire
    next_fire_at = None if decided.next_us is None else from_us(decided.next_us)
    return FirePlan(
        kind="tick",
        fire_at=fire_at,
        due_at=due_at,
        rule_id=rule_id,
        run_at=None if fire is None else from_us(fire.fire_us),
        reason=None if fire is None else fire.reason.value,
        next_fire_at=next_fire_at,
        next_due_at=None if next_fire_at is None else next_fire_at + jitter,
        policy=rule.concurrent_policy.value,
        limit=rule.max_concurrent,
        gaps=tuple(
            PlannedGap(from_us(gap.first_us), from_us(gap.last_us), gap.count, gap.reason.value) for gap in decided.gaps
        ),
        wait=_ZERO if fire is None else timedelta(microseconds=wait_us(fire.fire_us, decided.next_us)),
    )


def _plan_waiting(timer: Timer, rule: Rule | None) -> FirePlan:
    """A run that exists already: a retry, a manual run, a replay, or a queued run."""
    fire_us = to_us(timer.fire_at)
    return FirePlan(
        kind=timer.kind,
        fire_at=timer.fire_at,
        due_at=timer.due_at,
        rule_id=timer.rule_id,
        run_at=timer.fire_at,
        reason=None,
        next_fire_at=None,
        next_due_at=None,
        policy=(rule.concurrent_policy if rule else _NO_POLICY).value,
        limit=rule.max_concurrent if rule else 1,
        wait=timedelta(microseconds=wait_us(fire_us, _soon_after(rule, fire_us) if rule else None)),
    )


def _soon_after(rule: Rule, fire_us: int) -> int | None:
    """The next tick, or an earlier time if the tick is costly to compute: only the length of a pause depends on it."""
    try:
        with at_most(LOOP_STEPS):
            return rule.ticks().next(fire_us)
    except ScheduleTooCostly:
        return fire_us + duration_us(SHORTEST_INTERVAL)
