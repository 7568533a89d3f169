"""Pauses jobs whose target answered 410 Gone."""

import asyncio
import logging
from collections import deque

from evertick.domain.attempt import Attempt
from evertick.domain.ids import Prefix, format_id
from evertick.runtime.logs import run_fields
from evertick.runtime.loop import Loop
from evertick.store.database import Pool
from evertick.store.jobs import jobs
from evertick.store.tenants import audit
from evertick.store.tenants.audit import AuditRecord

logger = logging.getLogger("evertick.dispatcher")

GONE = "its target answered 410 Gone"
ACTOR, ACTION = "dispatcher", "pause_job"
"""What the audit log says of it: the operation is the one by which people pause a job."""
RECHECK_SECONDS = 60.0
LAST_REQUESTS_SECONDS = 5.0
_ACTIVE = "active"


class Pausing:
    """Pauses one job after the other. After a crash the job's next delivery gets the same answer."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: deque[Attempt] = deque()
        self._loop = Loop("pause", self._step)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        """Pause what is left, unless the database is unavailable."""
        await self._loop.stop()
        try:
            async with asyncio.timeout(LAST_REQUESTS_SECONDS):
                await self._step()
        except Exception:  # noqa: BLE001 - the end of the role, and nothing is lost
            logger.warning("%d jobs are not paused: their next delivery will get the same answer", len(self))

    @property
    def errors(self) -> int:
        """How often pausing has failed."""
        return self._loop.errors

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, attempt: Attempt) -> None:
        self._waiting.append(attempt)
        self._loop.wake()

    async def _step(self) -> float:
        while self._waiting:
            gone = self._waiting.popleft()
            try:
                await self._pause(gone)
            except BaseException:
                self._waiting.append(gone)  # behind the others, which may not fail
                raise
        return RECHECK_SECONDS

    async def _pause(self, attempt: Attempt) -> None:
        tenant_id = attempt.tenant_id
        async with self._pool.acquire() as connection, connection.transaction():
            if not await jobs.lock(connection, tenant_id, attempt.job_id):
                return  # deleted
            job = await jobs.locked(connection, attempt.job_id)
            # An edit since then may have given the job another target.
            if job.status == _ACTIVE and job.spec_version == attempt.spec_version:
                await jobs.pause(connection, attempt.job_id, GONE)
                subject = format_id(Prefix.JOB, attempt.job_id)
                await audit.record(connection, AuditRecord(tenant_id, ACTOR, ACTION, subject, None))
                logger.warning("%s is paused: %s", attempt.name, GONE, extra=run_fields(attempt))
