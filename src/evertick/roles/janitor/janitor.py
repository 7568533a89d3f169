"""The janitor: keeps the tables in order for the other roles. It may be late by hours; ticks only need the days that it
adds ahead.

Duty: adds the ledgers' days ahead; removes what is older than history is kept, one-offs that were finished for long
enough, and what no run and no job refers to: payloads of old versions, rules, queues; sums up how much each tenant
stores; gives a job that lost its timer a new one; updates the statistics of tables. Beside its rounds it works off
replays of dead letters (`replayer`) and smears of jobs (`smearer`), looks for alerts (`alerting`), gives events their
positions (`sequencing`), and archives days before they are dropped (`archiving`).

Invariants: nothing that waits or runs is removed, nor what it needs. What is kept for a time is kept by a time that
follows the database's clock at a limited pace (`store.engine.clock`), so that a clock that was set wrong removes
nothing. It never delays firing for more than a moment: it gives up locks that would, and tries again in the next round.
Rows that another session has locked are left alone. In a database that may be a restored copy it only adds days.

Steps: each minute it tries to take the lock of the one janitor at work. With the lock it marks the clock, plans timers
anew if that was set back, adds days, checks superseded versions, sums up storage and updates statistics; each hour it
does the rest too, in batches with a transaction each, and each minute while a sweep is not complete. The hour is the
database's, so that all janitors come at the same time and one does the work. The search for lost timers goes through
all jobs, for a fifth of a second in each minute.

Crash: the lock ends with its connection, each batch was done or not, and the next janitor does the rest. Slow database:
a round takes longer, and the other janitors pass. Two at once, when the lock was lost with its connection: both do the
same, and each statement finds what the other did.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

from evertick.domain.errors import require_at_least
from evertick.roles.janitor import maintenance
from evertick.roles.janitor.alerting import Alerting
from evertick.roles.janitor.archiving import Archiving
from evertick.roles.janitor.maintenance import BatchSizes, Kept, RepairProgress
from evertick.roles.janitor.replanner import Replanner
from evertick.roles.janitor.replayer import Replayer
from evertick.roles.janitor.sequencing import Sequencing
from evertick.roles.janitor.smearer import Smearer
from evertick.runtime import timeouts
from evertick.runtime.archive import Archive
from evertick.runtime.loop import Loop
from evertick.store.archive import days
from evertick.store.database import Pool, open_pool
from evertick.store.engine import identity, lanes, members, rate_buckets, workers
from evertick.store.engine.clock import mark
from evertick.store.engine.rate_buckets import RateBuckets
from evertick.store.location import DatabaseAddress
from evertick.store.tenants import events

logger = logging.getLogger("evertick.janitor")

CONNECTIONS = 9
DEFAULT_KEPT = Kept()
DEFAULT_AHEAD = 3
EVERY_SECONDS = 60.0
ANSWERS_KEPT = timedelta(hours=24)
"""A repeated Idempotency-Key gets the kept answer for so long."""
HOSTS_KEPT = timedelta(hours=24)
"""A target host is listed for so long after its last failure."""
REPAIR_SECONDS = 0.2
"""Of each minute, until all jobs were seen: ten million jobs take more than half a minute in all, and an idle engine
should cost next to nothing."""


@dataclass(frozen=True, slots=True)
class JanitorReport:
    """What one round did. `passed`: nothing, because another janitor was at work, or the database may be a copy."""

    passed: bool = False
    days_added: int = 0
    tables_analyzed: int = 0
    timers_replanned: int = 0
    days_dropped: int = 0
    days_unfinished: int = 0
    event_days_dropped: int = 0
    rows_pruned: int = 0
    jobs_purged: int = 0
    one_offs_removed: int = 0
    answers_forgotten: int = 0
    hosts_forgotten: int = 0
    versions_emptied: int = 0
    versions_removed: int = 0
    rules_removed: int = 0
    queues_removed: int = 0
    timers_repaired: int = 0
    jobs_finished: int = 0

    def __str__(self) -> str:
        done = [f"{name.replace('_', ' ')} {count}" for name, count in asdict(self).items() if count]
        return ", ".join(done) or "nothing to do"


async def janitor_pool(url: DatabaseAddress) -> Pool:
    """One connection for the lock; for work, alerts, events and smears one each; two for replays, two to archive."""
    return await open_pool(url, max_size=CONNECTIONS, timeouts=timeouts.JANITOR, purpose="janitor")


class Janitor:
    """One janitor, on a pool with the connections and the time-outs of `janitor_pool`."""

    def __init__(  # noqa: PLR0913 - all but the pool have defaults
        self,
        pool: Pool,
        *,
        kept: Kept = DEFAULT_KEPT,
        ahead: int = DEFAULT_AHEAD,
        buckets: RateBuckets | None = None,
        archive: Archive | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, age in kept._asdict().items():
            require_at_least(name, age, timedelta(days=1))
        require_at_least("ahead", ahead, 1)
        self._pool = pool
        self._kept = kept
        self._ahead = ahead
        self._monotonic = monotonic
        self._swept_hour: datetime | None = None
        self._repair = RepairProgress()
        self._sizes = BatchSizes(monotonic=monotonic)
        self._replanner = Replanner(pool, monotonic)
        self._replayer = Replayer(pool, buckets)
        self._smearer = Smearer(pool)
        self._alerting = Alerting(pool)
        self.sequencing = Sequencing(pool)
        self._archiving = None if archive is None else Archiving(pool, archive, kept.history)
        self._round: asyncio.Task[None] | None = None
        self._loop = Loop("maintain", self._step)

    def start(self) -> None:
        self._loop.start()
        self._replayer.start()
        self._smearer.start()
        self._alerting.start()
        self.sequencing.start()
        if self._archiving is not None:
            self._archiving.start()

    async def stop(self) -> None:
        """Stop at once: the next round, of any janitor, does the rest."""
        if self._round is not None:
            self._round.cancel()
        await self._replayer.stop()
        await self._smearer.stop()
        await self._alerting.stop()
        await self.sequencing.stop()
        if self._archiving is not None:
            await self._archiving.stop()
        await self._loop.stop()

    async def maintain(self, *, full: bool = True, repair_seconds: float = math.inf) -> JanitorReport:
        """Run one round: all steps, or only those of each minute. It looks for lost timers for so long at most."""
        # Without the lock: firing needs the days even if the janitor that has the lock hangs.
        report = JanitorReport(days_added=await maintenance.add_days(self._pool, self._ahead))
        if self._archiving is not None:
            await self._archiving.turn_on()
        async with members.only_janitor(self._pool) as is_ours:
            if not is_ours or not await identity.may_work(self._pool):
                return replace(report, passed=True)
            marks = await mark(self._pool)
            report = replace(report, timers_replanned=await self._replanner.replan())
            if full and self._repair.after_id is None:  # else the last search is not over yet
                self._repair.after_id = 0
            # Lost timers come first: the steps after it remove what nothing needs.
            before_at = marks.trusted_at - self._kept.history
            repaired = await maintenance.repair_timers(
                self._pool, before_at, self._repair, repair_seconds, monotonic=self._monotonic
            )
            report = replace(report, timers_repaired=repaired.timers, jobs_finished=repaired.finished)
            self._sizes.is_cut = False
            emptied, removed = await maintenance.check_versions(
                self._pool, marks.trusted_at, self._kept.history, self._sizes
            )
            report = replace(report, versions_emptied=emptied, versions_removed=removed)
            if full:
                report = await self._sweep(report, marks.trusted_at)
            await workers.forget(self._pool)
            await maintenance.sum_storage(self._pool, self._sizes)
            # Last: the steps before it change how many rows there are.
            return replace(report, tables_analyzed=await maintenance.analyze(self._pool))

    async def _sweep(self, report: JanitorReport, now_at: datetime) -> JanitorReport:
        """The steps of each hour, by a time that is trusted."""
        before_at = now_at - self._kept.history
        is_archived = (await days.marks(self._pool)).is_on
        if is_archived and self._archiving is None:
            logger.warning(
                "days are archived before they are dropped, and this process has no archive: set archive_url"
            )
        one_offs = await maintenance.remove_one_offs(self._pool, now_at, self._sizes)
        dropped, unfinished = await maintenance.drop_days(self._pool, before_at, is_archived=is_archived)
        report = replace(
            report,
            one_offs_removed=one_offs,
            days_dropped=dropped,
            days_unfinished=unfinished,
            event_days_dropped=await events.drop_days(self._pool, now_at - self._kept.streamed),
            rows_pruned=await maintenance.prune(self._pool, now_at, self._kept, self._sizes, is_archived=is_archived),
            jobs_purged=await maintenance.purge_jobs(
                self._pool, await maintenance.purged_before(self._pool, before_at, is_archived=is_archived), self._sizes
            ),
            answers_forgotten=await maintenance.prune_answers(self._pool, now_at - ANSWERS_KEPT, self._sizes),
            hosts_forgotten=await maintenance.prune_target_hosts(self._pool, now_at - HOSTS_KEPT, self._sizes),
            queues_removed=await maintenance.sweep_queues(self._pool, now_at),
            rules_removed=await maintenance.sweep_rules(self._pool, now_at, self._sizes),
        )
        await members.forget(self._pool)
        await rate_buckets.prune(self._pool)
        return report

    async def _step(self) -> float:
        # A task of its own, which `stop` cancels: the loop itself goes on to its end.
        self._round = asyncio.create_task(self._maintain_if_due())
        await asyncio.wait([self._round])
        if not self._round.cancelled():
            self._round.result()
        return 0 if self._replanner.is_cut else EVERY_SECONDS

    async def _maintain_if_due(self) -> None:
        now_at = await lanes.clock(self._pool)
        hour = now_at.replace(minute=0, second=0, microsecond=0)
        full = hour != self._swept_hour or self._sizes.is_cut
        self._swept_hour = (
            hour  # once an hour, also after an error: one that lasts must not repeat the sweep each minute
        )
        report = await self.maintain(full=full, repair_seconds=REPAIR_SECONDS)
        if report != JanitorReport() and not report.passed:
            logger.info("maintenance: %s", report)
