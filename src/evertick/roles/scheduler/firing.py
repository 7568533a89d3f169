"""Fires due timers in batches: plan in the domain, then one fenced statement."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from evertick.domain.schedule.instants import SECOND_US, from_us, to_us
from evertick.roles.scheduler.agenda import Entry
from evertick.roles.scheduler.planning import Planned, plan_firing
from evertick.roles.scheduler.state import State
from evertick.store import timers
from evertick.store.database import was_rolled_back
from evertick.store.timers import WAIT, Fired, Timer

logger = logging.getLogger("evertick.scheduler")

BATCH = 4_000
"""Timers per statement: large enough to share its cost, small enough for a takeover not to wait for long."""
FIRST_BATCH = 250
"""After a pause: so that the first of very many that are due at one instant do not wait for the others."""
COLLECTED = 64_000
"""So many timers at most leave the wheel before a batch is fired: some 60 ms. All at once, if it were a million, would
take a second; with less, one tenant's flood would hide what another's is due behind it for longer."""
COLLECTED_FIRST = 2_000
"""As `FIRST_BATCH`: before the first batch after a pause."""

IDLE_SECONDS = 1.0
IN_DOUBT_SECONDS = 0.05


@dataclass(slots=True)
class FiringFigures:
    """What was done since the start."""

    fired: int = 0
    refused: int = 0
    """Timers that were not as planned any more: edited, paused, deleted, or no longer ours."""
    waited: int = 0


class Firing:
    """Takes due timers from the agenda, and puts back what stands after the statement."""

    def __init__(self, state: State, *, horizon: timedelta, ready: Callable[[Iterable[int]], None]) -> None:
        self._state = state
        self._horizon = horizon
        self._ready = ready
        self._batch = FIRST_BATCH
        self.figures = FiringFigures()

    async def step(self) -> float:
        """Fire one batch, and say after how many seconds the next is due."""
        await self.fire_batch()
        if self._state.holdings.in_doubt:
            return IN_DOUBT_SECONDS
        if self._state.agenda.due:
            return 0
        next_us = self._state.agenda.next_due_us()
        return IDLE_SECONDS if next_us is None else (next_us - self._state.clock.now_us()) / SECOND_US

    async def fire_batch(self) -> int:
        """Fire up to a batch of due timers. Returns how many it tried."""
        async with self._state.holdings.writing:
            if self._state.holdings.in_doubt:
                return 0
            now_us = self._state.clock.now_us()
            most = COLLECTED_FIRST if self._batch == FIRST_BATCH else COLLECTED
            self._state.agenda.collect(now_us, self._state.rulebook.weights, most)
            entries = self._state.agenda.take(self._batch, now_us)
            self._batch = min(2 * self._batch, BATCH) if len(entries) == self._batch else FIRST_BATCH
            if entries:
                await self._fire(entries, now_us)
        return len(entries)

    async def _fire(self, entries: list[Entry], now_us: int) -> None:
        try:
            await self._state.rulebook.learn(self._state.pool, {entry.timer.rule_id for entry in entries} - {0})
            planned = plan_firing(entries, self._state.rulebook.known, now_us)
            await self._quarantine(planned, entries)
            fired = await self._write(planned)
        except BaseException:
            for entry in entries:
                self._state.agenda.again(entry, now_us)
            raise
        finally:
            self._state.agenda.let_go()
        self._state.clock.observe(fired.now_at)
        self._state.holdings.last_seq = max(self._state.holdings.last_seq, fired.last_seq)
        self._follow(planned, fired)
        if fired.lane_ids:
            self._ready(fired.lane_ids)

    async def _write(self, planned: Planned) -> Fired:
        try:
            return await timers.fire(
                self._state.pool,
                self._state.node,
                self._state.holdings.epochs,
                self._state.holdings.last_seq,
                planned.firing,
            )
        except BaseException as error:
            # Unless the server itself said that nothing was done, the statement may yet be under way there.
            self._state.holdings.in_doubt = not was_rolled_back(error)
            raise

    async def _quarantine(self, planned: Planned, entries: list[Entry]) -> None:
        """Pause jobs whose rule makes no sense, one statement for each reason."""
        if not planned.unreadable:
            return
        broken = [entry for entry in entries if entry.timer.job_id in planned.unreadable]
        by_reason: dict[tuple[str, bool], list[Timer]] = {}
        for _, timer in broken:
            # Why it could not be read says more than that it is not there.
            reason = self._state.rulebook.unreadable.get(timer.rule_id, planned.unreadable[timer.job_id])
            by_reason.setdefault((reason, self._state.rulebook.is_missing(timer.rule_id)), []).append(timer)
        for (reason, is_missing), found in by_reason.items():
            paused = await timers.quarantine(self._state.pool, found, reason, is_missing=is_missing)
            if paused:
                logger.error("paused %d jobs: %s", paused, reason)
        for entry in broken:
            self._state.agenda.forget(entry)

    def _follow(self, planned: Planned, fired: Fired) -> None:
        """Bring the agenda up to date with what the statement did."""
        agenda = self._state.agenda
        horizon_at = from_us(self._state.clock.now_us()) + self._horizon
        standing = {*fired.refused, *fired.waiting, *fired.early}
        place = 0
        for plan, entries in planned.groups:
            next_fire_at, next_due_at = plan.next_fire_at, plan.next_due_at
            for entry in entries:
                place += 1
                if place in standing:
                    continue
                if next_fire_at is None or next_due_at is None or next_due_at >= horizon_at:
                    agenda.forget(entry)
                else:
                    agenda.settle(entry, entry.timer._replace(fire_at=next_fire_at, due_at=next_due_at))
        if standing:
            self._leave(planned.entries, fired)
        self.figures.fired += fired.runs
        self.figures.waited += len(fired.waiting)
        self.figures.refused += len(fired.refused)

    def _leave(self, entries: list[Entry], fired: Fired) -> None:
        """What the statement did not move."""
        agenda = self._state.agenda
        for place in fired.refused:
            agenda.forget(entries[place - 1])
        for place in fired.waiting:
            entry = entries[place - 1]
            agenda.settle(entry, entry.timer._replace(due_at=fired.now_at + WAIT))
        for place in fired.early:
            entry = entries[place - 1]
            agenda.again(entry, to_us(entry.timer.due_at))
