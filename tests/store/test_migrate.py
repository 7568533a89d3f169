import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

import postgres
from evertick.store import migrate
from evertick.store.database import connect
from evertick.store.migrate import Migration, SchemaMismatch, check_schema, migrations, pending


@pytest.fixture
async def empty_url(postgres_server: postgres.Server) -> AsyncIterator[str]:
    async with postgres_server.database(empty=True) as url:
        yield url


@pytest.fixture
async def empty(empty_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(empty_url)
    yield connection
    await connection.close()


async def test_of_two_who_migrate_at_once_one_does_it(empty_url: str) -> None:
    connections = [await connect(empty_url) for _ in range(2)]
    done = await asyncio.gather(*(migrate.migrate(connection) for connection in connections))
    assert sorted(done) == [0, len(migrations())]
    for connection in connections:
        await check_schema(connection)
        await connection.close()


async def test_each_applied_migration_is_told_by_name_and_never_applied_again(empty: asyncpg.Connection) -> None:
    told: list[str] = []
    assert await migrate.migrate(empty, told.append) == len(told) > 0
    assert told == [migration.name for migration in migrations()]
    assert await migrate.migrate(empty, told.append) == 0
    assert len(told) == len(migrations())


async def test_a_migration_that_fails_leaves_nothing_behind(empty: asyncpg.Connection) -> None:
    broken = [Migration("0001_good", "CREATE TABLE good ()"), Migration("0002_bad", "CREATE TABLE bad (")]
    with pytest.raises(asyncpg.PostgresSyntaxError):
        await migrate.migrate(empty, known=broken)
    assert await empty.fetchval("SELECT to_regnamespace('evertick') IS NULL")


async def test_a_session_without_settings_finds_the_schema_by_the_setting_of_the_role(
    empty: asyncpg.Connection, empty_url: str
) -> None:
    await migrate.migrate(empty)
    plain = await asyncpg.connect(empty_url)
    assert await plain.fetchval("SELECT count(*) FROM migrations") == len(migrations())
    await plain.close()


async def test_an_empty_database_is_refused_and_the_message_says_what_to_run(empty: asyncpg.Connection) -> None:
    with pytest.raises(SchemaMismatch, match=r"lacks 0001_initial.*: run `evertick migrate`"):
        await check_schema(empty)


async def test_a_database_of_a_newer_evertick_is_refused(connection: asyncpg.Connection) -> None:
    await connection.execute("INSERT INTO migrations (name, digest) VALUES ('9999_future', '')")
    for act in (check_schema, migrate.migrate):
        with pytest.raises(SchemaMismatch, match="has 9999_future of a newer Evertick: upgrade this one"):
            await act(connection)


async def test_a_migration_that_was_applied_with_another_text_is_refused(connection: asyncpg.Connection) -> None:
    await connection.execute("UPDATE migrations SET digest = 'other' WHERE name = '0001_initial'")
    for act in (check_schema, migrate.migrate):
        with pytest.raises(SchemaMismatch, match="0001_initial was applied to the database with another text"):
            await act(connection)


def test_only_what_was_not_applied_is_pending() -> None:
    old, new = Migration("0001_old", "SELECT 1"), Migration("0002_new", "SELECT 2")
    assert pending([old, new], {}) == [old, new]
    assert pending([old, new], {old.name: old.digest}) == [new]


def test_a_server_that_is_too_old_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="PostgreSQL 14 is too old: Evertick needs 15 or newer"):
        migrate.refuse_old(140_019)
    migrate.refuse_old(150_000)
