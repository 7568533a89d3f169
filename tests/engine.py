"""What tests of the engine share: rows straight into its tables, a holder that fires as planned, and bounded waits."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import asyncpg

from evertick.domain.assignment import Member
from evertick.domain.retry import NextStep, Retry
from evertick.domain.rule import Policies, Rule, rule_of
from evertick.domain.schedule.schedule import Schedule
from evertick.roles.scheduler import Scheduler
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.roles.scheduler.planning import BatchPlanning, PlannedBatch
from evertick.runtime.clock import Clock
from evertick.store.engine import lanes, members, outcomes, timers
from evertick.store.engine.lanes import Leased, lane_id_of
from evertick.store.engine.outcomes import Ending
from evertick.store.engine.timers import Fired, FirePlan, Firing, PlannedGap
from evertick.store.statements import Connection

AT = datetime(2026, 6, 9, 12, tzinfo=UTC)
"""A fire time long past by the server's clock: whatever stands at it is due."""
MINUTE = timedelta(minutes=1)
HORIZON = timedelta(minutes=10)
LIFETIME = timedelta(seconds=60)
LEASE = timedelta(seconds=30)
PATIENCE_SECONDS = 120.0
"""On a machine of any speed: reaching it means that something hangs."""

_ADD_JOB = """
WITH given AS (
    SELECT $1::bigint AS job_id, $2::bigint AS tenant_id, $3::text AS queue, $6::timestamptz AS fire_at,
           $7::timestamptz AS due_at, $8::smallint AS priority, ($1 & 255)::smallint AS partition,
           $10::bigint AS gate_id, $11::integer AS gate_limit
), rule AS (
    INSERT INTO rules (digest, canonical) VALUES ($4, $5)
        ON CONFLICT (digest) DO UPDATE SET canonical = excluded.canonical RETURNING rule_id
), queue AS (
    INSERT INTO queues (tenant_id, name) SELECT tenant_id, queue FROM given
        ON CONFLICT (tenant_id, name) DO UPDATE SET name = excluded.name RETURNING queue_id
), job AS (
    INSERT INTO jobs (job_id, tenant_id, created_at, updated_at, spec_version, name, queue)
    SELECT job_id, tenant_id, fire_at, fire_at, 1, 'job ' || job_id, queue FROM given
), version AS (
    INSERT INTO job_versions (job_id, rule_id, effective_at, spec_version, timeout_seconds, name, timezone, handler,
                              retry, payload, spec, gate_id, gate_limit)
    SELECT job_id, rule_id, fire_at, 1, 60, 'job ' || job_id, 'UTC', 'handle', $9::json, '{"n": 1}', '{}', gate_id,
           gate_limit
      FROM given, rule
), lane AS (
    INSERT INTO lanes (lane_id, queue_id, partition, priority)
    SELECT lane_id_of(queue_id, partition, priority, is_gated), queue_id, partition, priority
      FROM given, queue, unnest(ARRAY[false, true]) AS is_gated
     WHERE gate_limit IS NOT NULL OR NOT is_gated
        ON CONFLICT DO NOTHING
), timer AS (
    INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, gate_id, queue_id, spec_version, kind, partition,
                        priority)
    SELECT job_id, fire_at, due_at, tenant_id, rule_id, gate_id, queue_id, 1, 'tick', partition, priority
      FROM given, rule, queue
)
SELECT rule_id, queue_id FROM rule, queue
"""
RETRIES = '{"max_retries": 3, "backoff": "fixed", "delay_seconds": 10, "max_delay_seconds": 10}'


@dataclass(frozen=True, slots=True)
class Job:
    """A job that was put into the tables, and where its attempts go."""

    job_id: int
    rule_id: int
    queue_id: int
    priority: int

    @property
    def partition(self) -> int:
        return self.job_id & 255

    @property
    def lane_id(self) -> int:
        return lane_id_of(self.queue_id, self.partition, self.priority)


