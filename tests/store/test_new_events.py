"""Where the look for new events begins: after those that are moved, and never after one that may still come."""

import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from evertick.store import database, statements
from evertick.store.database import Pool
from evertick.store.tenants import events

_ADD = "INSERT INTO new_events (tenant_id, type) SELECT 1, 'audit.recorded' FROM generate_series(1, $1::integer)"
_MANY = 2000


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await database.connect(database_url)
    yield connection
    await connection.close()


async def add(connection: asyncpg.Connection, count: int) -> None:
    """As triggers do, in a transaction that has written before."""
    async with connection.transaction():
        await connection.execute("SELECT pg_current_xact_id()")
        await connection.execute(_ADD, count)


async def pages_to_look(connection: asyncpg.Connection) -> int:
    statement = statements.load("events")["has_new"]
    plan = json.loads(await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement.text}"))[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def test_a_look_for_new_events_does_not_read_those_that_were_moved_under_an_old_snapshot(
    pool: Pool, connection: asyncpg.Connection, second: asyncpg.Connection
) -> None:
    async with second.transaction(isolation="repeatable_read", readonly=True):
        await second.fetchval("SELECT count(*) FROM new_events")
        for _ in range(5):
            await add(connection, _MANY)
            assert await events.give_positions(pool, 2 * _MANY) == _MANY
        assert await pages_to_look(connection) < 30
    assert await connection.fetchval("SELECT moved_up_to FROM event_positions") == 4 * _MANY


async def test_an_event_whose_transaction_ends_late_is_moved_however_many_came_after_it(
    pool: Pool, connection: asyncpg.Connection, second: asyncpg.Connection
) -> None:
    async with second.transaction():
        await second.execute("SELECT pg_current_xact_id()")
        await second.execute(_ADD, 1)
        for _ in range(5):
            await add(connection, 10)
            assert await events.give_positions(pool, 100) == 10
    assert await events.give_positions(pool, 100) == 1
    assert await connection.fetchval("SELECT count(*) FROM new_events") == 0


async def test_an_event_of_the_newest_transaction_is_moved_when_it_ends_after_others(
    pool: Pool, connection: asyncpg.Connection, second: asyncpg.Connection
) -> None:
    await add(connection, 10)
    assert await events.give_positions(pool, 100) == 10
    await add(connection, 10)
    async with second.transaction():
        await second.execute("SELECT pg_current_xact_id()")
        await second.execute(_ADD, 1)
        for _ in range(2):
            assert await events.give_positions(pool, 100) == 10
            await add(connection, 10)
        assert await events.give_positions(pool, 100) == 10
    assert await events.give_positions(pool, 100) == 1


async def test_what_a_batch_leaves_is_moved_by_the_next(pool: Pool, connection: asyncpg.Connection) -> None:
    await add(connection, 50)
    moved = [await events.give_positions(pool, 20) for _ in range(4)]
    assert moved == [20, 20, 10, 0]


async def test_a_server_that_was_restarted_trusts_no_number_of_the_one_before(
    pool: Pool, connection: asyncpg.Connection
) -> None:
    await connection.execute("UPDATE event_positions SET drawn = 1000000, drawn_before = '3', drawn_on = '2026-01-01Z'")
    for _ in range(3):
        await add(connection, 10)
        assert await events.give_positions(pool, 100) == 10
    assert await connection.fetchval("SELECT moved_up_to FROM event_positions") == 20
