"""A batch of due timers with their plans: what the fire statement is given, and how it is split around locks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from evertick.domain.policies import ConcurrentPolicy
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.store.engine.timers import FirePlan, Firing


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

    def split(self) -> "list[PlannedBatch]":
        """The plain ones and the others, or two halves of one kind; nothing for a single timer."""
        plain = [group for group in self.groups if group.is_plain]
        if plain and len(plain) < len(self.groups):
            return [PlannedBatch(plain), PlannedBatch([group for group in self.groups if not group.is_plain])]
        half = self.entries[: len(self.entries) // 2]
        return self.split_off({entry.timer.job_id for entry in half}) if half else []

    def split_off(self, job_ids: set[int]) -> "list[PlannedBatch]":
        """Split into all but some jobs, and those jobs; without empty parts."""
        parts = [
            PlannedBatch(self._of(lambda job_id: job_id not in job_ids)),
            PlannedBatch(self._of(job_ids.__contains__)),
        ]
        return [part for part in parts if part.groups]

    def _of(self, is_wanted: Callable[[int], bool]) -> list[Group]:
        groups = [
            Group(plan, [each for each in entries if is_wanted(each.timer.job_id)]) for plan, entries in self.groups
        ]
        return [group for group in groups if group.entries]
