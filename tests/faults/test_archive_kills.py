"""A janitor that is killed while it exports a day, and while it drops it: every row is in exactly one file that was
verified, and no row is lost.
"""

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from archives import files_in
from evertick.bench.processes import cpu_seconds, peak_memory_mb
from evertick.domain.schedule.instants import to_us
from evertick.store.engine.lanes import lane_id_of
from faults.cluster import Cluster
from faults.processes import Process
from roles.aged_tables import AgedTables

pytestmark = pytest.mark.slow

LONG_AGO = timedelta(days=100)
PATIENCE_SECONDS = 500
LANES = 32
MOST_MB = 500
"""Of a janitor, however large its day is: a few row groups, and what pyarrow keeps."""
_FILL = """
WITH numbers AS (
    SELECT $1::bigint[] AS lanes, $2::bigint AS first_seq, number FROM generate_series(0, $4::integer - 1) AS number
), added AS (
    INSERT INTO attempts (lane_id, seq, job_id, fire_at, due_at, spec_version, epoch, reason, attempt)
    SELECT lanes[1 + number % cardinality(lanes)], first_seq + 1000 * number, $3, at, at, 1, 1, 'tick', 1
      FROM numbers, LATERAL (SELECT to_timestamp((first_seq + 1000 * number) / 1e6) AS at) AS times
 RETURNING lane_id, seq, fire_at
)
INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final)
SELECT lane_id, seq, fire_at, 'success', true FROM added
"""
_HOLD_UP = """
CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(3600); RAISE 'it was not ended'; END $$;
CREATE TRIGGER hold_up BEFORE UPDATE OF is_checked ON archive_files EXECUTE FUNCTION hold_up();
"""
_END_HELD_UP = """
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event = 'PgSleep'
"""
_EXPORTS = "SELECT count(*) FROM archive_files WHERE kind = 'runs' AND NOT is_checked"
_DROPS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active'
       AND query LIKE '%drop_archived_day(%'
"""
_LOCKS = """
SELECT count(*) FROM pg_locks JOIN pg_database ON oid = database
 WHERE locktype = 'advisory' AND granted AND datname = current_database()
"""
_TIMES = """
SELECT extract(epoch FROM verified_at - claimed_at)::float AS export,
       extract(epoch FROM dropped_at - verified_at)::float AS drop
  FROM archived_days
