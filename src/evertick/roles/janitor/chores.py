"""The chores, one function each: every one can be stopped anywhere and done again, by this janitor or by another."""

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import monotonic

from evertick.roles.janitor.healing import heal_all
from evertick.store import housekeeping
from evertick.store.database import Pool
from evertick.store.housekeeping import Healed, Place

logger = logging.getLogger("evertick.janitor")

BATCH = 10_000
"""Rows per statement: so few that each is short, so many that the statements' own cost is small."""


async def add_days(pool: Pool, ahead: int) -> int:
    """Let the ledgers take attempts from today on; returns how many days it added."""
    days = await housekeeping.missing_days(pool, ahead)
    return sum([await housekeeping.add_day(pool, day) for day in days])


async def drop_days(pool: Pool, history: timedelta) -> tuple[int, int]:
    """Drop days that are too old; returns how many, and how many stay because something in them is unfinished."""
    expired = await housekeeping.expired_days(pool, history)
    finished = [day for day, is_finished in expired if is_finished]
    dropped = sum([await housekeeping.drop_day(pool, day) for day in finished])
    if unfinished := len(expired) - len(finished):
        logger.warning("%d days are older than history is kept, but hold runs that are not over", unfinished)
    return dropped, unfinished


async def prune(pool: Pool, history: timedelta) -> int:
    """Remove rows that are too old; returns how many."""
    pruned = 0
    for table in housekeeping.AGEING:
        pruned += await _in_batches(partial(housekeeping.prune, pool, table, history, BATCH))
    return pruned


async def purge_jobs(pool: Pool, history: timedelta) -> int:
    """Remove what is left of jobs that were deleted long ago; returns of how many."""
    return await _in_batches(partial(housekeeping.purge_jobs, pool, history, BATCH))


async def remove_one_offs(pool: Pool) -> int:
    """Delete one-offs that were kept for long enough; returns how many."""
    removed = 0
    page = await housekeeping.finished_one_offs(pool, Place(), BATCH)
    while page.next is not None:
        if page.removable:
            async with pool.acquire() as connection, connection.transaction():
                locked = await housekeeping.lock_jobs(connection, page.removable)
                removed += await housekeeping.remove_one_offs(connection, locked)
        page = await housekeeping.finished_one_offs(pool, page.next, BATCH)
    return removed


@dataclass(slots=True)
class Rounds:
    """How far one has come in going through all jobs, which may take more than one time: `after_id` None is the end."""

    after_id: int | None = None


async def heal(pool: Pool, history: timedelta, rounds: Rounds, seconds: float = math.inf) -> Healed:
    """Go on through all jobs, for so long at most, and give those that lost their tick's timer a new one."""
    timers = finished = 0
    until = monotonic() + seconds
    while rounds.after_id is not None and monotonic() < until:
        page = await housekeeping.timerless_page(pool, rounds.after_id, BATCH)
        rounds.after_id = page.last_id
        if page.job_ids:
            healed = await _heal_some(pool, page.job_ids, history)
            timers += healed.timers
            finished += healed.finished
    if timers or finished:
        lost = timers + finished
        logger.warning("%d jobs had lost their timer: %d have it back, %d are finished", lost, timers, finished)
    return Healed(timers, finished)


async def analyze(pool: Pool) -> int:
    """Bring statistics up to date that autovacuum does not; returns of how many tables."""
    tables = await housekeeping.stale_statistics(pool)
    for table in tables:
        await housekeeping.analyze(pool, table)
    return len(tables)


async def _heal_some(pool: Pool, job_ids: list[int], history: timedelta) -> Healed:
    async with pool.acquire() as connection, connection.transaction():
        locked = await housekeeping.lock_jobs(connection, job_ids)
        # Read again under the lock: somebody may just have given them a timer.
        jobs = await housekeeping.timerless(connection, locked, history)
        return await housekeeping.heal(connection, heal_all(jobs))


async def _in_batches(batch: Callable[[], Awaitable[int]]) -> int:
    """Repeat until a batch is not full."""
    total = count = await batch()
    while count == BATCH:
        count = await batch()
        total += count
    return total
