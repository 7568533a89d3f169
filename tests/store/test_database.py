import asyncio
import socket

import asyncpg
import pytest

import postgres
from evertick.store import database
from evertick.store.database import is_transient, reason_of, was_conflict, was_rolled_back
from evertick.store.errors import DatabaseUnreachable
from ports import free_port


async def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    port = free_port()
    with pytest.raises(DatabaseUnreachable) as caught:
        await database.connect(f"postgresql://jane:s3cret@127.0.0.1:{port}/jobs")
    assert f"cannot reach database jobs at 127.0.0.1:{port}: " in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert is_transient(caught.value)


async def test_a_pool_that_cannot_connect_says_the_same() -> None:
    with pytest.raises(DatabaseUnreachable, match="cannot reach database jobs at 127"):
        await database.open_pool(f"postgresql://127.0.0.1:{free_port()}/jobs?password=s3cret")


async def test_a_server_that_accepts_but_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CONNECT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        with pytest.raises(DatabaseUnreachable, match=r"no answer in 0\.05 seconds") as caught:
            await database.connect(f"postgresql://127.0.0.1:{mute.getsockname()[1]}/jobs")
        assert is_transient(caught.value)


async def test_an_unknown_database_is_no_passing_trouble(postgres_server: postgres.Server) -> None:
    with pytest.raises(DatabaseUnreachable, match=r"at /.*does not exist") as caught:
        await database.connect(postgres_server.url("nowhere"))
    assert not is_transient(caught.value)


async def test_too_many_connections_is_passing_trouble(postgres_server: postgres.Server, database_url: str) -> None:
    connection = await database.connect(database_url)
    await connection.execute("CREATE ROLE crowded LOGIN CONNECTION LIMIT 0")
    with pytest.raises(DatabaseUnreachable, match="too many connections") as caught:
        await database.connect(database_url.replace("postgres@", "crowded@"))
    assert is_transient(caught.value)
    await connection.execute("DROP ROLE crowded")
    await connection.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://jane:s3/cret@db/jobs",
        "postgresql://jane:12/34@db/jobs",
        "postgresql://jane:s3?cret@db/jobs",
        "postgresql://jane:s3#cret@db/jobs",
        "postgresql://jane:s3[cret@db/jobs",
        "postgresql://db:s3cret/jobs",
        "mysql://jane:s3cret@db/jobs",
        "s3cret",
    ],
)
async def test_a_malformed_url_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(DatabaseUnreachable, match="percent-encoded") as caught:
        await database.connect(url)
    assert not any(part in str(caught.value) for part in ("s3", "cret", "12", "34"))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert not is_transient(caught.value)


async def test_a_connection_that_the_server_ends_is_passing_trouble(database_url: str) -> None:
    victim, killer = await database.connect(database_url), await database.connect(database_url)
    asleep = asyncio.ensure_future(victim.execute("SELECT pg_sleep(60)"))
    await asyncio.sleep(0)  # lets it send
    await killer.execute("SELECT pg_terminate_backend($1)", victim.get_server_pid())
    with pytest.raises((asyncpg.PostgresError, OSError)) as ended:
        await asleep
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)) as after:
        await victim.execute("SELECT 1")
    assert is_transient(ended.value)
    assert is_transient(after.value)
    await killer.close()


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InterfaceError("another operation is in progress"),
        asyncpg.UndefinedTableError("no such table"),
        asyncpg.InvalidPasswordError("password authentication failed"),
        asyncpg.UniqueViolationError("taken"),
        ValueError("anything"),
    ],
)
def test_mistakes_are_no_passing_trouble(error: Exception) -> None:
    assert not is_transient(error)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 / 0",
        "SELECT nothing FROM nowhere",
        "INSERT INTO tenants (tenant_id, name) VALUES (1, 'default')",
        "DO $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = 'disk_full'; END $$",
        "SET statement_timeout = '10ms'; SELECT pg_sleep(60)",
    ],
)
async def test_what_the_server_itself_refused_was_rolled_back(connection: asyncpg.Connection, statement: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as caught:
        await connection.execute(statement)
    assert was_rolled_back(caught.value)
    assert not was_conflict(caught.value)


async def test_a_session_that_was_ended_does_not_tell_what_became_of_its_statement(
    database_url: str, connection: asyncpg.Connection
) -> None:
    victim = await database.connect(database_url)
    asleep = asyncio.ensure_future(victim.execute("SELECT pg_sleep(60)"))
    await asyncio.sleep(0)  # lets it send
    await connection.execute("SELECT pg_terminate_backend($1)", victim.get_server_pid())
    with pytest.raises((asyncpg.PostgresError, OSError)) as ended:
        await asleep
    assert not was_rolled_back(ended.value)


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError("reset"),
        asyncpg.InternalClientError("got result for unknown protocol state 3"),
        asyncpg.InterfaceError("cannot call Connection.fetch(): connection has been released back to the pool"),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
    ],
)
def test_a_line_that_broke_is_passing_trouble_with_an_unknown_end(error: Exception) -> None:
    assert is_transient(error)
    assert not was_rolled_back(error)


def test_the_reason_is_told_in_words() -> None:
    full = asyncpg.DiskFullError("could not extend file: No space left on device\nDETAIL: secret row")
    assert reason_of(full) == "the disk is full: could not extend file: No space left on device"
    assert reason_of(TimeoutError()) == "no answer in time"
    assert reason_of(asyncpg.UndefinedTableError("no such table")) == "UndefinedTableError: no such table"


async def test_a_serialization_failure_was_rolled_back(database_url: str) -> None:
    first, second = await database.connect(database_url), await database.connect(database_url)
    await first.execute("CREATE TABLE counts (n integer); INSERT INTO counts VALUES (0)")
    await first.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await first.fetchval("SELECT n FROM counts")
    await second.execute("UPDATE counts SET n = 1")
    with pytest.raises(asyncpg.SerializationError) as caught:
        await first.execute("UPDATE counts SET n = 2")
    assert was_rolled_back(caught.value)
    assert was_conflict(caught.value)
    assert not is_transient(caught.value)
    for connection in (first, second):
        await connection.close()


async def test_sessions_are_set_up_for_our_statements(pool: database.Pool) -> None:
    rows = await pool.fetch(
        "SELECT name, setting FROM pg_settings WHERE name IN ('search_path', 'TimeZone', 'plan_cache_mode', 'jit')"
    )
    assert {row["name"]: row["setting"] for row in rows} == {
        "search_path": "evertick",
        "TimeZone": "UTC",
        "plan_cache_mode": "force_generic_plan",
        "jit": "off",
    }


async def test_json_passes_as_the_text_it_is(pool: database.Pool) -> None:
    assert await pool.fetchval("SELECT $1::jsonb", '{"a": [1, 2.50]}') == '{"a": [1, 2.50]}'
