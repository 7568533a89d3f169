"""The chores, one function each: every one can be stopped anywhere and done again, by this janitor or by another.

What is too old is told by instants that the caller gives, from the time that is trusted.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from time import monotonic

from evertick.roles.janitor.healing import heal_all
from evertick.roles.janitor.pace import Pace
from evertick.store import jobs, ledgers, lost_timers, retention, unused, usage
from evertick.store.database import Pool, was_too_slow
from evertick.store.lost_timers import Healed
from evertick.store.retention import FinishedPosition

logger = logging.getLogger("evertick.janitor")

MAX_DAYS = 3
"""Days that one sweep drops at most. In the long run there is one a day."""
CHORE_SECONDS = 60.0
"""So long a chore goes on in one sweep: what is left is done in the next round, a minute later."""


@dataclass(slots=True)
class Paces:
    """The paces of the chores that go in batches, and whether one of them ran out of time in this sweep."""

    prune: dict[str, Pace] = field(default_factory=lambda: {table: Pace() for table in retention.AGEING})
    purge: Pace = field(default_factory=Pace)
    one_offs: Pace = field(default_factory=Pace)
    answers: Pace = field(default_factory=Pace)
    versions: Pace = field(default_factory=Pace)
    rules: Pace = field(default_factory=Pace)
    storage: Pace = field(default_factory=Pace)
    is_cut: bool = False


async def add_days(pool: Pool, ahead: int) -> int:
    """Let the ledgers take attempts from today on; returns how many days it added."""
    days = await ledgers.missing_days(pool, ahead)
    return sum([await ledgers.add_day(pool, day) for day in days])


async def drop_days(pool: Pool, before_at: datetime) -> tuple[int, int]:
    """Drop days that ended before an instant; returns how many, and how many stay because they are unfinished."""
    expired = await ledgers.expired_days(pool, before_at)
    finished = [day for day, is_finished in expired if is_finished]
    dropped = sum([await ledgers.drop_day(pool, day) for day in finished[:MAX_DAYS]])
    if unfinished := len(expired) - len(finished):
        logger.warning("%d days are older than history is kept, but hold runs that are not over", unfinished)
    return dropped, unfinished


async def prune(pool: Pool, before_at: datetime, paces: Paces) -> int:
    """Remove rows that are too old; returns how many."""
    pruned = 0
    for table, pace in paces.prune.items():
        pruned += await _in_batches(partial(retention.prune, pool, table, before_at), pace, paces)
    return pruned


async def prune_answers(pool: Pool, before_at: datetime, paces: Paces) -> int:
    """Forget answers that were kept for as long as they are promised; returns how many."""
    return await _in_batches(partial(retention.prune_answers, pool, before_at), paces.answers, paces)


async def sum_storage(pool: Pool, paces: Paces) -> None:
    """Sum up how much tenants store."""
    await _in_batches(partial(usage.sum_storage, pool), paces.storage, paces)


async def check_versions(pool: Pool, now_at: datetime, history: timedelta, paces: Paces) -> tuple[int, int]:
    """Empty and remove superseded versions that no run needs; returns how many of each."""
    emptied = removed = 0

    async def batch(most: int) -> int:
        nonlocal emptied, removed
        checked = await unused.check_versions(pool, now_at, history, most)
        emptied += checked.emptied
        removed += checked.removed
        return checked.checked

    await _in_batches(batch, paces.versions, paces)
    return emptied, removed


async def sweep_rules(pool: Pool, now_at: datetime, paces: Paces) -> int:
    """Remove rules that nothing has referred to for an hour; returns how many."""
    removed = 0
    after_id: int | None = -1
    until = monotonic() + CHORE_SECONDS
    while after_id is not None and monotonic() < until:
        page = await paces.rules.take(partial(unused.sweep_rules, pool, now_at, after_id))
        removed += page.removed
        after_id = page.last_id
    return removed


async def sweep_queues(pool: Pool, now_at: datetime) -> int:
    """Remove queues that nothing has referred to for an hour, of tenants that have many; returns how many."""
    removed = 0
    for tenant_id in await unused.crowded_tenants(pool):
        try:
            removed += await unused.sweep_queues(pool, now_at, tenant_id)
        except Exception as error:
            if not (isinstance(error, TimeoutError) or was_too_slow(error)):
                raise
            logger.warning("tenant %d has too many jobs to look for its unused queues", tenant_id)
    return removed


async def purge_jobs(pool: Pool, before_at: datetime, paces: Paces) -> int:
    """Remove what is left of jobs that were deleted long ago; returns of how many."""
    return await _in_batches(partial(retention.purge_jobs, pool, before_at), paces.purge, paces)


async def remove_one_offs(pool: Pool, now_at: datetime, paces: Paces) -> int:
    """Delete one-offs that were kept for long enough; returns how many."""
    removed = 0
    place: FinishedPosition | None = FinishedPosition()
    until = monotonic() + CHORE_SECONDS
    while place is not None and not _is_over(until, paces):
        page = await paces.one_offs.take(partial(retention.finished_one_offs, pool, now_at, place))
        if page.removable:
            async with pool.acquire() as connection, connection.transaction():
                locked = await jobs.lock_available(connection, page.removable)
                removed += await retention.remove_one_offs(connection, locked)
        place = page.next
    return removed


@dataclass(slots=True)
class Rounds:
    """How far one has come in going through all jobs, which may take more than one time: `after_id` None is the end."""

    after_id: int | None = None
    pace: Pace = field(default_factory=Pace)


async def heal(pool: Pool, before_at: datetime, rounds: Rounds, seconds: float = math.inf) -> Healed:
    """Go on through all jobs, for so long at most, and give those that lost their tick's timer a new one."""
    timers = finished = 0
    until = monotonic() + seconds
    while rounds.after_id is not None and monotonic() < until:
        page = await rounds.pace.take(partial(lost_timers.timerless_page, pool, rounds.after_id))
        rounds.after_id = page.last_id
        if page.job_ids:
            healed = await _heal_some(pool, page.job_ids, before_at)
            timers += healed.timers
            finished += healed.finished
    if timers or finished:
        lost = timers + finished
        logger.warning("%d jobs had lost their timer: %d have it back, %d are finished", lost, timers, finished)
    return Healed(timers, finished)


async def analyze(pool: Pool) -> int:
    """Bring statistics up to date that autovacuum does not; returns of how many tables."""
    tables = await ledgers.stale_statistics(pool)
    for table in tables:
        await ledgers.analyze(pool, table)
    return len(tables)


async def _heal_some(pool: Pool, job_ids: list[int], before_at: datetime) -> Healed:
    async with pool.acquire() as connection, connection.transaction():
        locked = await jobs.lock_available(connection, job_ids)
        # Read again under the lock: somebody may just have given them a timer.
        found = await lost_timers.timerless(connection, locked, before_at)
        return await lost_timers.heal(connection, heal_all(found))


async def _in_batches(batch: Callable[[int], Awaitable[int]], pace: Pace, paces: Paces) -> int:
    """Repeat until a batch is not full, or the time is up."""
    total = 0
    until = monotonic() + CHORE_SECONDS
    while not _is_over(until, paces):
        count = await pace.take(batch)
        total += count
        if count < pace.asked:
            break
    return total


def _is_over(until: float, paces: Paces) -> bool:
    if monotonic() < until:
        return False
    paces.is_cut = True
    return True
