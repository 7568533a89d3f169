"""Fires due timers in batches: plan in the domain, send to the database, update the pending timers.

Planning a batch leaves the event loop to others every few milliseconds. What is costly to plan is planned in the
background, outside of `writing`, and fires in a later batch.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta

from evertick.domain.resting import Resting
from evertick.domain.schedule.instants import SECOND_US, from_us, to_us
from evertick.roles.scheduler.background_planning import BackgroundPlanning
from evertick.roles.scheduler.backpressure import Backpressure
from evertick.roles.scheduler.batch_size import BATCH, BatchSize
from evertick.roles.scheduler.catching_up import CatchUp
from evertick.roles.scheduler.fire_counts import count_fired
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.roles.scheduler.planning import LOOP_STEPS, BatchPlanning, PlannedBatch
from evertick.roles.scheduler.sending import ASIDE_US, BUSY_US, Sending
from evertick.roles.scheduler.spans import FireSpans
from evertick.roles.scheduler.state import State
from evertick.runtime.logs import jobs_fields
from evertick.runtime.loop import NotYet, Slices
from evertick.store.database import was_too_slow
from evertick.store.engine import timers
from evertick.store.engine.timers import Fired

logger = logging.getLogger("evertick.scheduler")

COLLECTED = 64_000
"""The most timers that leave the wheel before a batch is fired, which takes some 60 ms. A million at once would take a
second; with fewer, many timers of one tenant would hide those of another tenant for longer."""
FIRST_COLLECTED = 2_000
"""Before the first batch after a pause, which is small."""
PLANNING_SECONDS = 0.05
"""The time for planning a batch: about a thousand distinct rules. Other timers are postponed to the next batch."""

IDLE_SECONDS = 1.0
IN_DOUBT_SECONDS = 0.05
FEW = 8
"""A batch of no more timers, with nothing else due, shows how soon they fire as a rule."""
CATCH_UP_SECONDS = 0.05
"""Between two batches of a catch-up, which has to wait for its rate."""


@dataclass(slots=True)
class FiringCounters:
    """What was done since the start."""

    fired: int = 0
    refused: int = 0
    """Timers that were not as planned any more: edited, paused, deleted, or of a lost partition."""
    waited: int = 0
    busy: int = 0
    """Timers that another session had locked, or whose run another session had locked."""
    caught_up: int = 0
    """Timers of catch-up that fired."""


class Firing:
    """Takes due timers, and puts back those that are pending after the statement."""

    def __init__(  # noqa: PLR0913 - what it works with, and whom it tells
        self,
        state: State,
        pressure: Backpressure,
        *,
        horizon: timedelta,
        ready: Callable[[Iterable[int]], None],
        woken: Callable[[Iterable[int]], None],
        planned: Callable[[], None],
        updated: Callable[[], None],
        waiting: Callable[[Collection[int]], None],
        catch_up: CatchUp,
    ) -> None:
        self._state = state
        self._pressure = pressure
        self._horizon = horizon
        self._ready = ready
        self._woken = woken
        self._updated = updated
        self._waiting = waiting
        self._catch_up = catch_up
        self._size = BatchSize()
        self._are_few = False  # the last batch had timers of tenants that have few, and no others
        self._resting = Resting()
        self._rests_until = 0.0  # monotonic: until then only tenants that have few are served
        self._sending = Sending(state, self._apply)
        self._spans = FireSpans(state)
        self.background = BackgroundPlanning(state, planned)
        self.counters = FiringCounters()

    async def step(self) -> float:
        """Fire one batch, and say after how many seconds the next is due."""
        await self.fire_batch(is_resting=time.monotonic() < self._rests_until)
        if self._state.ownership.in_doubt:
            return NotYet(IN_DOUBT_SECONDS)
        next_us = self._state.pending.next_due_us()
        seconds = IDLE_SECONDS if next_us is None else (next_us - self._state.clock.now_us()) / SECOND_US
        if self._is_more_due or self._pressure.is_going:
            return max(0, min(seconds, self._rests_until - time.monotonic()))
        return min(seconds, CATCH_UP_SECONDS) if self._state.pending.catch_up else seconds

    @property
    def _is_more_due(self) -> bool:
        """Whether more is due than what the rate of a catch-up holds back."""
        return self._state.pending.due > self._state.pending.catch_up

    async def fire_batch(self, *, is_resting: bool = False) -> int:
        """Fire up to a batch of due timers, but for those of full queues. Returns how many were due.

        `is_resting`: only of tenants that have few.
        """
        async with self._state.ownership.writing:
            if self._state.ownership.in_doubt:
                return 0
            if not self._pressure.is_read:
                await self._pressure.read_first()
            now_us = self._state.clock.now_us()
            self._pressure.release(BATCH)
            most = FIRST_COLLECTED if self._size.is_first else COLLECTED
            self._state.pending.collect(now_us, self._state.rule_cache.weights, most, self._state.ownership.outage_us)
            began = time.monotonic()
            size = self._size.next(began)
            taken = self._take(size, now_us, is_resting=is_resting)
            if taken:
                entries = self._state.pending.put_in_flight(self._pressure.admit(taken))
                self.counters.caught_up += self._catch_up.note_fired(entries)
                await self._fire(entries, now_us)
                self._catch_up.note_done()
                tenants = len({entry.timer.tenant_id for entry in taken}) + self._are_few
                ended = time.monotonic()
                self._size.fired(len(entries), tenants, began, ended)
                self._rest(entries, began, ended)
        return len(taken)

    def _take(self, size: int, now_us: int, *, is_resting: bool) -> list[PendingTimer]:
        """The timers of the next batch. Every second one is short while one tenant has much due and others little."""
        if (is_resting or not self._are_few) and (few := self._state.pending.take_few(size, now_us)):
            self._are_few = True
            return few
        self._are_few = False
        if is_resting:
            return []
        taken = self._state.pending.take(size, now_us, self._catch_up.allowed(now_us))
        self._size.taken(size, is_more_due=len(taken) == size or self._is_more_due)
        return taken

    def _rest(self, entries: list[PendingTimer], began: float, ended: float) -> None:
        """Rest after a batch of tenants with much due, if such batches delay the others."""
        is_alone = not self._are_few and not self._state.pending.due and len(entries) <= FEW
        if not self._are_few and not is_alone:
            self._rests_until = ended + self._resting.after(ended - began, ended)
            return
        # What waited for room in its queue was not delayed by a flood.
        timer = next((timer for _, timer in entries if not self._pressure.is_full(timer.queue_id)), None)
        if timer is not None:
            delay = max(0, self._state.clock.now_us() - to_us(timer.due_at)) / SECOND_US
            (self._resting.note_alone if is_alone else self._resting.note_beside)(delay, ended)

    async def _fire(self, entries: list[PendingTimer], now_us: int) -> None:
        try:
            rule_ids = {entry.timer.rule_id for entry in entries} - {0}
            await self._state.rule_cache.load(self._state.firing, rule_ids)
            planning = await self._plan(entries, rule_ids, now_us)
            planned = planning.planned
            await self._spans.prepare(planned)
            was_clean = not planned.groups or await self._sending.send(planned)
            await self._quarantine(planned, entries, now_us)
            self._put_off(planning)
        except BaseException as error:
            self._pressure.settle(is_known=False)
            if isinstance(error, TimeoutError) or was_too_slow(error):
                self._size.halve(len(entries))
            for entry in entries:  # those that were fired by now have moved, and stay so
                self._state.pending.retry_at(entry, now_us)
            raise
        else:
            self._pressure.settle(is_known=True)
            if was_clean:
                self._size.went_well()
            else:
                self._size.halve(len(entries))
            if planning.postponed:
                # A postponed timer has used up its place in its tenant's turn: take no more than can be planned.
                self._size.limit(len(entries) - len(planning.postponed))
        finally:
            self._state.pending.release()

    async def _plan(self, entries: list[PendingTimer], rule_ids: Iterable[int], now_us: int) -> BatchPlanning:
        cache = self._state.rule_cache
        # A copy: between two slices another loop may drop some from the cache.
        rules = {rule_id: cache.known[rule_id] for rule_id in rule_ids if rule_id in cache.known}
        planning = BatchPlanning(
            rules, now_us, steps=LOOP_STEPS, costly=cache.costly, prepared=self.background.prepared
        )
        slices, until = Slices(), time.perf_counter() + PLANNING_SECONDS
        for _ in planning.run(entries):
            if slices.is_over:
                paused = time.perf_counter()
                planning.is_full = paused > until
                await slices.pause()
                until += time.perf_counter() - paused  # what others did meanwhile does not count
        return planning

    def _put_off(self, planning: BatchPlanning) -> None:
        """Put off what was not planned. Last, so that a timer is either tried again after an error or put off here."""
        for group_key in planning.background:
            self._state.rule_cache.note_steps(group_key[0], LOOP_STEPS + 1)
        self.background.add(planning.background)
        # If nothing of a tenant was planned, its turn was for nothing: its first timer does not wait for another turn.
        served = {entry.timer.tenant_id for entry in planning.planned.entries} if planning.postponed else set()
        for entry in planning.postponed:
            if entry.timer.tenant_id in served:
                self._state.pending.retry_at(entry, to_us(entry.timer.due_at))
            else:
                self._state.pending.retry_first(entry)
                served.add(entry.timer.tenant_id)
        put_off = [*planning.postponed, *(entry for group in planning.background.values() for entry in group)]
        self.counters.caught_up -= self._catch_up.note_put_off(put_off)

    def _apply(self, planned: PlannedBatch, fired: Fired) -> None:
        self._state.clock.observe(fired.now_at)
        self._state.ownership.last_seq = max(self._state.ownership.last_seq, fired.last_seq)
        self._update_pending(planned, fired)
        self._spans.add(planned, fired)
        self._state.fired_jobs.add(planned.ticked_jobs)
        if fired.lane_ids:
            self._pressure.added(fired.lane_ids, fired.lane_runs)
            self._ready(fired.lane_ids)
        self._waiting(fired.gate_ids)

    async def _quarantine(self, planned: PlannedBatch, entries: list[PendingTimer], now_us: int) -> None:
        """Pause jobs whose rule cannot be planned, one statement for each reason. After the others have fired."""
        if not planned.unreadable:
            return
        broken = [entry for entry in entries if entry.timer.job_id in planned.unreadable]
        by_reason: dict[tuple[str, bool], dict[int, int]] = {}
        for _, timer in broken:
            # The reason why it could not be read says more than that it is missing.
            reason = self._state.rule_cache.unreadable.get(timer.rule_id, planned.unreadable[timer.job_id])
            alike = by_reason.setdefault((reason, self._state.rule_cache.is_missing(timer.rule_id)), {})
            alike[timer.job_id] = timer.rule_id
        locked: set[int] = set()
        for (reason, is_missing), rule_ids in by_reason.items():
            done = await timers.quarantine(self._state.firing, rule_ids, reason, is_missing=is_missing)
            locked.update(done.locked)
            if done.paused:
                logger.error("paused %d jobs: %s", done.paused, reason, extra=jobs_fields(rule_ids))
        for entry in broken:
            if entry.timer.job_id in locked:
                self._state.pending.retry_at(entry, now_us + ASIDE_US)
            else:
                self._state.pending.forget(entry)

    def _update_pending(self, planned: PlannedBatch, fired: Fired) -> None:
        """Update the pending timers by what the statement did."""
        pending = self._state.pending
        horizon_at = from_us(self._state.clock.now_us()) + self._horizon
        unmoved = {*fired.refused, *fired.waiting, *fired.early, *fired.busy}
        unblocked: list[int] = []
        position = 0
        for plan, entries in planned.groups:
            next_fire_at, next_due_at, is_queued = plan.next_fire_at, plan.next_due_at, plan.kind == "queued"
            for entry in entries:
                position += 1
                if position in unmoved:
                    continue
                if next_fire_at is None or next_due_at is None or next_due_at >= horizon_at:
                    pending.forget(entry)
                else:
                    pending.move(entry, entry.timer._replace(fire_at=next_fire_at, due_at=next_due_at))
                if is_queued:
                    unblocked.append(entry.timer.job_id)
        if unmoved:
            self._apply_unmoved(planned, fired)
        if unblocked:
            self._woken(unblocked)  # the next queued run is not read while this one waits before it
        self._updated()
        count_fired(planned.groups, fired)
        self.counters.fired += fired.runs
        self.counters.waited += len(fired.waiting)
        self.counters.refused += len(fired.refused)
        self.counters.busy += len(fired.busy)

    def _apply_unmoved(self, planned: PlannedBatch, fired: Fired) -> None:
        """What the statement did not move."""
        pending = self._state.pending
        entries = planned.entries
        unmoved = [entries[position - 1] for position in (*fired.refused, *fired.waiting, *fired.early, *fired.busy)]
        self.counters.caught_up -= self._catch_up.note_put_off(unmoved)
        waits = [plan.wait for plan, group in planned.groups for _ in group] if fired.waiting else []
        for position in fired.refused:
            pending.forget(entries[position - 1])
        for position in fired.waiting:
            entry = entries[position - 1]
            pending.move(entry, entry.timer._replace(due_at=fired.now_at + waits[position - 1]))
        for position in fired.early:
            entry = entries[position - 1]
            pending.retry_at(entry, to_us(entry.timer.due_at))
        now_us = to_us(fired.now_at)
        for position in fired.busy:
            entry = entries[position - 1]
            late_us = now_us - to_us(entry.timer.due_at)
            pending.retry_at(entry, now_us + min(ASIDE_US, max(BUSY_US, late_us // 2)))
