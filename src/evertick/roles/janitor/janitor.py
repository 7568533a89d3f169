"""The janitor: keeps the database fit for the others. No tick depends on its haste, only on its coming round at all.

Duty: the ledgers have a day to write to, days ahead; what is older than history is kept goes; finished one-offs go when
they were kept for long enough; what no run and no job refers to goes: payloads of old versions, rules, queues; how much
each tenant stores is summed up; a job that lost its timer gets it back; the planner knows what is in the tables.

Invariants: nothing that waits or runs is removed, nor what it needs. What is kept for a time is kept by a time that
follows the database's clock at a limited pace (`store.clock`), so that a clock that was set wrong removes nothing. It
never makes firing wait for more than a moment: locks that would are given up and tried again in the next round. Rows
that someone else has locked are left alone.

Steps: each minute it tries to be the one janitor at work. If it is, it marks the clock, plans timers anew if that was
set back, adds days, looks at superseded versions, sums up storage and brings statistics up to date; each hour, by the
database's clock so that all come at the same time and one does it, it does the rest too, in batches with a transaction
each, and each minute while a sweep did not get through. Looking for lost timers goes through all jobs, a fifth of a
second in each minute until all were seen.

Crash: its lock goes with its connection, each batch was done or not, and whoever comes next does the rest. Slow
database: a round takes longer; the others pass. Two at once, when the lock was lost with its connection: both do the
same, and each statement finds done what the other did.
"""

import asyncio
import logging
import math
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

from evertick.domain.errors import require_at_least
from evertick.roles.janitor import chores
from evertick.roles.janitor.chores import Paces, Rounds
from evertick.roles.janitor.replanner import Replanner
from evertick.runtime import timeouts
from evertick.runtime.clock_marks import mark
from evertick.runtime.loop import Loop
from evertick.store import lanes, members
from evertick.store.database import Pool, open_pool

logger = logging.getLogger("evertick.janitor")

CONNECTIONS = 2
DEFAULT_HISTORY = timedelta(days=90)
DEFAULT_AHEAD = 3
EVERY_SECONDS = 60.0
ANSWERS_KEPT = timedelta(hours=24)
"""For so long an answer comes again for the same Idempotency-Key."""
HEALING_SECONDS = 0.2
"""Of each minute, until all jobs were seen: ten million take more than half a minute in all, and to be idle should cost
next to nothing."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one round did. `passed`: nothing, because another janitor was at it."""

    passed: bool = False
    days_added: int = 0
    tables_analyzed: int = 0
    timers_replanned: int = 0
    days_dropped: int = 0
    days_unfinished: int = 0
    rows_pruned: int = 0
    jobs_purged: int = 0
    one_offs_removed: int = 0
    answers_forgotten: int = 0
    versions_emptied: int = 0
    versions_removed: int = 0
    rules_removed: int = 0
    queues_removed: int = 0
    timers_healed: int = 0
    jobs_finished: int = 0

    def __str__(self) -> str:
        done = [f"{name.replace('_', ' ')} {count}" for name, count in asdict(self).items() if count]
        return ", ".join(done) or "nothing to do"


async def janitor_pool(url: str) -> Pool:
    """A pool for one janitor: one connection has its turn, the other works."""
    return await open_pool(url, max_size=CONNECTIONS, timeouts=timeouts.KEEP_HOUSE)


class Janitor:
    """One janitor, on a pool with the connections and the time-outs of `janitor_pool`."""

    def __init__(self, pool: Pool, *, history: timedelta = DEFAULT_HISTORY, ahead: int = DEFAULT_AHEAD) -> None:
        require_at_least("history", history, timedelta(days=1))
        require_at_least("ahead", ahead, 1)
        self._pool = pool
        self._history = history
        self._ahead = ahead
        self._swept_hour: datetime | None = None
        self._rounds = Rounds()
        self._paces = Paces()
        self._replanner = Replanner(pool)
        self._round: asyncio.Task[None] | None = None
        self._loop = Loop("keep house", self._step)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        """Leave off at once: what is not done is left to whoever comes next."""
        if self._round is not None:
            self._round.cancel()
        await self._loop.stop()

    async def keep_house(self, *, thoroughly: bool = True, healing_seconds: float = math.inf) -> Report:
        """One round: all chores, or only those of each minute. It looks for lost timers for so long at most."""
        # Without its turn: firing needs the days, whoever else has gone silent in theirs.
        report = Report(days_added=await chores.add_days(self._pool, self._ahead))
        async with members.only_janitor(self._pool) as is_ours:
            if not is_ours:
                return replace(report, passed=True)
            marks = await mark(self._pool)
            report = replace(report, timers_replanned=await self._replanner.plan_anew())
            if thoroughly and self._rounds.after_id is None:  # else the last time round is not over yet
                self._rounds.after_id = 0
            # What was lost comes first, then what may go.
            before_at = marks.trusted_at - self._history
            healed = await chores.heal(self._pool, before_at, self._rounds, healing_seconds)
            report = replace(report, timers_healed=healed.timers, jobs_finished=healed.finished)
            self._paces.is_cut = False
            emptied, removed = await chores.check_versions(self._pool, marks.trusted_at, self._history, self._paces)
            report = replace(report, versions_emptied=emptied, versions_removed=removed)
            if thoroughly:
                report = await self._sweep(report, marks.trusted_at)
            await chores.sum_storage(self._pool, self._paces)
            # Last, because what was removed or brought back counts too.
            return replace(report, tables_analyzed=await chores.analyze(self._pool))

    async def _sweep(self, report: Report, now_at: datetime) -> Report:
        """The chores of each hour, by a time that is trusted."""
        before_at = now_at - self._history
        one_offs = await chores.remove_one_offs(self._pool, now_at, self._paces)
        dropped, unfinished = await chores.drop_days(self._pool, before_at)
        pruned = await chores.prune(self._pool, before_at, self._paces)
        purged = await chores.purge_jobs(self._pool, before_at, self._paces)
        answers = await chores.prune_answers(self._pool, now_at - ANSWERS_KEPT, self._paces)
        queues = await chores.sweep_queues(self._pool, now_at)
        rules = await chores.sweep_rules(self._pool, now_at, self._paces)
        await members.forget(self._pool)
        return replace(
            report,
            one_offs_removed=one_offs,
            days_dropped=dropped,
            days_unfinished=unfinished,
            rows_pruned=pruned,
            jobs_purged=purged,
            answers_forgotten=answers,
            queues_removed=queues,
            rules_removed=rules,
        )

    async def _step(self) -> float:
        # A task of its own, which `stop` cancels: the loop itself goes on to its end.
        self._round = asyncio.create_task(self._keep_house_as_due())
        await asyncio.wait([self._round])
        if not self._round.cancelled():
            self._round.result()
        return 0 if self._replanner.is_cut else EVERY_SECONDS

    async def _keep_house_as_due(self) -> None:
        now_at = await lanes.clock(self._pool)
        hour = now_at.replace(minute=0, second=0, microsecond=0)
        thoroughly = hour != self._swept_hour or self._paces.is_cut
        self._swept_hour = hour  # once an hour, however it ends: what fails for a lasting reason must not go on and on
        report = await self.keep_house(thoroughly=thoroughly, healing_seconds=HEALING_SECONDS)
        if report != Report() and not report.passed:
            logger.info("kept house: %s", report)