async def add_job(
    connection: Connection,
    schedule: str = "* * * * *",
    policies: Policies | None = None,
    *,
    partition: int = 7,
    fire_at: datetime = AT,
    due_at: datetime | None = None,
    priority: int = 1,
    queue: str = "default",
    tenant_id: int = 1,
    retry: str = RETRIES,
    rule: Rule | None = None,
    gate_id: int | None = None,
    gate_limit: int | None = None,
) -> Job:
    rule = rule or rule_of(Schedule(schedule, anchor_at=AT), policies or Policies())
    job_id = await connection.fetchval("SELECT nextval('job_numbers') << 8 | $1", partition)
    row = await connection.fetchrow(
        _ADD_JOB,
        *(job_id, tenant_id, queue, rule.digest(), rule.canonical(), fire_at, due_at or fire_at, priority, retry),
        *(gate_id, gate_limit),
    )
    assert row is not None
    return Job(job_id, row["rule_id"], row["queue_id"], priority)


async def add_timer(
    connection: Connection, job: Job, kind: str, fire_at: datetime, reason: str, *, gate_id: int | None = None
) -> None:
    """A run that waits for its timer, due at its fire time."""
    await connection.execute(
        "INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, queue_id, spec_version, kind, reason,"
        " partition, priority, gate_id) VALUES ($1, $2, $2, 1, $3, $4, 1, $5, $6, $7, $8, $9)",
        *(job.job_id, fire_at, job.rule_id, job.queue_id, kind, reason, job.partition, job.priority, gate_id),
    )


@dataclass(frozen=True, slots=True)
class Planned:
    """What a test wants of one timer: by default, that its tick runs and the next one comes a minute later."""

    job: Job
    fire_at: datetime = AT
    kind: str = "tick"
    reason: str | None = "tick"
    policy: str = "SKIP"
    limit: int = 1
    due_at: datetime | None = None
    rule_id: int | None = None
    run_at: datetime | None = None
    runs: bool = True
    is_last: bool = False
    gaps: Sequence[tuple[datetime, datetime, int, str]] = ()


def firing_of(planned: Sequence[Planned]) -> Firing:
    return [(_plan_of(each), [each.job.job_id]) for each in planned]


def _plan_of(each: Planned) -> FirePlan:
    next_at = None if each.is_last or each.kind != "tick" else each.fire_at + MINUTE
    return FirePlan(
        kind=each.kind,
        fire_at=each.fire_at,
        due_at=each.due_at or each.fire_at,
        rule_id=each.job.rule_id if each.rule_id is None else each.rule_id,
        run_at=(each.run_at or each.fire_at) if each.runs else None,
        reason=each.reason if each.kind == "tick" else None,
        next_fire_at=next_at,
        next_due_at=next_at,
        policy=each.policy,
        limit=each.limit,
        gaps=tuple(PlannedGap(*gap) for gap in each.gaps),
    )


def plan_firing(entries: Iterable[PendingTimer], rules: Mapping[int, Rule], now_us: int) -> PlannedBatch:
    """Plan due timers as one batch, whatever it takes."""
    batch = BatchPlanning(rules, now_us)
    for _ in batch.run(entries):
        pass
    return batch.planned


@dataclass(slots=True)
class Holder:
    """A scheduler as the store sees it: a node, its epochs, and the seq after which it goes on."""

    connection: Connection
    node: str = "first"
    epochs: dict[int, int] = field(default_factory=dict)
    last_seq: int = 0

    async def take(self, *partitions: int) -> dict[int, int]:
        await members.heartbeat(self.connection, Member(self.node), "1", LIFETIME)
        taken = await members.take(self.connection, self.node, partitions, LIFETIME)
        self.epochs |= taken
        self.last_seq = max(self.last_seq, await members.last_seq(self.connection, taken))
        return taken

    async def fire(self, *planned: Planned) -> Fired:
        fired = await timers.fire(self.connection, self.node, self.epochs, self.last_seq, firing_of(planned))
        self.last_seq = fired.last_seq
        return fired

    async def fire_ticks(self, first: Planned, count: int) -> list[Fired]:
        """The same plan for so many ticks, one after the other."""
        return [await self.fire(replace(first, fire_at=first.fire_at + n * MINUTE)) for n in range(count)]


async def lease(connection: Connection, *jobs: Job, worker: str = "w", most: int = 100) -> list[Leased]:
    return await lanes.read(
        connection,
        await lanes.lease(
            connection,
            sorted({job.queue_id for job in jobs}),
            worker,
            lanes=64,
            most_per_lane=most,
            rotation=0,
            lease_time=LEASE,
            tenant_id=None,
        ),
    )


