"""The statements of measurements: results, and those of the scenario `age`."""

from datetime import UTC, datetime, timedelta

import asyncpg

from engine import add_job
from evertick.bench import floor_queries, queries
from evertick.bench.scenarios.floor import RunRows
from evertick.store.database import Pool
from evertick.store.engine.lanes import clock, lane_id_of

QUEUE = "bench"
RUNS = range(512)
PINNED = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND backend_xmin IS NOT NULL AND state = 'idle in transaction'"
)


async def _queue(connection: asyncpg.Connection, tenant_id: int = 1) -> int:
    queue_id: int = await connection.fetchval(
        "INSERT INTO queues (tenant_id, name) VALUES ($1, $2) RETURNING queue_id", tenant_id, QUEUE
    )
    return queue_id


async def _attempt(
    connection: asyncpg.Connection,
    queue_id: int,
    job_id: int,
    fire_at: datetime,
    *,
    attempt: int = 1,
    result: str | None = "success",
    lag_ms: float = 1.0,
) -> None:
    """An attempt, and its outcome unless it has none."""
    lane_id, seq = lane_id_of(queue_id, 0, 0), int(fire_at.timestamp() * 1_000_000) + 10 * job_id + attempt
    await connection.execute(
        "INSERT INTO attempts (lane_id, seq, job_id, fire_at, due_at, spec_version, epoch, reason, attempt)"
        " VALUES ($1, $2, $3, $4, $4, 1, 1, 'tick', $5)",
        *(lane_id, seq, job_id, fire_at, attempt),
    )
    if result is not None:
        started_at = fire_at + timedelta(milliseconds=lag_ms)
        await connection.execute(
            "INSERT INTO outcomes (lane_id, seq, started_at, finished_at, result, is_final)"
            " VALUES ($1, $2, $3, $3, $4::text::outcome_result, true)",
            *(lane_id, seq, started_at, result),
        )


async def _runs(pool: Pool, fire_at: datetime) -> queries.RunStatistics:
    return await queries.runs(pool, QUEUE, fire_at, fire_at + timedelta(microseconds=1))


async def _now(connection: asyncpg.Connection) -> datetime:
    return (await clock(connection)).replace(microsecond=0)


async def test_runs_that_succeed_once_are_counted_with_their_lags(connection: asyncpg.Connection, pool: Pool) -> None:
    queue_id, fire_at = await _queue(connection), await _now(connection)
    for job_id in range(1, 102):
        await _attempt(connection, queue_id, job_id, fire_at, lag_ms=job_id - 1)
    runs = await _runs(pool, fire_at)
    assert (runs.runs, runs.succeeded, runs.duplicates) == (101, 101, 0)
    assert runs.lags_ms == [50, 95, 99, 100]
    assert (runs.first_started_at, runs.last_finished_at) == (fire_at, fire_at + timedelta(milliseconds=100))


async def test_a_run_without_a_success_is_missing(connection: asyncpg.Connection, pool: Pool) -> None:
    queue_id, fire_at = await _queue(connection), await _now(connection)
    await _attempt(connection, queue_id, 1, fire_at)
    await _attempt(connection, queue_id, 2, fire_at, result="failed")
    await _attempt(connection, queue_id, 3, fire_at, result=None)
    runs = await _runs(pool, fire_at)
    assert (runs.runs, runs.succeeded, runs.duplicates) == (3, 1, 0)


async def test_a_run_that_was_started_again_is_a_duplicate(connection: asyncpg.Connection, pool: Pool) -> None:
    queue_id, fire_at = await _queue(connection), await _now(connection)
    await _attempt(connection, queue_id, 1, fire_at, result="lost")
    await _attempt(connection, queue_id, 1, fire_at, attempt=2)
    await _attempt(connection, queue_id, 1, fire_at, attempt=3)
    runs = await _runs(pool, fire_at)
    assert (runs.runs, runs.succeeded, runs.duplicates) == (1, 1, 2)


async def test_a_deferred_attempt_is_no_start(connection: asyncpg.Connection, pool: Pool) -> None:
    queue_id, fire_at = await _queue(connection), await _now(connection)
    await _attempt(connection, queue_id, 1, fire_at, result="deferred", lag_ms=5)
    await _attempt(connection, queue_id, 1, fire_at, attempt=2, lag_ms=70)
    runs = await _runs(pool, fire_at)
    assert (runs.runs, runs.succeeded, runs.duplicates, runs.lags_ms) == (1, 1, 0, [70] * 4)


async def test_runs_of_other_tenants_count_unless_tenants_are_named(connection: asyncpg.Connection, pool: Pool) -> None:
    fire_at, interval = await _now(connection), timedelta(microseconds=1)
    for tenant_id in (1, 2, 3):
        await _attempt(connection, await _queue(connection, tenant_id), tenant_id, fire_at)
    found = [
        (await queries.runs(pool, QUEUE, fire_at, fire_at + interval, tenant_ids)).runs
        for tenant_ids in (None, [2], [1, 3], [])
    ]
    assert found == [3, 1, 2, 0]


async def test_other_fire_times_and_queues_are_not_counted(connection: asyncpg.Connection, pool: Pool) -> None:
    queue_id, fire_at = await _queue(connection), await _now(connection)
    await _attempt(connection, queue_id, 1, fire_at + timedelta(seconds=1))
    await _attempt(connection, queue_id + 1, 2, fire_at)
    runs = await _runs(pool, fire_at)
    assert (runs.runs, runs.lags_ms) == (0, None)


