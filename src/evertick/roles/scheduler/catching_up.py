"""The catch-up after an outage: how many of its timers may fire, and what log and audit log say of a large one.

Catch-up is what was due more than `OUTAGE` before a node took the partition, which nobody had held for as long. Timers
that are late for other reasons are not held back.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta

from evertick.domain.catch_up import CatchUpBudget
from evertick.domain.ids import PARTITIONS
from evertick.domain.schedule.instants import SECOND_US, from_us
from evertick.metrics.catalog import CAUGHT_UP
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.roles.scheduler.state import State
from evertick.store.engine.timers import Timer
from evertick.store.tenants import audit
from evertick.store.tenants.audit import AuditRecord

logger = logging.getLogger("evertick.scheduler")

LARGE = 1_000
"""A catch-up of more timers than this is logged."""
OPERATORS = 1
"""The tenant of those who run the cluster: a catch-up concerns all tenants."""
ACTOR = "scheduler"
BEGAN, ENDED = "begin_catch_up", "end_catch_up"
"""What the audit log says of a large one."""


class CatchUp:
    """The catch-up of one node, at `factor` times the normal rate; None: counted and not limited.

    `normal_rate`: the least that is normal each second, for all partitions together.
    """

    def __init__(self, state: State, factor: float | None, normal_rate: float) -> None:
        self._state = state
        self._normal_rate = normal_rate
        self._budget = None if factor is None else CatchUpBudget(factor, state.clock.now_us())
        self._found: dict[int, int] = {}  # by partition
        self._fired = 0
        self._in_flight = 0
        self._began_us: int | None = None
        self._events: list[AuditRecord] = []

    def allowed(self, now_us: int) -> int | None:
        """How many timers of it may fire now; None: any number."""
        return None if self._budget is None else self._budget.allowed(now_us, self._floor)

    def is_limited(self, timer: Timer) -> bool:
        """Whether a timer is catch-up, and that has a rate."""
        return self._budget is not None and self._state.ownership.is_left(timer)

    def note_fired(self, entries: Sequence[PendingTimer]) -> int:
        """Timers fire, at the time of `allowed`. Returns how many of them are catch-up."""
        self._in_flight = self._spend(entries, 1)
        return self._in_flight

    def note_put_off(self, entries: Sequence[PendingTimer]) -> int:
        """Of those that were to fire, these did not. Returns how many of them are catch-up."""
        caught_up = self._spend(entries, -1)
        self._in_flight -= caught_up
        return caught_up

    def _spend(self, entries: Sequence[PendingTimer], sign: int) -> int:
        """Returns how many are catch-up."""
        held = self._state.ownership
        timers = [timer for _, timer in entries if held.follows(timer)]
        caught_up = sum(map(held.is_left, timers))
        if self._budget is not None:
            following = len(timers) - caught_up
            self._budget.spend(sign * (len(entries) - len(timers)), sign * caught_up, sign * following)
        return caught_up

    def note_done(self) -> None:
        """What fired is written."""
        self._fired += self._in_flight
        CAUGHT_UP.add(self._in_flight)
        self._in_flight = 0

    def note_found(self, counts: Mapping[int, int]) -> None:
        """So many timers, or more, were left in partitions that were just taken."""
        self._found |= counts
        found = sum(self._found.values())
        if found <= LARGE or self._began_us is not None:
            return
        self._began_us = now_us = self._state.clock.now_us()
        size = f"at least {found} timers were left from an outage"
        if self._budget is None:
            self._tell(BEGAN, "catch-up begins", size)
            return
        rate = self._budget.rate(self._floor)
        end_at = (from_us(now_us) + timedelta(seconds=found / rate)).isoformat(timespec="seconds")
        self._tell(
            BEGAN,
            "catch-up begins",
            f"{size}; up to {rate:.0f} fire each second, so that it takes until about {end_at}",
        )

    def note_over(self) -> None:
        """Nothing is left of it."""
        if self._began_us is not None:
            took = timedelta(seconds=round((self._state.clock.now_us() - self._began_us) / SECOND_US))
            self._tell(ENDED, "catch-up ended", f"{self._fired + self._in_flight} timers fired in {took}")
        self._found = {}
        self._fired = 0
        self._began_us = None

    async def record(self) -> None:
        """Write what is new about large catch-ups to the audit log."""
        if self._events:
            events = list(self._events)
            await audit.record_all(self._state.pool, events)
            del self._events[: len(events)]

    def _tell(self, action: str, what: str, details: str) -> None:
        logger.warning("%s: %s", what, details)
        subject = f"{self._state.node}: {details}"
        self._events.append(AuditRecord(OPERATORS, ACTOR, action, subject, None))

    @property
    def _floor(self) -> float:
        """The node's part of the least normal rate."""
        return self._normal_rate * len(self._state.ownership.epochs) / PARTITIONS