async def lease_free(connection: Connection, *jobs: Job, worker: str = "w", most: int = 100) -> list[Leased]:
    """What was put back, or has passed its gate."""
    queue_ids = sorted({job.queue_id for job in jobs})
    found = await lanes.lease_free(connection, queue_ids, None, worker, most=most, lease_time=LEASE, tenant_id=None)
    return await lanes.read(connection, found)


def ending_of(leased: Leased, result: str = "success", then: NextStep = None) -> Ending:
    return Ending(
        leased.lane_id,
        leased.seq,
        leased.job_id,
        leased.fire_at,
        leased.spec_version,
        leased.reason,
        result,
        started_at=AT,
        finished_at=AT,
        then=then,
    )


AGAIN = Retry(2, timedelta(0))


async def finish(connection: Connection, job: Job, result: str = "success", then: NextStep = None) -> int:
    """Lease and end whatever is ready in a job's queue; how many attempts that was."""
    leased = await lease(connection, job)
    done = sorted({each.lease_id for each in leased})
    endings = [ending_of(each, result, then) for each in leased]
    stale, busy = await outcomes.record(connection, "w", endings, done)
    return len(endings) - len(stale) - len(busy)


async def retry_timer(connection: Connection, job: Job) -> Planned:
    """The plan for a job's only retry timer."""
    due_at = await connection.fetchval("SELECT due_at FROM timers WHERE job_id = $1 AND kind = 'retry'", job.job_id)
    fire_at = await connection.fetchval("SELECT fire_at FROM timers WHERE job_id = $1 AND kind = 'retry'", job.job_id)
    return Planned(job, fire_at, kind="retry", due_at=due_at, rule_id=0)


async def runs_of(connection: Connection, job: Job) -> list[tuple[datetime, str, int]]:
    """The attempts of a job in the order in which they were fired: fire time, reason, number."""
    rows = await connection.fetch(
        "SELECT fire_at, reason::text, attempt FROM attempts WHERE job_id = $1 ORDER BY seq", job.job_id
    )
    return [tuple(row) for row in rows]


async def gaps_of(connection: Connection, job: Job) -> list[tuple[datetime, datetime, int, str]]:
    rows = await connection.fetch(
        "SELECT first_at, last_at, ticks, reason::text FROM gaps WHERE job_id = $1 ORDER BY first_at, gaps.reason",
        job.job_id,
    )
    return [tuple(row) for row in rows]


async def timers_of(connection: Connection, job: Job) -> list[tuple[str, datetime]]:
    rows = await connection.fetch(
        "SELECT kind::text, fire_at FROM timers WHERE job_id = $1 ORDER BY timers.kind, fire_at", job.job_id
    )
    return [tuple(row) for row in rows]


@asynccontextmanager
async def scheduler(
    url: str,
    node: str = "scheduler",
    clock: Clock | None = None,
    *,
    catch_up_factor: float | None = None,
    normal_rate: float = 500,
) -> AsyncIterator[Scheduler]:
    """A scheduler whose steps the test drives."""
    opened = Scheduler(
        url,
        node,
        lifetime=LIFETIME,
        lease_time=LEASE,
        horizon=HORIZON,
        clock=clock,
        catch_up_factor=catch_up_factor,
        normal_rate=normal_rate,
    )
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()


async def stop_clock(connection: Connection) -> None:
    """Let the database's clock stand still from now on: no rate has another token, however slow the machine is."""
    await connection.execute(
        "DO $$ BEGIN EXECUTE format('CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE"
        " AS %L', format('SELECT %L::timestamptz', clock_timestamp())); END $$"
    )


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait for what other tasks or sessions bring about, but not for ever."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await condition():  # noqa: ASYNC110 - other sessions set no event
            await asyncio.sleep(0.005)  # between two looks


async def until_blocked(watcher: Connection, blocked: asyncpg.Connection) -> None:
    """Wait until a session waits for a lock that another holds."""
    await until(lambda: watcher.fetchval("SELECT pg_blocking_pids($1) <> '{}'", blocked.get_server_pid()))
