"""The rows of the scenario `floor` have the columns and indexes of real runs."""

import asyncpg
import pytest

from evertick.bench import floor_queries
from evertick.bench.scenarios.floor import RunRows
from evertick.store.engine.lanes import clock

RUNS = range(600)
TABLES = [
    ("attempts", floor_queries.FloorAttempt._fields),
    ("outcomes", floor_queries.FloorOutcome._fields),
    ("timers", floor_queries.FloorTimer._fields),
]


@pytest.mark.parametrize(("table", "fields"), TABLES)
async def test_rows_have_every_column(connection: asyncpg.Connection, table: str, fields: tuple[str, ...]) -> None:
    columns = await connection.fetch(
        "SELECT attname FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0", table
    )
    assert sorted(fields) == sorted(row["attname"] for row in columns)


@pytest.mark.parametrize("table", ["attempts", "outcomes"])
async def test_tables_have_the_indexes_of_a_days_partition(connection: asyncpg.Connection, table: str) -> None:
    await floor_queries.make_tables(connection)
    count = "SELECT count(*) FROM pg_index WHERE indrelid = $1::text::regclass"
    assert await connection.fetchval(count, f"floor_{table}") == await connection.fetchval(count, table) > 0


async def test_firing_moves_each_timer_and_appends_its_attempt(connection: asyncpg.Connection) -> None:
    rows = await _prepared(connection)
    assert await floor_queries.fire(connection, rows.attempts(RUNS), rows.next_at) == len(RUNS)
    assert await floor_queries.copy(connection, rows.outcomes(RUNS)) == len(RUNS)
    joined = await connection.fetchval(
        "SELECT count(*) FROM timers"
        "  JOIN floor_attempts attempt ON (attempt.lane_id, attempt.seq) = (last_lane, last_seq)"
        "   AND attempt.job_id = timers.job_id AND attempt.fire_at < timers.fire_at"
        "  JOIN floor_outcomes outcome ON (outcome.lane_id, outcome.seq) = (last_lane, last_seq)"
    )
    assert joined == len(RUNS)


async def test_each_run_is_followed_by_the_next_of_its_job(connection: asyncpg.Connection) -> None:
    rows = await _prepared(connection)
    following = rows.following()
    assert await floor_queries.move(connection, following.attempts(RUNS), following.next_at) == 0
    assert await floor_queries.move(connection, rows.attempts(RUNS), rows.next_at) == len(RUNS)
    assert await floor_queries.move(connection, following.attempts(RUNS), following.next_at) == len(RUNS)


async def _prepared(connection: asyncpg.Connection) -> RunRows:
    """Empty tables, and the timers of all runs."""
    await floor_queries.make_tables(connection)
    rows = RunRows(await clock(connection), seed=1)
    assert await floor_queries.copy(connection, rows.timers(RUNS)) == len(RUNS)
    return rows
