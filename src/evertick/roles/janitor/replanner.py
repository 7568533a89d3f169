"""Replans timers after the database's clock was set back: all partitions in turn, then gaps and finished jobs.

How far it has come is in the database. So it goes on after a crash, and begins anew if the clock is set back again.
Where timers belong is computed in the background thread: thousands of rules may take long.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from evertick.domain.ids import PARTITIONS
from evertick.roles.janitor.batch_size import BatchSize
from evertick.roles.janitor.replanning import Correction, moves_of, reopened, trims_of
from evertick.runtime import background
from evertick.store.database import Pool
from evertick.store.engine import clock, wakeups
from evertick.store.engine.clock import Marks
from evertick.store.jobs import jobs, references
from evertick.store.maintenance import replan
from evertick.store.maintenance.replan import FIRST_FINISHED, FIRST_GAP, FIRST_TIMER, AheadTimer

logger = logging.getLogger("evertick.janitor")

MAX_SECONDS = 20.0
"""The longest that it goes on in one round."""
PIECE = 16
"""Rows that are decided on at once in the background: its other users wait no longer than that takes."""

_Row = TypeVar("_Row")
_Decided = TypeVar("_Decided")


@dataclass(slots=True)
class ReplanCounts:
    """What one pass did. `left` are timers that another session had locked."""

    timers: int = 0
    gaps: int = 0
    jobs: int = 0
    left: int = 0


class Replanner:
    """A janitor's passes through all timers. `is_cut`: the time was up, and there is more to do at once."""

    def __init__(self, pool: Pool, monotonic: Callable[[], float]) -> None:
        self._pool = pool
        self._monotonic = monotonic
        self._batch_size = BatchSize()
        self._done = ReplanCounts()
        self.is_cut = False

    async def replan(self) -> int:
        """Go on for a while if the clock was set back; returns how many timers were moved."""
        self.is_cut = False
        before = self._done.timers
        until = self._monotonic() + MAX_SECONDS
        marks = await clock.marks(self._pool)
        while (partition := marks.replan_from) is not None and partition < PARTITIONS:
            await self._plan_partition(partition, _correction(marks))
            marks = await clock.marks(self._pool)
            if self._monotonic() > until:
                self.is_cut = True
                return self._done.timers - before
        if partition is None:
            return 0
        await self._complete(_correction(marks))
        moved = self._done.timers - before
        self._done = ReplanCounts()
        return moved

    async def _plan_partition(self, partition: int, to: Correction) -> None:
        if partition == 0:
            await replan.note_ran(self._pool, to.after_at)
        left = self._done.left
        after = FIRST_TIMER
        while timers := await self._batch_size.run(partial(replan.page, self._pool, partition, to.now_at, after)):
            await self._move(timers, to)
            after = timers[-1]
        await replan.advance(self._pool, partition, is_cut=self._done.left > left)

    async def _move(self, timers: list[AheadTimer], to: Correction) -> None:
        canonical = await references.rules(self._pool, {timer.rule_id for timer in timers})
        one_offs = [timer.job_id for timer in timers if '"kind":"one_off"' in canonical.get(timer.rule_id, "")]
        specs = await replan.specs_ahead(self._pool, one_offs, to.now_at) if one_offs else {}
        moves = await _decide(lambda rows: moves_of(rows, canonical, specs, to), timers)
        if not moves:
            return
        async with self._pool.acquire() as connection, connection.transaction():
            moved = await replan.move(connection, moves, to.after_at)
            # In one transaction: a tick is in a gap, or its timer will come to it.
            job_ids = [job_id for job_id, kind in moved if kind == "tick"]
            gaps = await replan.gaps_of_jobs(connection, job_ids, to.after_at)
            trims = await _decide(lambda rows: trims_of(rows, to.after_at), gaps)
            await replan.trim(connection, trims)
        self._done.timers += len(moved)
        self._done.gaps += len(trims)
        self._done.left += len(moves) - len(moved)

    async def _complete(self, to: Correction) -> None:
        await self._trim_gaps(to)
        await self._reopen(to)
        await replan.complete(self._pool)
        await wakeups.notify(self._pool, {wakeups.TIMERS: wakeups.EVERYTHING})
        logger.warning(
            "the database's clock was set back: %d timers are planned anew, %d gaps trimmed, %d jobs go on%s",
            *(self._done.timers, self._done.gaps, self._done.jobs),
            f"; {self._done.left} timers are locked and follow later" if self._done.left else "",
        )

    async def _trim_gaps(self, to: Correction) -> None:
        """Gaps of jobs that did not have their timer moved: it was changed since, or is gone."""
        after = FIRST_GAP
        while gaps := await self._batch_size.run(partial(replan.gaps_page, self._pool, to.after_at, after)):
            trims = await _decide(lambda rows: trims_of(rows, to.after_at), gaps)
            await replan.trim(self._pool, trims)
            self._done.gaps += len(trims)
            after = gaps[-1]

    async def _reopen(self, to: Correction) -> None:
        after = FIRST_FINISHED
        while finished := await self._batch_size.run(partial(replan.finished_page, self._pool, to.after_at, after)):
            decided = await _decide(lambda rows: reopened(rows, to), finished)
            repairs = {repair.job_id: repair for repair in decided}
            async with self._pool.acquire() as connection, connection.transaction():
                locked = await jobs.lock_available(connection, sorted(repairs))
                await replan.reopen(connection, locked)
                repaired = await replan.repair_timers(connection, [repairs[job_id] for job_id in locked])
            self._done.jobs += repaired.timers
            after = finished[-1]


async def _decide(decide: Callable[[Sequence[_Row]], Iterable[_Decided]], rows: Sequence[_Row]) -> list[_Decided]:
    """Decide on rows in the background, piece by piece."""
    decided: list[_Decided] = []
    for start in range(0, len(rows), PIECE):
        decided += await background.run("janitor", partial(_list, decide, rows[start : start + PIECE]))
    return decided


def _list(decide: Callable[[Sequence[_Row]], Iterable[_Decided]], rows: Sequence[_Row]) -> list[_Decided]:
    return list(decide(rows))


def _correction(marks: Marks) -> Correction:
    return Correction(marks.marked_at, marks.replan_after_at or marks.marked_at)
