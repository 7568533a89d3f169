"""The fuse: pauses a job that has more runs than its schedule has ticks.

Firing only counts which jobs it fires, in memory. Every few seconds those that fired most often, and a few by chance,
are looked up in the history, which also shows what other nodes fired. A job that is locked at that moment is looked at
again when it goes on firing. A user resumes the job as any other, and it is judged by what it fires from then on.
"""

import logging
import random
from collections import defaultdict, deque
from datetime import timedelta
from functools import partial
from itertools import chain

from evertick.domain.alerts import Condition
from evertick.domain.errors import ScheduleTooCostly
from evertick.domain.fuse import Breach, find_breach
from evertick.domain.ids import Prefix, format_id
from evertick.domain.rule import Rule
from evertick.domain.schedule.budget import PLAN_STEPS, at_most
from evertick.domain.schedule.instants import duration_us, to_us
from evertick.metrics.catalog import RUNAWAYS
from evertick.roles.scheduler.state import State
from evertick.runtime import background
from evertick.runtime.logs import job_fields, tenant_fields
from evertick.store.database import Session, reason_of
from evertick.store.engine import fuse
from evertick.store.engine.fuse import RecentRuns
from evertick.store.jobs import jobs
from evertick.store.tenants import alerts, audit
from evertick.store.tenants.alerts import NewAlert
from evertick.store.tenants.audit import AuditRecord

logger = logging.getLogger("evertick.scheduler")

EVERY_SECONDS = 10.0
WINDOW = timedelta(minutes=10)
MOST_FREQUENT = 10
OTHERS = 3
REMEMBERED_CHECKS = 6
"""Jobs that were looked at in so many checks come after others: healthy ones must not hide a slower runaway."""
MAX_PER_LANE = 2000
"""Attempts that one look at a job reads at most: those of other jobs are among them."""
ACTOR, ACTION = "scheduler", "pause_job"
"""What the audit log says of it: the operation is the one by which people pause a job."""
_ACTIVE = "active"


class Fuse:
    """Looks at jobs that fire often."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._looked_at: deque[list[int]] = deque(maxlen=REMEMBERED_CHECKS)

    async def step(self) -> float:
        await self.check()
        return EVERY_SECONDS

    async def check(self) -> int:
        """Look at the jobs that fired most often since the last check. Returns how many were paused."""
        candidates, others = self._state.fired_jobs.take(MOST_FREQUENT, {*chain.from_iterable(self._looked_at)})
        candidates += random.sample(others, min(OTHERS, len(others)))
        self._looked_at.append(candidates)
        if not candidates:
            return 0
        from_seq = self._state.clock.now_us() - duration_us(WINDOW)
        found: dict[int, list[RecentRuns]] = defaultdict(list)
        for row in await fuse.recent_runs(self._state.pool, candidates, from_seq, MAX_PER_LANE):
            found[row.job_id].append(row)
        await self._state.rule_cache.load(self._state.pool, {rows[0].rule_id for rows in found.values()})
        return sum([await self._try_judge(rows) for rows in found.values()])

    async def _try_judge(self, rows: list[RecentRuns]) -> bool:
        try:
            return await self._judge(rows)
        except Exception as error:  # noqa: BLE001 - the other jobs are judged all the same
            job_id = rows[0].job_id
            text = "job %s was not judged: %s"
            logger.warning(text, format_id(Prefix.JOB, job_id), reason_of(error), extra=job_fields(job_id))
            return False

    async def _judge(self, rows: list[RecentRuns]) -> bool:
        rule = self._state.rule_cache.known.get(rows[0].rule_id)
        if rule is None:
            return False
        fired = {to_us(row.fire_at): row.runs for row in rows}
        try:
            breach = await background.run(("fuse", rows[0].tenant_id), partial(_find_breach, rule, fired))
        except ScheduleTooCostly:
            return False
        return breach is not None and await self._pause(rows[0], breach)

    async def _pause(self, job: RecentRuns, breach: Breach) -> bool:
        async with self._state.pool.acquire() as connection, connection.transaction():
            if not await jobs.lock_available(connection, [job.job_id]):
                return False
            current = await jobs.locked(connection, job.job_id)
            if (current.status, current.spec_version) != (_ACTIVE, job.spec_version):
                return False
            await jobs.pause(connection, job.job_id, str(breach))
            subject = format_id(Prefix.JOB, job.job_id)
            await _open_alert(connection, job, subject, str(breach))
            await audit.record(connection, AuditRecord(job.tenant_id, ACTOR, ACTION, subject, None))
        RUNAWAYS.add(1)
        logger.error("paused job %s: %s", subject, breach, extra=tenant_fields(job.tenant_id) | job_fields(job.job_id))
        return True


async def _open_alert(connection: Session, job: RecentRuns, subject: str, detail: str) -> None:
    """The janitor closes it when the job is not paused any more."""
    known = [alert for alert in await alerts.of_jobs(connection, [job.job_id]) if alert.condition == Condition.FUSE]
    openings = 1 + sum(alert.openings for alert in known)
    new = NewAlert(job.tenant_id, job.job_id, openings, Condition.FUSE, subject, detail)
    await alerts.open_all(connection, [new])


def _find_breach(rule: Rule, fired: dict[int, int]) -> Breach | None:
    with at_most(PLAN_STEPS):
        return find_breach(rule.ticks(), fired)
