"""The catch-up after an outage: how many of its timers may fire, and what the log says of a large one.

Catch-up is what was due more than `OUTAGE` before a node took the partition, which nobody had held for as long. Timers
that are late for other reasons are not held back.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta

from evertick.domain.catch_up import CatchUpBudget
from evertick.domain.ids import PARTITIONS
from evertick.domain.schedule.instants import from_us
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.roles.scheduler.state import State
from evertick.store.engine.timers import Timer

logger = logging.getLogger("evertick.scheduler")

LARGE = 1_000
"""A catch-up of more timers than this is logged."""


class CatchUp:
    """The catch-up of one node, at `factor` times the normal rate; None: counted and not limited.

    `normal_rate`: the least that is normal each second, for all partitions together.
    """

    def __init__(self, state: State, factor: float | None, normal_rate: float) -> None:
        self._state = state
        self._normal_rate = normal_rate
        self._budget = None if factor is None else CatchUpBudget(factor, state.clock.now_us())
        self._found = 0
        self._fired = 0
        self._began_us: int | None = None

    def allowed(self, now_us: int) -> int | None:
        """How many timers of it may fire now; None: any number."""
        return None if self._budget is None else self._budget.allowed(now_us, self._floor)

    def is_limited(self, timer: Timer) -> bool:
        """Whether a timer is catch-up, and that has a rate."""
        return self._budget is not None and self._state.ownership.is_left(timer)

    def note_fired(self, entries: Sequence[PendingTimer]) -> int:
        """Timers fire, at the time of `allowed`. Returns how many of them are catch-up."""
        caught_up = self._count(entries)
        self._fired += caught_up
        if self._budget is not None:
            self._budget.spend(len(entries) - caught_up, caught_up)
        return caught_up

    def note_put_off(self, entries: Sequence[PendingTimer]) -> int:
        """Of those that were to fire, these did not yet. Returns how many of them are catch-up."""
        caught_up = self._count(entries)
        self._fired -= caught_up
        if self._budget is not None:
            self._budget.spend(caught_up - len(entries), -caught_up)
        return caught_up

    def _count(self, entries: Sequence[PendingTimer]) -> int:
        return sum(map(self._state.ownership.is_left, (timer for _, timer in entries)))

    def note_found(self, timers: int) -> None:
        """So many timers, or more, were left in partitions that were just taken."""
        self._found += timers
        if self._found > LARGE and self._began_us is None:
            self._began_us = now_us = self._state.clock.now_us()
            if self._budget is None:
                logger.warning("catch-up begins: at least %d timers were left from an outage", self._found)
                return
            rate = self._budget.rate(self._floor)
            logger.warning(
                "catch-up begins: at least %d timers were left from an outage; up to %d fire each second, so that it"
                " takes until about %s",
                *(self._found, rate, (from_us(now_us) + timedelta(seconds=self._found / rate)).isoformat()),
            )

    def note_over(self) -> None:
        """Nothing is left of it."""
        if self._began_us is not None:
            took = timedelta(microseconds=self._state.clock.now_us() - self._began_us)
            logger.warning("catch-up ended: %d timers fired in %s", self._fired, took)
        self._found = self._fired = 0
        self._began_us = None

    @property
    def _floor(self) -> float:
        """The node's part of the least normal rate."""
        return self._normal_rate * len(self._state.ownership.epochs) / PARTITIONS
