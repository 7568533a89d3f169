"""Statements and transactions through PgBouncer in transaction mode."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

import postgres
from evertick.store.database import (
    Pool,
    Timeouts,
    connect,
    is_behind_pooler,
    is_lock_timeout,
    is_transient,
    open_pool,
    was_rolled_back,
    was_too_slow,
)
from evertick.store.errors import DatabaseUnreachable
from evertick.store.migrate import check_schema, migrate
from pgbouncer import PgBouncer, pgbouncer

TIMEOUTS = Timeouts(connection_seconds=20, command_seconds=5, lock_seconds=0.2)
SHORT = Timeouts(connection_seconds=20, command_seconds=3, lock_seconds=0.2)
SHOWN = (
    "search_path",
    "plan_cache_mode",
    "enable_seqscan",
    "jit",
    "lock_timeout",
    "statement_timeout",
    "timezone",
    "application_name",
)
SHOW = f"SELECT ARRAY[{', '.join(f'current_setting({name!r})' for name in SHOWN)}]"
IDLE = "SELECT current_setting('idle_in_transaction_session_timeout')"
IGNORED = (
    "search_path,plan_cache_mode,enable_seqscan,jit,lock_timeout,statement_timeout,idle_in_transaction_session_timeout"
)
LEFT_BEHIND = """
SELECT ARRAY[current_setting('jit'), current_setting('lock_timeout'), current_setting('enable_seqscan')],
       (SELECT count(*) FROM pg_prepared_statements WHERE name <> ''),
       (SELECT count(*) FROM pg_listening_channels())
