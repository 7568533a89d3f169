"""Fires due timers in batches: plan in the domain, send to the database, bring the agenda up to date.

Planning a batch leaves the event loop to others every few milliseconds. What is costly to plan is planned in the
background, outside of `writing`, and fires in a later batch.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from evertick.domain.schedule.instants import SECOND_US, from_us, to_us
from evertick.roles.scheduler.agenda import Entry
from evertick.roles.scheduler.background_planning import BackgroundPlanning
from evertick.roles.scheduler.planning import LOOP_STEPS, BatchPlanning, Planned
from evertick.roles.scheduler.sending import ASIDE_US, BUSY_US, Sending
from evertick.roles.scheduler.state import State
from evertick.runtime.event_loop import Slices
from evertick.runtime.loop import NotYet
from evertick.store import timers
from evertick.store.database import was_too_slow
from evertick.store.timers import Fired

logger = logging.getLogger("evertick.scheduler")

BATCH = 4_000
"""Timers per statement: large enough to share its cost, small enough for a takeover not to wait for long."""
FIRST_BATCH = 250
"""After a pause: so that the first of very many that are due at one instant do not wait for the others."""
SMALLEST_BATCH = 50
"""However often a batch was too much for the time that a statement has."""
COLLECTED = 64_000
"""So many timers at most leave the wheel before a batch is fired: some 60 ms. All at once, if it were a million, would
take a second; with less, one tenant's flood would hide what another's is due behind it for longer."""
COLLECTED_FIRST = 2_000
"""As `FIRST_BATCH`: before the first batch after a pause."""
PLANNING_SECONDS = 0.05
"""So long a batch is planned: a thousand distinct rules. The others are postponed to the next batch."""

IDLE_SECONDS = 1.0
IN_DOUBT_SECONDS = 0.05


@dataclass(slots=True)
class FiringFigures:
    """What was done since the start."""

    fired: int = 0
    refused: int = 0
    """Timers that were not as planned any more: edited, paused, deleted, or no longer ours."""
    waited: int = 0
    busy: int = 0
    """Timers that someone else had locked, or something that they would change."""


class Firing:
    """Takes due timers from the agenda, and puts back what stands after the statement."""

    def __init__(
        self,
        state: State,
        *,
        horizon: timedelta,
        ready: Callable[[Iterable[int]], None],
        woken: Callable[[Iterable[int]], None],
        planned: Callable[[], None],
    ) -> None:
        self._state = state
        self._horizon = horizon
        self._ready = ready
        self._woken = woken
        self._batch = FIRST_BATCH
        self._most = BATCH
        self._sending = Sending(state, self._settle)
        self.background = BackgroundPlanning(state, planned)
        self.figures = FiringFigures()

    async def step(self) -> float:
        """Fire one batch, and say after how many seconds the next is due."""
        await self.fire_batch()
        if self._state.holdings.in_doubt:
            return NotYet(IN_DOUBT_SECONDS)
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
            most = COLLECTED_FIRST if self._batch <= FIRST_BATCH else COLLECTED
            self._state.agenda.collect(now_us, self._state.rulebook.weights, most)
            size = min(self._batch, self._most)
            entries = self._state.agenda.take(size, now_us)
            self._batch = min(2 * size, BATCH) if len(entries) == size else FIRST_BATCH
            if entries:
                await self._fire(entries, now_us)
        return len(entries)

    async def _fire(self, entries: list[Entry], now_us: int) -> None:
        try:
            rule_ids = {entry.timer.rule_id for entry in entries} - {0}
            await self._state.rulebook.learn(self._state.firing, rule_ids)
            planning = await self._plan(entries, rule_ids, now_us)
            planned = planning.planned
            was_clean = not planned.groups or await self._sending.send(planned)
            await self._quarantine(planned, entries, now_us)
            self._put_off(planning)
        except BaseException as error:
            if isinstance(error, TimeoutError) or was_too_slow(error):
                self._resize(len(entries), is_less=True)
            for entry in entries:  # those that were fired by now have been settled, and stay so
                self._state.agenda.again(entry, now_us)
            raise
        else:
            self._resize(len(entries), is_less=not was_clean)
            if planning.postponed:
                # What is postponed has lost its tenant's turn: take no more than can be planned.
                self._most = min(self._most, max(1, len(entries) - len(planning.postponed)))
        finally:
            self._state.agenda.let_go()

    async def _plan(self, entries: list[Entry], rule_ids: Iterable[int], now_us: int) -> BatchPlanning:
        book = self._state.rulebook
        # A copy: between two slices somebody else may let go of rules.
        rules = {rule_id: book.known[rule_id] for rule_id in rule_ids if rule_id in book.known}
        planning = BatchPlanning(rules, now_us, steps=LOOP_STEPS, costly=book.costly, prepared=self.background.prepared)
        slices, until = Slices(), time.perf_counter() + PLANNING_SECONDS
        for _ in planning.run(entries):
            if slices.is_over:
                await slices.pause()
                planning.is_full = time.perf_counter() > until
        return planning

    def _put_off(self, planning: BatchPlanning) -> None:
        """What was not planned. Last, so that each timer is either tried again after an error or put off here."""
        for likeness in planning.background:
            self._state.rulebook.note_steps(likeness[0], LOOP_STEPS + 1)
        self.background.add(planning.background)
        for entry in planning.postponed:
            self._state.agenda.again(entry, to_us(entry.timer.due_at))

    def _resize(self, tried: int, *, is_less: bool) -> None:
        """Half as many at once after a time-out, twice as many when it went well."""
        self._most = max(SMALLEST_BATCH, tried // 2) if is_less else min(2 * self._most, BATCH)

    def _settle(self, planned: Planned, fired: Fired) -> None:
        self._state.clock.observe(fired.now_at)
        self._state.holdings.last_seq = max(self._state.holdings.last_seq, fired.last_seq)
        self._follow(planned, fired)
        if fired.lane_ids:
            self._ready(fired.lane_ids)

    async def _quarantine(self, planned: Planned, entries: list[Entry], now_us: int) -> None:
        """Pause jobs whose rule makes no sense, one statement for each reason. After the others have fired."""
        if not planned.unreadable:
            return
        broken = [entry for entry in entries if entry.timer.job_id in planned.unreadable]
        by_reason: dict[tuple[str, bool], dict[int, int]] = {}
        for _, timer in broken:
            # Why it could not be read says more than that it is not there.
            reason = self._state.rulebook.unreadable.get(timer.rule_id, planned.unreadable[timer.job_id])
            alike = by_reason.setdefault((reason, self._state.rulebook.is_missing(timer.rule_id)), {})
            alike[timer.job_id] = timer.rule_id
        locked: set[int] = set()
        for (reason, is_missing), rule_ids in by_reason.items():
            done = await timers.quarantine(self._state.firing, rule_ids, reason, is_missing=is_missing)
            locked |= done.locked
            if done.paused:
                logger.error("paused %d jobs: %s", done.paused, reason)
        for entry in broken:
            if entry.timer.job_id in locked:
                self._state.agenda.again(entry, now_us + ASIDE_US)
            else:
                self._state.agenda.forget(entry)

    def _follow(self, planned: Planned, fired: Fired) -> None:
        """Bring the agenda up to date with what the statement did."""
        agenda = self._state.agenda
        horizon_at = from_us(self._state.clock.now_us()) + self._horizon
        standing = {*fired.refused, *fired.waiting, *fired.early, *fired.busy}
        unblocked: list[int] = []
        place = 0
        for plan, entries in planned.groups:
            next_fire_at, next_due_at, is_queued = plan.next_fire_at, plan.next_due_at, plan.kind == "queued"
            for entry in entries:
                place += 1
                if place in standing:
                    continue
                if next_fire_at is None or next_due_at is None or next_due_at >= horizon_at:
                    agenda.forget(entry)
                else:
                    agenda.settle(entry, entry.timer._replace(fire_at=next_fire_at, due_at=next_due_at))
                if is_queued:
                    unblocked.append(entry.timer.job_id)
        if standing:
            self._leave(planned, fired)
        if unblocked:
            self._woken(unblocked)  # the next in line was not read while this one stood before it
        self.figures.fired += fired.runs
        self.figures.waited += len(fired.waiting)
        self.figures.refused += len(fired.refused)
        self.figures.busy += len(fired.busy)

    def _leave(self, planned: Planned, fired: Fired) -> None:
        """What the statement did not move."""
        agenda = self._state.agenda
        entries = planned.entries
        waits = [plan.wait for plan, group in planned.groups for _ in group] if fired.waiting else []
        for place in fired.refused:
            agenda.forget(entries[place - 1])
        for place in fired.waiting:
            entry = entries[place - 1]
            agenda.settle(entry, entry.timer._replace(due_at=fired.now_at + waits[place - 1]))
        for place in fired.early:
            entry = entries[place - 1]
            agenda.again(entry, to_us(entry.timer.due_at))
        now_us = to_us(fired.now_at)
        for place in fired.busy:
            entry = entries[place - 1]
            late_us = now_us - to_us(entry.timer.due_at)
            agenda.again(entry, now_us + min(ASIDE_US, max(BUSY_US, late_us // 2)))
