"""The statements of the scenario `age`: jobs are made due again, a snapshot is held, sizes are read."""

import asyncpg

from evertick.bench import floor_queries, queries
from evertick.bench.scenarios.floor import RunRows
from evertick.store.lanes import clock

RUNS = range(512)
PINNED = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND backend_xmin IS NOT NULL AND state = 'idle in transaction'"
)


async def test_jobs_of_one_queue_and_partition_are_made_due(connection: asyncpg.Connection) -> None:
    await connection.execute("INSERT INTO queues (tenant_id, name) VALUES (1, 'bench'), (1, 'other')")
    queue_id = await connection.fetchval("SELECT queue_id FROM queues WHERE name = 'bench'")
    rows = RunRows(await clock(connection), seed=1)
    mine = [row._replace(queue_id=queue_id) for row in rows.timers(RUNS)]
    other = [row._replace(queue_id=queue_id + 1, job_id=row.job_id + (1000 << 8)) for row in mine]
    await floor_queries.copy_timers(connection, [*mine, *other])
    fire_at = rows.next_at
    assert await queries.make_due(connection, "bench", 7, fire_at) == 2
    moved = await connection.fetch("SELECT partition, queue_id, fire_at FROM timers WHERE due_at = $1", fire_at)
    assert [tuple(row) for row in moved] == [(7, queue_id, fire_at)] * 2


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
