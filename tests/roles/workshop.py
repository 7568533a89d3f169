"""Attempts that are ready for a worker, and a look at what became of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import asyncpg

from engine import AT, MINUTE, PATIENCE_SECONDS, RETRIES, Holder, Job, Planned, add_job, until
from evertick.domain.retry import Retry
from evertick.executor.handlers.registry import Handlers
from evertick.roles.worker import DatabaseWorker
from evertick.store.engine import outcomes
from evertick.store.engine.outcomes import Ending

PARTITION = 7


class Outcome(NamedTuple):
    attempt: int
    result: str
    is_final: bool
    error: str | None
    excerpt: str | None


class Workshop:
    """One queue's ready attempts, fired by hand."""

    def __init__(self, connection: asyncpg.Connection, url: str) -> None:
        self.connection = connection
        self.url = url
        self._holder = Holder(connection)

    async def ready(
        self,
        handler: str = "handle",
        *,
        payload: Any = None,
        timeout_seconds: int = 60,
        retry: str = RETRIES,
        count: int = 1,
    ) -> Job:
        """A job with so many attempts, of as many runs, that stand in their lane."""
        job = await add_job(self.connection, partition=PARTITION, retry=retry)
        await self.connection.execute(
            "UPDATE job_versions SET handler = $2, payload = $3, timeout_seconds = $4 WHERE job_id = $1",
            *(job.job_id, handler, None if payload is None else json.dumps(payload), timeout_seconds),
        )
        if not self._holder.epochs:
            await self._holder.take(PARTITION)
        await self._holder.fire_ticks(Planned(job, policy="ALLOW", limit=1000), count)
        return job

    async def fire_retry(self, job: Job) -> None:
        """Let the job's retry be due and fire it."""
        due_at = await self.connection.fetchval(
            "UPDATE timers SET due_at = clock_at() WHERE job_id = $1 AND kind = 'retry' RETURNING due_at", job.job_id
        )
        await self._holder.fire(Planned(job, AT, kind="retry", due_at=due_at, rule_id=0))

    def worker(self, functions: dict[str, Callable[..., Any]], **options: Any) -> DatabaseWorker:
        return DatabaseWorker(self.url, Handlers(functions), **options)

    @asynccontextmanager
    async def opened(self, functions: dict[str, Callable[..., Any]], **options: Any) -> AsyncIterator[DatabaseWorker]:
        """A worker without loops, for `work_off`."""
        worker = self.worker(functions, **options)
        await worker.open()
        yield worker
        await worker.close()

    @asynccontextmanager
    async def started(self, functions: dict[str, Callable[..., Any]], **options: Any) -> AsyncIterator[DatabaseWorker]:
        worker = self.worker(functions, **options)
        async with self.running(worker):
            yield worker

    @asynccontextmanager
    async def running(self, worker: DatabaseWorker) -> AsyncIterator[None]:
        await worker.start()
        yield
        await worker.stop(timedelta(0))

    async def work_off(self, functions: dict[str, Callable[..., Any]], **options: Any) -> DatabaseWorker:
        async with self.opened(functions, **options) as worker:
            await worker.work_off()
        return worker

    async def outcomes(self, job: Job) -> list[Outcome]:
        rows = await self.connection.fetch(
            "SELECT attempt, result::text, is_final, error, excerpt_of(excerpt, output) AS excerpt"
            " FROM outcomes JOIN attempts USING (lane_id, seq) WHERE job_id = $1 ORDER BY seq",
            job.job_id,
        )
        return [Outcome(*row) for row in rows]

    async def outcome(self, job: Job) -> Outcome:
        (outcome,) = await self.outcomes(job)
        return outcome

    async def results(self, job: Job) -> list[str]:
        return [outcome.result for outcome in await self.outcomes(job)]

    async def until_ended(self, job: Job, count: int = 1) -> list[Outcome]:
        async def are_there() -> bool:
            return len(await self.outcomes(job)) >= count

        await until(are_there)
        return await self.outcomes(job)

    async def now(self) -> datetime:
        """By the database's clock."""
        now: datetime = await self.connection.fetchval("SELECT clock_at()")
        return now

    async def retries(self, job: Job) -> list[tuple[int, float]]:
        """The retry timers of a job: attempt, and in how many seconds it is due."""
        rows = await self.connection.fetch(
            "SELECT attempt, extract(epoch FROM due_at - clock_at())::float FROM timers"
            " WHERE job_id = $1 AND kind = 'retry' ORDER BY fire_at",
            job.job_id,
        )
        return [tuple(row) for row in rows]

    async def dead_letters(self, job: Job) -> list[tuple[int, str]]:
        rows = await self.connection.fetch("SELECT attempt, reason FROM dead_letters WHERE job_id = $1", job.job_id)
        return [tuple(row) for row in rows]

    async def has_no_leases(self) -> bool:
        return await self.leases() == 0

    async def leases(self) -> int:
        count: int = await self.connection.fetchval("SELECT count(*) FROM leases")
        return count

    async def free(self) -> list[str]:
        """The handlers of attempts that were put back and wait."""
        rows = await self.connection.fetch(
            "SELECT handler FROM leases WHERE worker IS NULL ORDER BY lane_id, first_seq"
        )
        return [row[0] for row in rows]

    async def end_elsewhere(self, job: Job, result: str = "cancelled") -> None:
        """Someone else ends the job's open attempt."""
        await self.connection.execute(
            "INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final)"
            " SELECT lane_id, seq, clock_at(), $2, true FROM attempts WHERE job_id = $1",
            *(job.job_id, result),
        )

    async def reap(self, job: Job) -> int:
        """All leases run out at once, and the reaper does what it does; how many leases there were."""
        await self.connection.execute("UPDATE leases SET expires_at = clock_at() - interval '1 second'")
        return await reap(self.connection, job)


async def reap(connection: asyncpg.Connection, job: Job) -> int:
    lost = await outcomes.reap(connection, "reaper", [job.partition], lease_time=MINUTE, most=100)
    endings = [
        Ending(each.lane_id, *each[5:10], "lost", None, AT, then=Retry(each.attempt + 1, MINUTE))
        for each in lost
        if each.lane_id is not None
    ]
    leases = {each.lease_id for each in lost}
    await outcomes.record(connection, "reaper", endings, sorted(leases))
    return len(leases)


async def within_patience(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await event.wait()
