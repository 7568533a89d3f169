"""A tenant, a clock that stands still until it is moved, a scheduler and a worker that act when they are told to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta

import asyncpg

from engine import Holder, plan_firing
from evertick.contract.job import Job
from evertick.domain.ids import Prefix, parse_id
from evertick.domain.retry import NextStep
from evertick.domain.rule import from_canonical
from evertick.domain.schedule.instants import to_us
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.store.database import Pool
from evertick.store.engine import gates, lanes, outcomes, timers
from evertick.store.engine.lanes import Leased
from evertick.store.engine.outcomes import Ending
from evertick.store.engine.timers import Firing, Timer
from evertick.store.jobs import references
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create

MINUTE = timedelta(minutes=1)
LOOK = timedelta(milliseconds=20)
WORKER = {"type": "worker", "queue": "mail", "handler": "send"}
NOON = datetime.combine(datetime.now(UTC), time(12), UTC)
"""Of today: the ledgers have a partition for it."""


@dataclass(slots=True)
class World:
    """One test's database. It begins half a minute after noon."""

    connection: asyncpg.Connection
    pool: Pool
    holder: Holder
    woken: list[int] = field(default_factory=list)

    def tenant(self, tenant_id: int = 1) -> TenantContext:
        return TenantContext(self.pool, tenant_id, notify=self.woken.extend)

    async def set_clock(self, at: datetime) -> None:
        await self.connection.execute(
            "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE"
            f" AS $$ SELECT timestamptz '{at.isoformat()}' $$"
        )

    async def run_clock(self, at: datetime) -> None:
        """From this instant on the clock moves a little, by `LOOK`, each time that someone looks at it."""
        await self.connection.execute(
            "CREATE SEQUENCE IF NOT EXISTS looks;"
            "ALTER SEQUENCE looks RESTART;"
            "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL UNSAFE"
            f" AS $$ SELECT timestamptz '{at.isoformat()}' + nextval('looks') * interval '{LOOK}' $$"
        )

    async def minutely(self, **fields: object) -> Job:
        """A job whose next tick is at 12:01."""
        return await create(self.tenant(), {"schedule": "* * * * *", "target": WORKER, **fields})

    async def plan(self) -> Firing:
        """What a scheduler would fire now, at most one timer of a job."""
        now_at = await lanes.clock(self.connection)
        due = await timers.load(
            self.connection, range(256), [datetime(1, 1, 1, tzinfo=UTC)] * 256, now_at + MINUTE, 999
        )
        first: dict[int, Timer] = {}
        for timer in due:
            if timer.due_at <= now_at:
                first.setdefault(timer.job_id, timer)
        texts = await references.rules(self.connection, {timer.rule_id for timer in first.values()})
        known = {rule_id: from_canonical(text) for rule_id, text in texts.items()}
        return plan_firing([PendingTimer(0, timer) for timer in first.values()], known, to_us(now_at)).firing

    async def fire(self, firing: Firing | None = None) -> int:
        """One round of firing; how many runs it began."""
        firing = await self.plan() if firing is None else firing
        fired = await timers.fire(
            self.holder.connection, self.holder.node, self.holder.epochs, self.holder.last_seq, firing
        )
        self.holder.last_seq = fired.last_seq
        await gates.let_in(self.connection, fired.gate_ids)
        return fired.runs

    async def sweep(self) -> int:
        """One sweep of a scheduler over all gates; how many runs it let in."""
        found = await gates.waiting(self.connection, range(256), after=gates.FIRST_GATE, most=999)
        return len(await gates.let_in(self.connection, [gate.gate_id for gate in found]))

    async def lease(self, queue: str | None = None) -> list[Leased]:
        """What is ready, in one queue or in all."""
        rows = await self.connection.fetch("SELECT queue_id FROM queues WHERE $1::text IS NULL OR name = $1", queue)
        queue_ids = [row["queue_id"] for row in rows]
        ranges = await lanes.lease(
            self.connection,
            queue_ids,
            "worker-1",
            lanes=999,
            most_per_lane=99,
            rotation=0,
            lease_time=MINUTE,
            tenant_id=None,
        )
        free = await lanes.lease_free(
            self.connection, queue_ids, None, "worker-1", most=999, lease_time=MINUTE, tenant_id=None
        )
        return await lanes.read(self.connection, [*ranges, *free])

    async def record(
        self,
        leased: Iterable[Leased],
        result: str = "success",
        then: NextStep = None,
        code: int | None = None,
    ) -> int:
        """End attempts; how many were not ended already."""
        now_at = await lanes.clock(self.connection)
        endings = [
            Ending(
                each.lane_id,
                each.seq,
                each.job_id,
                each.fire_at,
                each.spec_version,
                each.reason,
                result,
                now_at - timedelta(milliseconds=412),
                now_at,
                code=code,
                error=None if result == "success" else "it broke",
                excerpt="so sorry",
                then=then,
            )
            for each in leased
        ]
        left: set[int] = set()
        stale, busy = await outcomes.record(
            self.connection, "worker-1", endings, [each.lease_id for each in leased], left=left.update
        )
        await gates.let_in(self.connection, left)
        return len(endings) - len(stale) - len(busy)

    async def run_all(self) -> list[Leased]:
        """Fire, lease and end with success until nothing is left to do now."""
        done: list[Leased] = []
        while await self.fire():
            leased = await self.lease()
            await self.record(leased)
            done += leased
        return done

    async def timers_of(self, job: Job) -> list[tuple[str, datetime, bool]]:
        """Kind, fire time, and whether it will ever be due."""
        rows = await self.connection.fetch(
            "SELECT kind::text, fire_at, due_at < 'infinity' FROM timers WHERE job_id = $1"
            " ORDER BY timers.kind, fire_at",
            key_of(job),
        )
        return [tuple(row) for row in rows]

    async def gaps_of(self, job: Job) -> list[tuple[datetime, datetime, int, str]]:
        rows = await self.connection.fetch(
            "SELECT first_at, last_at, ticks, reason::text FROM gaps WHERE job_id = $1 ORDER BY first_at", key_of(job)
        )
        return [tuple(row) for row in rows]

    async def count(self, *tables: str) -> Sequence[int]:
        """How many rows tables have; of rules those but for the one that is always there."""
        own = {"rules": "rules WHERE digest <> one_off_digest()"}
        return [await self.connection.fetchval(f"SELECT count(*) FROM {own.get(table, table)}") for table in tables]


def key_of(job: Job) -> int:
    return parse_id(Prefix.JOB, job.job_id)


def at(minute: int, second: int = 0) -> datetime:
    """So many minutes after noon."""
    return NOON + timedelta(minutes=minute, seconds=second)
