"""Submitting in the application's own transaction, with each library: the job exists if and only if it commits."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import asyncpg
import django
import psycopg
import pytest
from django.conf import settings as django_settings
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from engine import PATIENCE_SECONDS, stop_clock, until
from evertick import App, InvalidInput
from evertick.domain.errors import InvalidFields
from evertick.domain.states import RunStatus
from evertick.usecases.errors import NameTaken, QuotaReached

SAVE, UNDO = "SAVEPOINT before", "ROLLBACK TO SAVEPOINT before"
AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}
Statement = Callable[[str], Any]


class Undone(Exception):  # noqa: N818 - it is meant
    """Rolls a transaction back."""


def sqlalchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


@contextmanager
def psycopg_sync(url: str) -> Iterator[tuple[Any, Statement]]:
    with psycopg.connect(url) as connection:
        yield connection, connection.execute


@contextmanager
def closing_engine(engine: Engine) -> Iterator[None]:
    try:
        yield
    finally:
        engine.dispose()


@contextmanager
def sqlalchemy_connection(url: str) -> Iterator[tuple[Any, Statement]]:
    engine = create_engine(sqlalchemy_url(url, "psycopg"))
    with closing_engine(engine), engine.begin() as connection:
        yield connection, lambda sql: connection.execute(text(sql))


@contextmanager
def sqlalchemy_session(url: str) -> Iterator[tuple[Any, Statement]]:
    engine = create_engine(sqlalchemy_url(url, "psycopg"))
    with closing_engine(engine), Session(engine) as session, session.begin():
        yield session, lambda sql: session.execute(text(sql))


@contextmanager
def sqlalchemy_scoped_session(url: str) -> Iterator[tuple[Any, Statement]]:
    engine = create_engine(sqlalchemy_url(url, "psycopg"))
    session = scoped_session(sessionmaker(engine))
    with closing_engine(engine):
        try:
            with session.begin():
                yield session, lambda sql: session.execute(text(sql))
        finally:
            session.remove()


@contextmanager
def django_connection(url: str) -> Iterator[tuple[Any, Statement]]:
    parts = psycopg.conninfo.conninfo_to_dict(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts.get("user", ""),
        "HOST": parts["host"],
        "PORT": parts.get("port", ""),
    }
    if not django_settings.configured:
        django_settings.configure(DATABASES={"default": database}, USE_TZ=True)
        django.setup()
    from django.db import connections, transaction  # noqa: PLC0415 - needs the settings

    wrapper = connections.create_connection("default")
    wrapper.settings_dict.update(database)
    connections["default"] = wrapper
    try:
        with transaction.atomic():
            yield connections["default"], lambda sql: wrapper.cursor().execute(sql)
    finally:
        wrapper.close()


SYNC = [psycopg_sync, sqlalchemy_connection, sqlalchemy_session, sqlalchemy_scoped_session, django_connection]


@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[tuple[Any, Statement]]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection, connection.execute
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[tuple[Any, Statement]]:
    async with asyncpg.create_pool(url) as pool, pool.acquire() as connection, connection.transaction():
        yield connection, connection.execute


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[tuple[Any, Statement]]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection, connection.execute


@asynccontextmanager
async def sqlalchemy_async_connection(url: str) -> AsyncIterator[tuple[Any, Statement]]:
    engine = create_async_engine(sqlalchemy_url(url, "psycopg"))
    try:
        async with engine.begin() as connection:
            yield connection, lambda sql: connection.execute(text(sql))
    finally:
        await engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_session(url: str) -> AsyncIterator[tuple[Any, Statement]]:
    engine = create_async_engine(sqlalchemy_url(url, "asyncpg").replace("&port=5432", ""))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session, lambda sql: session.execute(text(sql))
    finally:
        await engine.dispose()


ASYNC = [asyncpg_connection, asyncpg_pool, psycopg_async, sqlalchemy_async_connection, sqlalchemy_async_session]


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    async with App(database_url=database_url) as app:
        yield app


async def jobs(connection: asyncpg.Connection) -> set[str]:
    return {row["name"] for row in await connection.fetch("SELECT name FROM jobs JOIN timers USING (job_id)")}


def use_sync(app: App, opened: Any, url: str) -> None:
    """Two transactions: one that is rolled back, and one of which a part is."""
    with suppress(Undone), opened(url) as (connection, _):
        app.submit_sync("greet", name="undone", connection=connection)
        raise Undone
    with opened(url) as (connection, run):
        app.submit_sync("greet", name="kept", connection=connection)
        run(SAVE)
        app.submit_sync("greet", name="undone in part", connection=connection)
        run(UNDO)
        app.submit_sync("greet", name="kept too", connection=connection)
    app.close_sync()


@pytest.mark.parametrize("opened", SYNC)
async def test_sync_code_submits_what_its_transaction_commits(
    database_url: str, connection: asyncpg.Connection, opened: Any
) -> None:
    await asyncio.to_thread(use_sync, App(database_url=database_url), opened, database_url)
    assert await jobs(connection) == {"kept", "kept too"}


@pytest.mark.parametrize("opened", ASYNC)
async def test_async_code_submits_what_its_transaction_commits(
    app: App, database_url: str, connection: asyncpg.Connection, opened: Any
) -> None:
    with suppress(Undone):
        async with opened(database_url) as (own, _):
            await app.submit("greet", name="undone", connection=own)
            raise Undone
    async with opened(database_url) as (own, run):
        await app.submit("greet", name="kept", connection=own)
        await run(SAVE)
        await app.submit("greet", name="undone in part", connection=own)
        await run(UNDO)
        await app.submit("greet", name="kept too", connection=own)
        assert await jobs(connection) == set()
    assert await jobs(connection) == {"kept", "kept too"}


async def test_a_sync_connection_serves_async_code_too(
    app: App, database_url: str, connection: asyncpg.Connection
) -> None:
    with psycopg_sync(database_url) as (own, _):
        await app.submit("greet", name="kept", connection=own)
    assert await jobs(connection) == {"kept"}


async def test_the_run_of_a_committed_transaction_reaches_its_handler(database_url: str) -> None:
    app = App(database_url=database_url)
    seen: list[str] = []

    @app.handler
    async def greet(name: str) -> None:
        seen.append(name)

    async with app.running():
        async with asyncpg_connection(database_url) as (own, _):
            submitted = await greet.submit(name="world", connection=own)
        submitted.wake()
        await until(lambda: succeeded(submitted.status))
    assert seen == ["world"]


async def succeeded(status: Callable[[], Awaitable[RunStatus]]) -> bool:
    return await status() is RunStatus.SUCCESS


@pytest.mark.parametrize("opened", [sqlalchemy_session, django_connection])
async def test_libraries_that_tell_of_commits_wake_the_schedulers(
    database_url: str, connection: asyncpg.Connection, opened: Any
) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    await connection.add_listener("evertick_timers", lambda *args: told.put_nowait(args[-1]))
    app = App(database_url=database_url)

    def submit() -> None:
        with opened(database_url) as (own, _):
            app.submit_sync("greet", connection=own)

    await asyncio.to_thread(submit)
    async with asyncio.timeout(PATIENCE_SECONDS):
        ids = await told.get()
    assert int(ids) == await connection.fetchval("SELECT job_id FROM jobs")
    await app.close()


async def test_an_async_session_wakes_them_after_its_commit_and_not_after_a_savepoint(
    app: App, database_url: str, connection: asyncpg.Connection
) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    await connection.add_listener("evertick_timers", lambda *args: told.put_nowait(args[-1]))
    async with sqlalchemy_async_session(database_url) as (own, _):
        async with own.begin_nested():
            await app.submit("greet", name="first", connection=own)
        await app.submit("greet", name="second", connection=own)
        await app.submit("other", name="ours")
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert int(await told.get()) == await connection.fetchval("SELECT job_id FROM jobs")
    woken: set[int] = set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(woken) < 2:
            woken |= {int(job_id) for job_id in (await told.get()).split(",")}
    assert woken == {row["job_id"] for row in await connection.fetch("SELECT job_id FROM jobs WHERE name <> 'ours'")}


async def test_a_process_that_dies_before_its_commit_leaves_no_job(
    app: App, database_url: str, connection: asyncpg.Connection
) -> None:
    own = await asyncpg.connect(database_url)
    pid = own.get_server_pid()
    await own.execute("BEGIN")
    await app.submit("greet", name="lost", connection=own)
    own.terminate()
    await until(lambda: has_gone(connection, pid))
    assert await jobs(connection) == set()


async def has_gone(connection: asyncpg.Connection, pid: int) -> bool:
    return bool(await connection.fetchval("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid))


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_transaction_with_an_old_snapshot_submits_to_a_queue_that_is_new(
    app: App, database_url: str, connection: asyncpg.Connection, isolation: Any
) -> None:
    own = await asyncpg.connect(database_url)
    async with own.transaction(isolation=isolation):
        await own.execute("SELECT FROM pg_class LIMIT 1")
        await app.submit("greet", name="kept", queue="brand-new", connection=own)
    await own.close()
    assert await jobs(connection) == {"kept"}
    assert (
        await connection.fetchval("SELECT count(*) FROM lanes JOIN timers USING (partition, priority, queue_id)") == 1
    )


async def test_the_same_is_refused_as_without_a_transaction(
    app: App, database_url: str, connection: asyncpg.Connection
) -> None:
    async with asyncpg_connection(database_url) as (own, _):
        await app.submit("greet", name="taken", connection=own)
        with pytest.raises(NameTaken):
            await app.submit("greet", name="taken", connection=own)
        with pytest.raises(InvalidFields, match="max_retries"):
            await app.submit("greet", max_retries=-1, connection=own)
        await connection.execute("UPDATE tenants SET submits_per_second = 1, submit_burst = 1")
        await connection.execute("DELETE FROM rate_buckets")
        await stop_clock(connection)
        async with App(database_url=database_url) as limited:
            await limited.submit("greet", connection=own)
            with pytest.raises(QuotaReached):
                await limited.submit("greet", connection=own)


async def test_a_connection_that_commits_each_statement_is_refused(app: App, database_url: str) -> None:
    alone = await asyncpg.connect(database_url)
    with pytest.raises(InvalidInput, match="not in a transaction"):
        await app.submit("greet", connection=alone)
    await alone.close()
    with psycopg.connect(database_url, autocommit=True) as plain, pytest.raises(InvalidInput, match="not in a trans"):
        await app.submit("greet", connection=plain)
    with pytest.raises(InvalidInput, match="is a str: a connection of asyncpg, psycopg 3"):
        await app.submit("greet", connection="postgresql://")


@pytest.mark.parametrize("given", [AUTOCOMMIT, {"execution_options": AUTOCOMMIT}])
async def test_sqlalchemy_that_commits_each_statement_is_refused(
    app: App, database_url: str, given: dict[str, Any]
) -> None:
    engine = create_engine(sqlalchemy_url(database_url, "psycopg"), **given)
    with closing_engine(engine), engine.begin() as connection, Session(engine) as session:
        for each in (connection, session, Session(connection)):
            with pytest.raises(InvalidInput, match="not in a transaction"):
                await app.submit("greet", connection=each)
        session.connection(execution_options={"isolation_level": "SERIALIZABLE"})
        await app.submit("greet", connection=session)
    async_engine = create_async_engine(sqlalchemy_url(database_url, "psycopg"), **given)
    async with async_engine.begin() as async_connection, AsyncSession(async_engine) as async_session:
        for async_each in (async_connection, async_session):
            with pytest.raises(InvalidInput, match="not in a transaction"):
                await app.submit("greet", connection=async_each)
    await async_engine.dispose()


async def test_a_session_that_commits_each_statement_is_refused_also_on_a_plain_engine(
    app: App, database_url: str
) -> None:
    engine = create_engine(sqlalchemy_url(database_url, "psycopg"))
    with closing_engine(engine), Session(engine) as session:
        session.connection(execution_options=AUTOCOMMIT)
        with pytest.raises(InvalidInput, match="not in a transaction"):
            await app.submit("greet", connection=session)
    async_engine = create_async_engine(sqlalchemy_url(database_url, "psycopg"))
    async with AsyncSession(async_engine) as async_session:
        await async_session.connection(execution_options=AUTOCOMMIT)
        with pytest.raises(InvalidInput, match="not in a transaction"):
            await app.submit("greet", connection=async_session)
    await async_engine.dispose()


async def test_a_connection_to_another_database_is_refused(
    app: App, database_url: str, connection: asyncpg.Connection
) -> None:
    await app.submit("greet")
    await connection.execute("UPDATE tenants SET created_at = created_at + interval '1 second'")
    async with asyncpg_connection(database_url) as (own, _):
        with pytest.raises(InvalidInput, match="another database than the app's"):
            await app.submit("greet", connection=own)


async def test_an_async_connection_is_refused_by_sync_code(database_url: str) -> None:
    app = App(database_url=database_url)
    async with asyncpg_connection(database_url) as (own, _):
        with pytest.raises(InvalidInput, match=r"use `await app.submit\(...\)`"):
            await asyncio.to_thread(app.submit_sync, "greet", connection=own)
    await app.close()