"""


@pytest.fixture
async def pooler(database_url: str) -> AsyncIterator[PgBouncer]:
    async with pgbouncer(database_url) as pooler:
        yield pooler


@pytest.fixture
async def single(database_url: str) -> AsyncIterator[PgBouncer]:
    """A pooler that has one session for all."""
    async with pgbouncer(database_url, default_pool_size="1") as pooler:
        yield pooler


@pytest.mark.parametrize("ignored", ["", IGNORED])
async def test_a_pooler_is_recognised_whether_it_refuses_settings_or_ignores_them(
    database_url: str, ignored: str
) -> None:
    async with pgbouncer(database_url, ignore_startup_parameters=ignored) as pooler:
        direct = await connect(database_url, timeouts=TIMEOUTS)
        expected, idle = await direct.fetchval(SHOW), await direct.fetchval(IDLE)
        assert not direct.is_pooled
        await direct.close()
        async with await open_pool(pooler.url, timeouts=TIMEOUTS) as pool:
            assert await is_behind_pooler(pool)
            assert await pool.fetchval(SHOW) == expected
            assert await pool.fetchval(IDLE) == "2s"
            async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read"):
                assert await connection.fetchval(SHOW) == expected
                assert await connection.fetchval(IDLE) == idle != "2s"
                assert await connection.fetchval("SHOW transaction_isolation") == "repeatable read"


@pytest.mark.parametrize("wanted", ["", "?target_session_attrs=read-write", "?target_session_attrs=primary"])
async def test_a_pooler_may_be_one_of_several_hosts(pooler: PgBouncer, wanted: str) -> None:
    several = pooler.url.replace("@127.0.0.1", "@127.0.0.1:1,127.0.0.1") + wanted
    async with await open_pool(several, timeouts=TIMEOUTS) as pool:
        assert await is_behind_pooler(pool)
        assert await pool.fetchval("SELECT count(*) FROM jobs") == 0


async def test_nothing_is_left_in_the_sessions_that_others_share(
    connection: asyncpg.Connection, single: PgBouncer
) -> None:
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE {name} SET jit = on")
    other = await asyncpg.connect(single.url, statement_cache_size=0)
    before = await other.fetchrow(LEFT_BEHIND)
    ours = await connect(single.url, timeouts=TIMEOUTS)
    await ours.fetch("SELECT status FROM jobs WHERE job_id = $1", 1)  # of a type that the driver has to look up
    with pytest.raises(asyncpg.DivisionByZeroError):
        await ours.fetchval("SELECT 1 / $1::integer", 0)
    async with ours.transaction():
        await ours.execute("SELECT $1::integer", 1)
    assert await other.fetchrow(LEFT_BEHIND) == before
    await ours.close()
    await other.close()


async def test_many_statements_share_few_sessions(database_url: str) -> None:
    async with (
        pgbouncer(database_url, default_pool_size="2") as pooler,
        await open_pool(pooler.url, max_size=8, timeouts=TIMEOUTS) as pool,
    ):

        async def ask(number: int) -> int:
            if number % 3:
                return int(await pool.fetchval(f"SELECT $1::integer + {number % 5}", number)) - number % 5
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute("SELECT set_config('evertick.number', $1, true)", str(number))
                return int(await connection.fetchval("SELECT current_setting('evertick.number')"))

        assert await asyncio.gather(*map(ask, range(100))) == list(range(100))


async def test_a_statement_that_fails_is_rolled_back_and_the_connection_stays(pooler: PgBouncer) -> None:
    connection = await connect(pooler.url, timeouts=TIMEOUTS)
    await connection.execute("CREATE TABLE kept (number integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    for twice in ("INSERT INTO kept VALUES (1), (1)", "INSERT INTO kept VALUES (1); INSERT INTO kept VALUES (1)"):
        with pytest.raises(asyncpg.UniqueViolationError) as caught:  # at the end of the statement's own transaction
            await connection.execute(twice)
        assert was_rolled_back(caught.value)
    with pytest.raises(asyncpg.UndefinedColumnError):
        await connection.fetch("INSERT INTO kept VALUES ($1) RETURNING unknown", 1)
    assert await connection.fetchval("SELECT count(*) FROM kept") == 0
    assert await connection.fetchval("INSERT INTO kept VALUES ($1) RETURNING number", 2) == 2
    assert await connection.fetchval("SELECT array_agg(number) FROM kept") == [2]
    await connection.close()


async def test_the_server_ends_a_slow_statement_and_one_that_waits_for_a_lock(
    pooler: PgBouncer, connection: asyncpg.Connection
) -> None:
    # Long enough for the answer of a busy server to come before the client stops waiting for it.
    timeouts = SHORT._replace(command_seconds=5.0)
    async with await open_pool(pooler.url, max_size=1, timeouts=timeouts) as pool:
        with pytest.raises(asyncpg.QueryCanceledError) as slow:
            await pool.fetchval("SELECT pg_sleep(600)")
        assert was_too_slow(slow.value)
        assert was_rolled_back(slow.value)
        async with connection.transaction():
            await connection.execute("LOCK TABLE jobs")
            with pytest.raises(asyncpg.LockNotAvailableError) as locked:
                await pool.fetchval("SELECT count(*) FROM jobs")
        assert is_lock_timeout(locked.value)
        assert await pool.fetchval("SELECT count(*) FROM jobs") == 0


async def test_a_statement_waits_no_longer_for_a_session_than_for_its_answer(single: PgBouncer) -> None:
    taker = await connect(single.url, timeouts=TIMEOUTS)
    async with await open_pool(single.url, max_size=1, timeouts=SHORT) as pool:
        await pool.fetchval("SELECT 1")
        async with taker.transaction():
            with pytest.raises(TimeoutError) as caught:
                await pool.fetchval("SELECT 1")
            assert is_transient(caught.value)
        assert await pool.fetchval("SELECT 1") == 1
    await taker.close()


async def test_a_server_behind_the_pooler_that_is_gone_is_passing_trouble() -> None:
    async with pgbouncer("postgresql://postgres@127.0.0.1:1/nowhere") as pooler:
        with pytest.raises(DatabaseUnreachable) as caught:
            await connect(pooler.url, timeouts=SHORT)
        assert is_transient(caught.value)


async def test_migrations_run_through_a_pooler(postgres_server: postgres.Server) -> None:
    async with postgres_server.database(empty=True) as url, pgbouncer(url) as pooler:

        async def run() -> int:
            connection = await connect(pooler.url)
            try:
                return await migrate(connection)
            finally:
                await connection.close()

        assert min(await asyncio.gather(run(), run())) == 0
        async with await open_pool(pooler.url) as pool:
            await check_schema(pool)


async def test_a_transaction_that_a_client_left_open_is_rolled_back(pool: Pool, pooler: PgBouncer) -> None:
    connection = await connect(pooler.url, timeouts=TIMEOUTS)
    await connection.execute("CREATE TABLE kept (number integer)")
    await connection.transaction().start()
    await connection.execute("INSERT INTO kept VALUES (1)")
    connection.terminate()
    await pool.execute("ALTER TABLE kept ADD COLUMN other integer")  # waits for its end
    assert await pool.fetchval("SELECT count(*) FROM kept") == 0
