"""Turns leases that ran out into `lost` outcomes and their retries, for exactly the attempts that have no outcome.

1. Look at the database's clock: after an outage or a step of it workers get time to extend leases (`LeaseGrace`).
2. Take over leases that have run out, see what is open in them, and end it. An attempt whose loss would end its run
   unless it was started, and that was not, is put back instead. What a consumer had for its run's timeout is
   `timed_out`. What another session has locked is tried again.
3. Once in a while let leases that the clock, set back, left too far ahead run from now on, and look for attempts that
   no lease covers (`Sweeping`).
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.domain.attempt import NotRecorded, Token
from evertick.domain.retry import Ended, GiveUp, NextStep
from evertick.domain.states import Outcome
from evertick.roles.scheduler.maintenance import ROUND_SECONDS, Sweeping
from evertick.roles.scheduler.state import State
from evertick.runtime.clock import now_of
from evertick.runtime.logs import runs_fields
from evertick.runtime.retry_decision import next_step
from evertick.store.database import is_lock_timeout, is_transient, was_rolled_back, was_too_slow
from evertick.store.engine import lanes, orphans, outcomes
from evertick.store.engine.lanes import PutBack
from evertick.store.engine.outcomes import Ending, LostAttempt

logger = logging.getLogger("evertick.scheduler")

LEASES_AT_ONCE = 100
"""Leases in a round. Each covers up to some hundred attempts."""
EVERY_SECONDS = 1.0
REBASE_SECONDS = 10.0
REBASED_AT_ONCE = 5_000
"""Unless the clock was seen to step, the next part follows with the next look."""
STEP_SECONDS = 1.0
"""A larger difference between the database's clock and the monotonic one, between two looks, is a step."""
WHOLE_SECONDS = 60.0
"""How often leases are looked for however long ago they ran out. Between, a look begins where the last one was sure to
see all: a pinned snapshot keeps what ran out before."""
LATE_COMMIT = timedelta(seconds=30)
"""A lease may be seen, or be free of locks, so long after it ran out. If it takes longer, a whole look finds it."""
UNREPORTED = "no consumer has reported the outcome within the job's timeout"
SILENCE_SECONDS = 5.0
"""The longest time between two looks, on a busy machine; longer where the grace is longer."""


class _Busy(NamedTuple):
    """Endings that another session has locked, and until when this node may record them."""

    worker: str
    endings: list[Ending]
    leases: list[int]
    until: float


