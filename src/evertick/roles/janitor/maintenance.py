"""The steps of a janitor's round, one function each. Each can be stopped anywhere and repeated, by any janitor.

The caller passes the instants before which something is too old, from the time that is trusted.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import NamedTuple

from evertick.domain.archiving import day_range
from evertick.roles.janitor.batch_size import BatchSize
from evertick.roles.janitor.replanning import repair_all
from evertick.runtime.logs import tenant_fields
from evertick.store.archive import days
from evertick.store.database import Pool, was_too_slow
from evertick.store.jobs import jobs
from evertick.store.maintenance import ledgers, replan, retention
from evertick.store.maintenance.replan import RepairCount
from evertick.store.maintenance.retention import FinishedPosition
from evertick.store.tenants import tenants

logger = logging.getLogger("evertick.janitor")

MAX_DAYS = 3
"""Days that one round drops at most. In the long run there is one a day."""
STEP_SECONDS = 60.0
"""The longest that a step goes on in one round: the rest is done in the next round, a minute later."""


class Kept(NamedTuple):
    """How long rows are kept: the history, entries of the audit log, dead letters that nobody deals with, and events,
    which are kept no longer than what they are about.
    """

    history: timedelta = timedelta(days=90)
    audit_log: timedelta = timedelta(days=365)
    dead_letters: timedelta = timedelta(days=365)
    events: timedelta = timedelta(days=7)

    @property
    def streamed(self) -> timedelta:
        return min(self.events, self.history, self.audit_log)


@dataclass(slots=True)
class BatchSizes:
    """The batch sizes of the steps that go in batches, and whether one of them ran out of time in this round."""

    prune: dict[str, BatchSize] = field(default_factory=lambda: {table: BatchSize() for table in retention.AGEING})
    purge: BatchSize = field(default_factory=BatchSize)
    one_offs: BatchSize = field(default_factory=BatchSize)
    hosts: BatchSize = field(default_factory=BatchSize)
    answers: BatchSize = field(default_factory=BatchSize)
    versions: BatchSize = field(default_factory=BatchSize)
    rules: BatchSize = field(default_factory=BatchSize)
    storage: BatchSize = field(default_factory=BatchSize)
    is_cut: bool = False
    monotonic: Callable[[], float] = monotonic


async def add_days(pool: Pool, ahead: int) -> int:
    """Add the partitions of the coming days to the tables of attempts and outcomes; returns how many days it added."""
    days = await ledgers.missing_days(pool, ahead)
    return sum([await ledgers.add_day(pool, day) for day in days])


async def drop_days(pool: Pool, before_at: datetime, *, is_archived: bool) -> tuple[int, int]:
    """Drop days that ended before an instant; returns how many, and how many stay because they are unfinished.

    Days that must be archived first are dropped by `archiving`.
    """
    expired = await ledgers.expired_days(pool, before_at)
    finished = [day for day, is_finished in expired if is_finished]
    droppable = [] if is_archived else finished[:MAX_DAYS]
    dropped = sum([await ledgers.drop_day(pool, day) for day in droppable])
    if unfinished := len(expired) - len(finished):
        logger.warning("%d days are older than history is kept, but hold runs that are not over", unfinished)
    return dropped, unfinished


async def prune(pool: Pool, now_at: datetime, kept: Kept, sizes: BatchSizes, *, is_archived: bool) -> int:
    """Remove rows that are too old; returns how many. What is archived goes with its day."""
    ages = {"audit_log": kept.audit_log, "dead_letters": kept.dead_letters}
    pruned = 0
    for table, size in sizes.prune.items():
        if is_archived and table in retention.ARCHIVED:
            continue
        before_at = now_at - ages.get(table, kept.history)
        pruned += await _in_batches(partial(retention.prune, pool, table, before_at), size, sizes)
    return pruned


async def prune_answers(pool: Pool, before_at: datetime, sizes: BatchSizes) -> int:
    """Remove kept answers that are older than promised; returns how many."""
    return await _in_batches(partial(retention.prune_answers, pool, before_at), sizes.answers, sizes)


async def prune_target_hosts(pool: Pool, before_at: datetime, sizes: BatchSizes) -> int:
    """Remove target hosts that failed long ago; returns how many."""
    return await _in_batches(partial(retention.prune_target_hosts, pool, before_at), sizes.hosts, sizes)


async def sum_storage(pool: Pool, sizes: BatchSizes) -> None:
    """Sum up how much tenants store."""
    await _in_batches(partial(tenants.sum_storage, pool), sizes.storage, sizes)


async def check_versions(pool: Pool, now_at: datetime, history: timedelta, sizes: BatchSizes) -> tuple[int, int]:
    """Empty and remove superseded versions that no run needs; returns how many of each."""
    emptied = removed = 0

    async def batch(most: int) -> int:
        nonlocal emptied, removed
        checked = await retention.check_versions(pool, now_at, history, most)
        emptied += checked.emptied
        removed += checked.removed
        return checked.checked

    await _in_batches(batch, sizes.versions, sizes)
    return emptied, removed


async def sweep_rules(pool: Pool, now_at: datetime, sizes: BatchSizes) -> int:
    """Remove rules that nothing has referred to for an hour; returns how many."""
    removed = 0
    after_id: int | None = -1
    until = sizes.monotonic() + STEP_SECONDS
    while after_id is not None and sizes.monotonic() < until:
        page = await sizes.rules.run(partial(retention.sweep_rules, pool, now_at, after_id))
        removed += page.removed
        after_id = page.last_id
    return removed


async def sweep_queues(pool: Pool, now_at: datetime) -> int:
    """Remove queues that nothing has referred to for an hour, of tenants that have many; returns how many."""
    removed = 0
    for tenant_id in await retention.crowded_tenants(pool):
        try:
            removed += await retention.sweep_queues(pool, now_at, tenant_id)
        except Exception as error:
            if not (isinstance(error, TimeoutError) or was_too_slow(error)):
                raise
            logger.warning(
                "tenant %d has too many jobs to look for its unused queues", tenant_id, extra=tenant_fields(tenant_id)
            )
    return removed


async def purge_jobs(pool: Pool, before_at: datetime, sizes: BatchSizes) -> int:
    """Remove what is left of jobs that were deleted long ago; returns of how many."""
    return await _in_batches(partial(retention.purge_jobs, pool, before_at), sizes.purge, sizes)


async def purged_before(pool: Pool, before_at: datetime, *, is_archived: bool) -> datetime:
    """Before which instant a job must have been deleted to be removed: an export needs the jobs of its runs."""
    oldest = await days.oldest_day(pool) if is_archived else None
    return before_at if oldest is None else min(before_at, day_range(oldest).from_at)


async def remove_one_offs(pool: Pool, now_at: datetime, sizes: BatchSizes) -> int:
    """Delete one-offs that were kept for long enough; returns how many."""
    removed = 0
    place: FinishedPosition | None = FinishedPosition()
    until = sizes.monotonic() + STEP_SECONDS
    while place is not None and not _is_over(until, sizes):
        page = await sizes.one_offs.run(partial(retention.finished_one_offs, pool, now_at, place))
        if page.removable:
            async with pool.acquire() as connection, connection.transaction():
                locked = await jobs.lock_available(connection, page.removable)
                removed += await retention.remove_one_offs(connection, locked)
        place = page.next
    return removed


@dataclass(slots=True)
class RepairProgress:
    """How far the search through all jobs has come, which may take several rounds; `after_id` is None at its end."""

    after_id: int | None = None
    size: BatchSize = field(default_factory=BatchSize)


async def repair_timers(
    pool: Pool,
    before_at: datetime,
    progress: RepairProgress,
    seconds: float = math.inf,
    *,
    monotonic: Callable[[], float] = monotonic,
) -> RepairCount:
    """Go on through all jobs, for so long at most, and give those that lost their tick's timer a new one."""
    timers = finished = 0
    until = monotonic() + seconds
    while progress.after_id is not None and monotonic() < until:
        page = await progress.size.run(partial(replan.timerless_page, pool, progress.after_id))
        progress.after_id = page.last_id
        if page.job_ids:
            repaired = await _repair_some(pool, page.job_ids, before_at)
            timers += repaired.timers
            finished += repaired.finished
    if timers or finished:
        lost = timers + finished
        logger.warning("%d jobs had lost their timer: %d got it back, %d are finished", lost, timers, finished)
    return RepairCount(timers, finished)


async def analyze(pool: Pool) -> int:
    """Bring statistics up to date that autovacuum does not; returns of how many tables."""
    tables = await ledgers.stale_statistics(pool)
    for table in tables:
        await ledgers.analyze(pool, table)
    return len(tables)


async def _repair_some(pool: Pool, job_ids: list[int], before_at: datetime) -> RepairCount:
    async with pool.acquire() as connection, connection.transaction():
        locked = await jobs.lock_available(connection, job_ids)
        # Read again under the lock: they may have got a timer meanwhile.
        found = await replan.timerless(connection, locked, before_at)
        return await replan.repair_timers(connection, repair_all(found))


async def _in_batches(batch: Callable[[int], Awaitable[int]], size: BatchSize, sizes: BatchSizes) -> int:
    """Repeat until a batch is not full, or the time is up."""
    total = 0
    until = sizes.monotonic() + STEP_SECONDS
    while not _is_over(until, sizes):
        count = await size.run(batch, is_full=lambda count: count >= size.last_rows)
        total += count
        if count < size.last_rows:
            break
    return total


def _is_over(until: float, sizes: BatchSizes) -> bool:
    if sizes.monotonic() < until:
        return False
    sizes.is_cut = True
    return True
