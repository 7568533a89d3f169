"""Jobs, runs and days as rows, in whatever state a janitor may find them."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import asyncpg

from evertick.contract.job import timing_of
from evertick.contract.job_reading import read_spec
from evertick.domain.job.definition import define
from evertick.domain.schedule.instants import to_us
from evertick.store.engine.lanes import lane_id_of
from evertick.usecases.jobs.rows import write_spec

QUEUE = "default"
TARGET = {"type": "worker", "queue": QUEUE, "handler": "noop"}


@dataclass(frozen=True, slots=True)
class Job:
    job_id: int
    lane_id: int


class AgedTables:
    """Writes rows straight into the tables, with ages that real ones would take months to reach."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self._numbers = iter(range(1, 1000))

    async def now(self) -> datetime:
        now: datetime = await self.connection.fetchval("SELECT clock_at()")
        return now

    async def job(
        self,
        schedule: str = "*/5 * * * *",
        *,
        status: str = "active",
        age: timedelta = timedelta(days=2),
        deleted: timedelta | None = None,
        tenant_id: int = 1,
        **fields: object,
    ) -> Job:
        """A job that was made long ago, without any timer."""
        created_at = await self.now() - age
        job_id = next(self._numbers) << 8 | 7
        spec = read_spec({"name": f"job {job_id}", "schedule": schedule, "target": TARGET, **fields})
        definition = define(timing_of(spec), job_id, created_at, created_at)
        rule_id = await self.connection.fetchval(
            "INSERT INTO rules (digest, canonical) VALUES ($1, $2)"
            " ON CONFLICT (digest) DO UPDATE SET canonical = excluded.canonical RETURNING rule_id",
            definition.digest,
            definition.canonical,
        )
        queue_id = await self._queue(tenant_id)
        await self.connection.execute(
            "INSERT INTO jobs (job_id, tenant_id, created_at, updated_at, deleted_at, spec_version, status, name,"
            " queue) VALUES ($1, $7, $2, $2, $3, 1, $4, $5, $6)",
            job_id,
            created_at,
            None if deleted is None else await self.now() - deleted,
            status,
            spec.name,
            QUEUE,
            tenant_id,
        )
        await self.connection.execute(
            "INSERT INTO job_versions (job_id, rule_id, effective_at, spec_version, timeout_seconds, name, timezone,"
            " handler, retry, spec) VALUES ($1, $2, $3, 1, 300, $4, 'UTC', 'noop', '{}', $5)",
            job_id,
            rule_id,
            created_at,
            spec.name,
            write_spec(spec),
        )
        lane_id = lane_id_of(queue_id, 7, 1)
        await self.connection.execute(
            "INSERT INTO lanes (lane_id, queue_id, partition, priority) VALUES ($1, $2, 7, 1) ON CONFLICT DO NOTHING",
            lane_id,
            queue_id,
        )
        return Job(job_id, lane_id)

    async def timer(self, job: Job, fire_at: datetime, *, kind: str = "tick", reason: str | None = None) -> None:
        await self.connection.execute(
            "INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, queue_id, spec_version, kind, reason,"
            " partition, priority) VALUES ($1, $2, $2, 1, 1, 1, 1, $3, $4, 7, 1)",
            job.job_id,
            fire_at,
            kind,
            reason,
        )

    async def attempt(self, job: Job, at: datetime, *, ended: bool, reason: str = "tick") -> int:
        """An attempt that was appended at an instant, its seq; `ended`: it has an outcome."""
        await self.day(at.date())
        seq = to_us(at)
        await self.connection.execute(
            "INSERT INTO attempts (lane_id, seq, job_id, fire_at, due_at, spec_version, epoch, reason, attempt)"
            " VALUES ($1, $2, $3, $4, $4, 1, 1, $5, 1)",
            job.lane_id,
            seq,
            job.job_id,
            at.replace(second=0, microsecond=0),
            reason,
        )
        if ended:
            await self.connection.execute(
                "INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final)"
                " VALUES ($1, $2, $3, 'success', true)",
                job.lane_id,
                seq,
                at,
            )
        else:
            await self.connection.execute(
                "INSERT INTO ready_batches (lane_id, last_seq, first_seq, due_at, attempts, is_dispatched)"
                " VALUES ($1, $2, $2, $3, 1, false)",
                job.lane_id,
                seq,
                at,
            )
        return seq

    async def finished(self, job: Job, ago: timedelta) -> None:
        await self.connection.execute(
            "INSERT INTO finished_jobs (job_id, finished_at) VALUES ($1, $2)", job.job_id, await self.now() - ago
        )

    async def gap(self, job: Job, first_at: datetime, last_at: datetime) -> None:
        await self.connection.execute(
            "INSERT INTO gaps (job_id, first_at, last_at, ticks, spec_version, reason)"
            " VALUES ($1, $2, $3, 1, 1, 'missed')",
            job.job_id,
            first_at,
            last_at,
        )

    async def head(self, job: Job, seq: int) -> None:
        """The lane was leased up to here."""
        await self.connection.execute("UPDATE lanes SET head = $2 WHERE lane_id = $1", job.lane_id, seq)

    async def day(self, day: date) -> None:
        await self.connection.execute("SELECT add_day($1)", day)

    async def today(self) -> date:
        return (await self.now()).astimezone(UTC).date()

    async def days(self) -> set[date]:
        """The days that both ledgers have."""
        rows = await self.connection.fetch(
            "SELECT to_date(right(relname, 8), 'YYYYMMDD') AS day, count(*) FROM pg_class"
            " WHERE relname ~ '^(attempts|outcomes)_\\d{8}$' GROUP BY day"
        )
        assert all(row["count"] == 2 for row in rows)
        return {row["day"] for row in rows}

    async def status(self, job: Job) -> str | None:
        status: str | None = await self.connection.fetchval("SELECT status FROM jobs WHERE job_id = $1", job.job_id)
        return status

    async def count(self, table: str) -> int:
        count: int = await self.connection.fetchval(f"SELECT count(*) FROM {table}")
        return count

    async def tick(self, job: Job) -> asyncpg.Record | None:
        return await self.connection.fetchrow(
            "SELECT fire_at, due_at, last_lane, last_seq, queue_id, rule_id, priority, spec_version, partition"
            " FROM timers WHERE job_id = $1 AND kind = 'tick'",
            job.job_id,
        )

    async def _queue(self, tenant_id: int) -> int:
        queue_id: int = await self.connection.fetchval(
            "INSERT INTO queues (tenant_id, name) VALUES ($1, $2)"
            " ON CONFLICT (tenant_id, name) DO UPDATE SET name = excluded.name RETURNING queue_id",
            tenant_id,
            QUEUE,
        )
        return queue_id