class Reaping:
    """Takes over leases that ran out and ends what is open in them."""

    def __init__(
        self,
        state: State,
        *,
        lease_time: timedelta,
        woken: Callable[[Iterable[int]], None],
        left: Callable[[Collection[int]], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._lease_time = lease_time
        self._woken = woken
        self._left = left
        self._monotonic = monotonic
        self._grace = LeaseGrace(lease_time / 2, monotonic)
        self._sweeping = Sweeping(state.pool)
        self._rebased = 0
        self._rebase_due = self._sweep_due = 0.0
        self._whole_due = 0.0
        self._looked = frozenset[int]()  # partitions without any lease that ran out before this instant:
        self._looked_up_to: datetime | None = None
        self._busy: list[_Busy] = []
        self.lost = 0

    async def step(self) -> float:
        try:
            reaped = await self.reap()
            await self._sweep()
        except BaseException as error:
            # Else the database answered, with an error of its own.
            if is_transient(error) or not was_rolled_back(error):
                self._grace.interrupt()
            raise
        return 0 if reaped else EVERY_SECONDS

    async def reap(self) -> int:
        """One round; returns how many leases ran out."""
        asked = self._monotonic()
        now_at = await lanes.clock(self._state.pool)
        is_step = self._grace.look(self._state.ownership.epochs, now_at, asked)
        await self._rebase(at_once=is_step)
        await self._retry_busy()
        partitions = self._grace.over()
        found = await outcomes.reap(
            self._state.pool,
            self._state.node,
            partitions,
            lease_time=self._lease_time,
            most=LEASES_AT_ONCE,
            from_at=self._from_at(partitions, is_step=is_step),
            latest_at=self._grace.latest_at(),
        )
        reaped = len({each.lease_id for each in found})
        if reaped < LEASES_AT_ONCE:
            self._looked, self._looked_up_to = frozenset(partitions), now_at - LATE_COMMIT
        by_worker: dict[str, list[LostAttempt]] = {}
        for each in found:
            by_worker.setdefault(each.worker, []).append(each)
        for worker, lost in by_worker.items():
            await self._end(worker, lost)
        return reaped

    def _from_at(self, partitions: Collection[int], *, is_step: bool) -> datetime | None:
        """From when on to look for leases that ran out; None: for all."""
        now = self._monotonic()
        if is_step or now >= self._whole_due or not self._looked.issuperset(partitions):
            self._whole_due = now + WHOLE_SECONDS
            self._looked_up_to = None
        return self._looked_up_to

    async def _rebase(self, *, at_once: bool) -> None:
        now = self._monotonic()
        if not at_once and now < self._rebase_due:
            return
        self._rebase_due = now + REBASE_SECONDS
        count, is_over = 0, False
        if at_once:
            self._rebased = 0
        while not is_over:
            self._rebased, moved = await orphans.rebase(
                self._state.pool, list(self._state.ownership.epochs), after=self._rebased, most=REBASED_AT_ONCE
            )
            count += moved
            is_over = not (at_once and self._rebased)
        if count:
            logger.warning("%d leases were made before the database's clock was set back: they run from now on", count)

    async def _sweep(self) -> None:
        if self._monotonic() >= self._sweep_due:
            self._sweep_due = self._monotonic() + ROUND_SECONDS  # one that fails is not repeated at once
            self._sweep_due = self._monotonic() + await self._sweeping.sweep(self._grace.over())

    async def _end(self, worker: str, found: list[LostAttempt]) -> None:
        unstarted: list[LostAttempt] = []
        endings: list[Ending] = []
        for each in found:
            if each.lane_id is None:
                continue
            result = Outcome.TIMED_OUT if each.is_past_end else Outcome.LOST
            then = next_step(each.retry, each.job_id, each.fire_at, Ended(result, each.attempt))
            # Its loss would end its run although it was never started; its job is still there.
            if isinstance(then, GiveUp) and not each.is_marked and each.handler is not None:
                unstarted.append(each)
            else:
                endings.append(self._ending(each, result, then))
        await self._put_back(worker, unstarted)
        await self._record(worker, endings, list({each.lease_id for each in found}))

    def _ending(self, lost: LostAttempt, result: Outcome, then: NextStep) -> Ending:
        assert lost.lane_id is not None
        return Ending(
            lost.lane_id,
            lost.seq,
            lost.job_id,
            lost.fire_at,
            lost.spec_version,
            lost.reason,
            result.value,
            started_at=lost.started_at,
            finished_at=now_of(self._state.clock),
            error=UNREPORTED if lost.is_past_end else "the lease ran out: its worker was lost",
            then=then,
            is_listed=lost.is_listed,
        )

    async def _put_back(self, worker: str, lost: list[LostAttempt]) -> None:
        back = [
            PutBack(each.lane_id, each.seq, each.handler, deferrals=each.deferrals)
            for each in lost
            if each.lane_id is not None and each.handler is not None
        ]
        if back:
            await lanes.put_back(self._state.pool, self._state.node, back)
            logger.warning(
                "%d attempts of the lost worker %s had not been started: they are put back",
                len(back),
                worker,
                extra={"worker": worker} | runs_fields((each.job_id, each.fire_at) for each in lost),
            )

    async def _retry_busy(self) -> None:
        busy, self._busy = self._busy, []
        for each in busy:
            if self._monotonic() < each.until:  # else they end when this node's own lease is reaped
                await self._record(each.worker, each.endings, each.leases, each.until)

    async def _record(self, worker: str, endings: list[Ending], leases: list[int], until: float | None = None) -> None:
        # As long as this node certainly has the lease: after that another worker may have started the attempts.
        until = self._monotonic() + self._lease_time.total_seconds() / 2 if until is None else until
        stale, busy = await self._write(worker, endings, leases)
        if busy:
            rest = [ending for ending in endings if (ending.lane_id, ending.seq) in busy]
            self._busy.append(_Busy(worker, rest, leases, until))
        lost = len(endings) - len(stale) - len(busy)
        self.lost += lost
        if lost:
            ended = ((each.job_id, each.fire_at) for each in endings if (each.lane_id, each.seq) not in stale | busy)
            logger.warning("%d attempts of %s are lost", lost, worker, extra={"worker": worker} | runs_fields(ended))
            self._woken(ending.job_id for ending in endings)

    async def _write(self, worker: str, endings: Sequence[Ending], leases: list[int]) -> NotRecorded:
        try:
            return await outcomes.record(
                self._state.pool, worker, endings, leases, holder=self._state.node, left=self._left
            )
        except Exception as error:
            is_single = len(endings) == 1
            if is_single and is_lock_timeout(error):
                return NotRecorded(set(), {_token(endings[0])})
            if not endings or is_single or not (is_lock_timeout(error) or was_too_slow(error)):
                raise
        middle = len(endings) // 2
        # The leases stay: they run out in turn, with nothing open in them.
        first, second = [await self._write(worker, half, []) for half in (endings[:middle], endings[middle:])]
        return NotRecorded(first.stale | second.stale, first.busy | second.busy)


def _token(ending: Ending) -> Token:
    return ending.lane_id, ending.seq


class LeaseGrace:
    """Decides from when on a reaper may take leases that have run out.

    While the database was away, workers could not extend their leases although they live; when its clock is set
    forward, leases run out before they could. So a reaper waits until it has been in touch with the database for a
    while without interruption: in that time each live worker has extended its leases. Measured for each partition, by a
    monotonic clock.
    """

    def __init__(self, span: timedelta, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds = span.total_seconds()
        self._longest_silence = max(self._seconds, SILENCE_SECONDS)
        self._monotonic = monotonic
        self._since: dict[int, float] = {}
        self._asked = 0.0
        self._answered = 0.0
        self._now_at: datetime | None = None

    def interrupt(self) -> None:
        """Start over: the database could not be reached."""
        self._since.clear()
        self._now_at = None

    def look(self, partitions: Iterable[int], now_at: datetime, asked: float) -> bool:
        """Note what the database's clock says, asked at an instant of the monotonic clock; was the clock set?"""
        answered = self._monotonic()
        is_step = self._is_step(now_at, asked, answered)
        if is_step or answered - self._answered > self._longest_silence:
            self._since.clear()
        self._asked, self._answered, self._now_at = asked, answered, now_at
        self._since = {partition: self._since.get(partition, answered) for partition in partitions}
        return is_step

    def over(self) -> list[int]:
        """The partitions whose leases may be reaped."""
        now = self._monotonic()
        if now - self._answered > self._longest_silence:
            return []  # this process was stopped, or its statements hung
        return [partition for partition, since in self._since.items() if now - since >= self._seconds]

    def latest_at(self) -> datetime:
        """The latest that it can be in the database, unless its clock was set since the last look."""
        assert self._now_at is not None
        return self._now_at + timedelta(seconds=self._monotonic() - self._asked)

    def _is_step(self, now_at: datetime, asked: float, answered: float) -> bool:
        if self._now_at is None:
            return False
        went = (now_at - self._now_at).total_seconds()
        return not asked - self._answered - STEP_SECONDS <= went <= answered - self._asked + STEP_SECONDS