async def test_ticks_that_became_gaps_are_counted(connection: asyncpg.Connection, pool: Pool) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    await connection.execute(
        "INSERT INTO gaps (job_id, first_at, last_at, ticks, spec_version, reason)"
        " VALUES (1, $1, $2, 7, 1, 'missed'), (2, $2, $2, 1, 1, 'missed')",
        *(at, at + timedelta(hours=1)),
    )
    assert await queries.gaps(pool, at, at + timedelta(minutes=1)) == 7
    assert await queries.gaps(pool, at, at + timedelta(hours=2)) == 8


async def test_skipped_ticks_are_counted_by_reason_queue_and_tenant(connection: asyncpg.Connection, pool: Pool) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    hour_at = at + timedelta(hours=1)
    await connection.execute(
        "INSERT INTO jobs (job_id, tenant_id, created_at, updated_at, spec_version, name, queue)"
        " SELECT n, n, $1, $1, 1, n::text, CASE n WHEN 3 THEN 'other' ELSE $2 END FROM generate_series(1, 3) AS n",
        *(at, QUEUE),
    )
    await connection.execute(
        "INSERT INTO gaps (job_id, first_at, last_at, ticks, spec_version, reason) VALUES"
        " (1, $1, $2, 7, 1, 'missed'), (1, $1, $1, 1, 1, 'overlap'), (2, $1, $1, 2, 1, 'missed'),"
        " (2, $2, $2, 4, 1, 'missed'), (3, $1, $1, 9, 1, 'missed')",
        *(at, hour_at),
    )
    assert await queries.skipped(pool, QUEUE, at, hour_at) == {"missed": 9, "overlap": 1}
    assert await queries.skipped(pool, QUEUE, at, hour_at, [2]) == {"missed": 2}
    assert await queries.skipped(pool, QUEUE, at + timedelta(seconds=1), hour_at) == {}


async def test_the_backlog_is_what_is_ready_and_what_is_due(connection: asyncpg.Connection, pool: Pool) -> None:
    assert await queries.backlog(pool) == (0, 0, 0)
    now_at = await clock(connection)
    for partition, hours in ((7, 1), (7, 2), (255, 3), (8, -1)):
        await add_job(connection, partition=partition, fire_at=now_at - timedelta(hours=hours))
    await connection.execute(
        "INSERT INTO ready_batches VALUES (1, 1, 1, clock_at(), 4, false), (2, 9, 3, now(), 6, true)"
    )
    backlog = await queries.backlog(pool)
    assert (backlog.ready, backlog.overdue) == (10, 3)
    assert 3 * 3600 <= backlog.oldest_seconds < 4 * 3600


async def test_nothing_is_ready_or_leased_in_an_empty_database(pool: Pool) -> None:
    leases = await queries.leases(pool)
    assert (leases.is_any, leases.expires_at) == (False, None)
    assert not await queries.is_ready(pool)
    assert await queries.held(pool) == 0


async def test_a_batch_that_nobody_has_leased_is_ready(connection: asyncpg.Connection, pool: Pool) -> None:
    assert not await queries.is_ready(pool)
    await connection.execute("INSERT INTO ready_batches VALUES (1, 1, 1, clock_at(), 1, false)")
    assert await queries.is_ready(pool)


async def test_jobs_of_one_queue_and_partition_are_made_due(connection: asyncpg.Connection) -> None:
    await connection.execute("INSERT INTO queues (tenant_id, name) VALUES (1, 'bench'), (1, 'other')")
    queue_id = await connection.fetchval("SELECT queue_id FROM queues WHERE name = 'bench'")
    rows = RunRows(await clock(connection), seed=1)
    mine = [row._replace(queue_id=queue_id) for row in rows.timers(RUNS)]
    other = [row._replace(queue_id=queue_id + 1, job_id=row.job_id + (1000 << 8)) for row in mine]
    await floor_queries.copy(connection, [*mine, *other])
    fire_at = rows.next_at
    assert await queries.make_due(connection, "bench", 7, fire_at) == 2
    moved = await connection.fetch("SELECT partition, queue_id, fire_at FROM timers WHERE due_at = $1", fire_at)
    assert [tuple(row) for row in moved] == [(7, queue_id, fire_at)] * 2


async def test_jobs_of_one_tenant_are_made_due(connection: asyncpg.Connection) -> None:
    now_at = await clock(connection)
    later_at = now_at + timedelta(hours=1)
    for tenant_id in (1, 2):
        await add_job(connection, fire_at=later_at, queue=QUEUE, tenant_id=tenant_id)
    assert await queries.make_due(connection, QUEUE, 7, now_at, tenant_ids=[2]) == 1
    assert await connection.fetchval("SELECT tenant_id FROM timers WHERE due_at = $1", now_at) == 2


async def test_a_snapshot_is_held_until_it_is_released(connection: asyncpg.Connection, database_url: str) -> None:
    assert await connection.fetchval(PINNED) == 0
    async with queries.held_snapshot(database_url):
        assert await connection.fetchval(PINNED) == 1
    assert await connection.fetchval(PINNED) == 0


async def test_the_footprint_separates_growing_from_constant_tables(connection: asyncpg.Connection) -> None:
    before = await queries.footprint(connection)
    await connection.execute(
        "INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final)"
        " SELECT 1024, microseconds(clock_at()) + number, clock_at(), 'success', true"
        "   FROM generate_series(1, 2000) AS number"
    )
    after = await queries.footprint(connection)
    assert after.outcomes > before.outcomes
    assert after._replace(outcomes=0) == before._replace(outcomes=0)
