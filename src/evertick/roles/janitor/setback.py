"""Plans timers anew after the database's clock was set back: all partitions in turn, then gaps and finished jobs.

How far it has come is in the database. So it goes on after a crash, and begins anew if the clock is set back again.
"""

import logging
from dataclasses import dataclass
from functools import partial

from evertick.domain.ids import PARTITIONS
from evertick.roles.janitor.pace import Pace
from evertick.roles.janitor.replanning import Correction, moves_of, reopened, trims_of
from evertick.store import clock, housekeeping, replan, rules, wakeups
from evertick.store.clock import Marks
from evertick.store.database import Pool
from evertick.store.replan import FIRST_FINISHED, FIRST_GAP, FIRST_TIMER, AheadTimer

logger = logging.getLogger("evertick.janitor")


@dataclass(slots=True)
class Setback:
    """What one pass did."""

    timers: int = 0
    gaps: int = 0
    reopened: int = 0
    left: int = 0


async def plan_anew(pool: Pool, pace: Pace) -> Setback:
    """One pass from where the last one stopped, or nothing if the clock was not set back."""
    done = Setback()
    marks = await clock.marks(pool)
    while (partition := marks.replan_from) is not None and partition < PARTITIONS:
        to = _correction(marks)
        if partition == 0:
            await replan.note_ran(pool, to.after_at)
        left = done.left
        await _plan_partition(pool, partition, to, pace, done)
        await replan.advance(pool, partition, is_cut=done.left > left)
        marks = await clock.marks(pool)
    if partition is None:
        return done
    await _trim_gaps(pool, _correction(marks), pace, done)
    await _reopen(pool, _correction(marks), pace, done)
    await replan.complete(pool)
    await wakeups.notify(pool, {wakeups.TIMERS: wakeups.EVERYTHING})
    logger.warning(
        "the database's clock was set back: %d timers are planned anew, %d gaps trimmed, %d jobs go on%s",
        *(done.timers, done.gaps, done.reopened),
        f"; {done.left} timers are locked and follow later" if done.left else "",
    )
    return done


def _correction(marks: Marks) -> Correction:
    return Correction(marks.marked_at, marks.replan_after_at or marks.marked_at)


async def _plan_partition(pool: Pool, partition: int, to: Correction, pace: Pace, done: Setback) -> None:
    after = FIRST_TIMER
    while timers := await pace.take(partial(replan.page, pool, partition, to.now_at, after)):
        await _move_some(pool, timers, to, done)
        after = timers[-1]


async def _move_some(pool: Pool, timers: list[AheadTimer], to: Correction, done: Setback) -> None:
    canonical = await rules.rules(pool, {timer.rule_id for timer in timers})
    one_offs = [timer.job_id for timer in timers if '"kind":"one_off"' in canonical.get(timer.rule_id, "")]
    specs = await replan.specs_ahead(pool, one_offs, to.now_at) if one_offs else {}
    moves = list(moves_of(timers, canonical, specs, to))
    if not moves:
        return
    async with pool.acquire() as connection, connection.transaction():
        moved = await replan.move(connection, moves, to.after_at)
        # In one transaction: a tick is in a gap, or its timer will come to it.
        job_ids = [job_id for job_id, kind in moved if kind == "tick"]
        trims = list(trims_of(await replan.gaps_of_jobs(connection, job_ids, to.after_at), to.after_at))
        await replan.trim(connection, trims)
    done.timers += len(moved)
    done.gaps += len(trims)
    done.left += len(moves) - len(moved)


async def _trim_gaps(pool: Pool, to: Correction, pace: Pace, done: Setback) -> None:
    """Gaps of jobs that did not have their timer moved: it was changed since, or is gone."""
    after = FIRST_GAP
    while gaps := await pace.take(partial(replan.gaps_page, pool, to.after_at, after)):
        trims = list(trims_of(gaps, to.after_at))
        await replan.trim(pool, trims)
        done.gaps += len(trims)
        after = gaps[-1]


async def _reopen(pool: Pool, to: Correction, pace: Pace, done: Setback) -> None:
    after = FIRST_FINISHED
    while finished := await pace.take(partial(replan.finished_page, pool, to.after_at, after)):
        healings = {healing.job_id: healing for healing in reopened(finished, to)}
        async with pool.acquire() as connection, connection.transaction():
            locked = await housekeeping.lock_jobs(connection, sorted(healings))
            await replan.reopen(connection, locked)
            done.reopened += (await housekeeping.heal(connection, [healings[job_id] for job_id in locked])).timers
        after = finished[-1]