"""
_IS_DROPPED = "SELECT count(*) FROM archived_days WHERE state = 'dropped'"


class Day(NamedTuple):
    suffix: str
    tokens: frozenset[tuple[int, int]]


async def fill_day(cluster: Cluster, rows: int) -> Day:
    """A day that is older than history is kept, with finished runs in many lanes."""
    async with cluster.pool.acquire() as connection:
        aged = AgedTables(connection)  # type: ignore[arg-type] # a connection of the pool
        at: datetime = (await aged.now() - LONG_AGO).replace(hour=1, minute=0, second=0, microsecond=0)
        job = await aged.job(age=2 * LONG_AGO)
        await aged.timer(job, at + 2 * LONG_AGO)
        await aged.day(at.date())
        queue_id = await connection.fetchval("SELECT queue_id FROM lanes WHERE lane_id = $1", job.lane_id)
        lanes = [lane_id_of(queue_id, partition, 1) for partition in range(LANES)]
        await connection.execute(
            "INSERT INTO lanes (lane_id, queue_id, partition, priority, head)"
            " SELECT lane_id, $2, number - 1, 1, $3 FROM unnest($1::bigint[]) WITH ORDINALITY AS each (lane_id, number)"
            " ON CONFLICT (lane_id) DO UPDATE SET head = excluded.head",
            *(lanes, queue_id, to_us(at + timedelta(days=1))),
        )
        await connection.execute(_FILL, lanes, to_us(at), job.job_id, rows, timeout=PATIENCE_SECONDS)
    tokens = frozenset((lanes[number % LANES], to_us(at) + 1000 * number) for number in range(rows))
    return Day(f"{at.date():%Y%m%d}", tokens)


async def kill(cluster: Cluster, janitor: Process) -> None:
    """Kill it, and wait until the server has noticed: the next janitor tries once a minute to get its lock."""
    janitor.kill()

    async def is_free() -> bool:
        return not await cluster.value(_LOCKS)

    await cluster.until(is_free, "the lock of the janitor that was killed is free", PATIENCE_SECONDS)


async def kill_in_export(cluster: Cluster, archive: Path) -> None:
    """While a trigger holds up the janitor before it notes that its file was checked."""
    await cluster.pool.execute(_HOLD_UP)
    janitor = cluster.janitor(archive=archive)
    await cluster.until_count(_EXPORTS, 1, PATIENCE_SECONDS)
    await kill(cluster, janitor)
    await cluster.pool.execute(_END_HELD_UP)
    assert await cluster.value(_EXPORTS) == 1
    await cluster.pool.execute("DROP TRIGGER hold_up ON archive_files")


async def kill_in_drop(cluster: Cluster, archive: Path, day: Day) -> None:
    async with cluster.pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        await connection.execute(f"LOCK TABLE outcomes_{day.suffix} IN ROW EXCLUSIVE MODE")
        janitor = cluster.janitor(archive=archive)
        await cluster.until_count(_DROPS, 1, PATIENCE_SECONDS)
        await kill(cluster, janitor)


async def archive_to_the_end(cluster: Cluster, archive: Path) -> Process:
    janitor = cluster.janitor(archive=archive)
    await cluster.until_count(_IS_DROPPED, 1, PATIENCE_SECONDS)
    return janitor


async def assert_all_is_archived_once(cluster: Cluster, archive: Path, day: Day) -> None:
    known = {row["path"] for row in await cluster.pool.fetch("SELECT path FROM archive_files WHERE is_released")}

    async def are_others_removed() -> bool:
        return set(files_in(archive)) == known

    await cluster.until(are_others_removed, "what was not verified is removed", PATIENCE_SECONDS)
    found: list[tuple[int, int]] = []
    for path in known:
        columns = pq.ParquetFile(archive / path).read(["lane_id", "seq"]).to_pydict()
        found += zip(columns["lane_id"], columns["seq"], strict=True)
    assert len(found) == len(day.tokens)
    assert frozenset(found) == day.tokens
    assert await cluster.value(f"SELECT to_regclass('attempts_{day.suffix}')") is None


async def test_a_day_whose_export_and_drop_are_killed_is_archived_once(cluster: Cluster, tmp_path: Path) -> None:
    day = await fill_day(cluster, 60_000)
    archive = tmp_path / "archive"
    await kill_in_export(cluster, archive)
    await kill_in_drop(cluster, archive, day)
    janitor = await archive_to_the_end(cluster, archive)
    await assert_all_is_archived_once(cluster, archive, day)
    janitor.terminate()


@pytest.mark.campaign
@pytest.mark.parametrize("rows", [200_000, 2_000_000])
async def test_a_large_day_takes_as_little_memory_as_a_small_one(cluster: Cluster, tmp_path: Path, rows: int) -> None:
    day = await fill_day(cluster, rows)
    archive = tmp_path / "archive"
    janitor = await archive_to_the_end(cluster, archive)
    memory_mb, cpu = peak_memory_mb(janitor.pid) or 0, cpu_seconds(janitor.pid) or 0
    took = await cluster.pool.fetchrow(_TIMES)
    assert took is not None
    await assert_all_is_archived_once(cluster, archive, day)
    size_mb = sum((archive / path).stat().st_size for path in files_in(archive)) / 1e6
    sys.stdout.write(
        f"{rows:,} runs: export and check {took['export']:.1f} s, drop {took['drop']:.2f} s, {size_mb:.0f} MB of files;"
        f" the janitor's CPU time {cpu:.1f} s, its peak memory {memory_mb:.0f} MB\n"
    )
    assert memory_mb < MOST_MB
    janitor.terminate()
