"""The inbox: an effect that is committed once, with each kind of connection, on real databases."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from engine import until
from evertick import inbox
from evertick.domain.errors import InvalidInput
from evertick.inbox import Inbox, StaleToken

BIG = 1_794_919_755_326_615
"""As large as tokens are."""


class EffectError(Exception):
    """What a consumer's own code raises."""


Open: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""A transaction that commits at its end, unless an exception leaves it."""


@contextmanager
def psycopg_transaction(url: str, **options: Any) -> Iterator[Any]:
    with psycopg.connect(url, **options) as connection, connection.transaction():
        yield connection


@contextmanager
def sqlalchemy_transaction(url: str, *, is_session: bool) -> Iterator[Any]:
    engine = sa.create_engine(url)
    try:
        if is_session:
            with Session(engine) as session, session.begin():
                yield session
        else:
            with engine.begin() as connection:
                yield connection
    finally:
        engine.dispose()


@contextmanager
def sqlite_transaction(path: Path) -> Iterator[Any]:
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection


def _sqlalchemy(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


@pytest.fixture(params=["sqlite3", "psycopg", "psycopg rows", "connection", "session", "sqlite session"])
def open_sync(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    kind, path = request.param, tmp_path / "consumer.db"
    if kind == "sqlite3":
        return lambda: sqlite_transaction(path)
    if kind == "sqlite session":
        return lambda: sqlalchemy_transaction(f"sqlite:///{path}", is_session=True)
    url = request.getfixturevalue("database_url")
    if kind.startswith("psycopg"):
        options = {"row_factory": dict_row, "autocommit": True} if kind == "psycopg rows" else {}
        return lambda: psycopg_transaction(url, **options)
    return lambda: sqlalchemy_transaction(_sqlalchemy(url, "psycopg"), is_session=kind == "session")


@pytest.fixture
def ready(open_sync: Open) -> Open:
    with open_sync() as connection:
        inbox.create_table(connection)
        inbox.create_table(connection)
    return open_sync


def done(open_: Open, key: str = "run", token: int = BIG, effect: Callable[[], None] = lambda: None) -> bool:
    """Whether this transaction has had the effect."""
    with open_() as connection, inbox.once(key, token, connection) as is_first:
        if is_first:
            effect()
        return bool(is_first)


def test_an_effect_is_done_once(ready: Open) -> None:
    assert [done(ready), done(ready), done(ready, token=BIG + 5), done(ready, "other")] == [True, False, False, True]


def test_an_attempt_before_the_one_that_was_seen_is_stale(ready: Open) -> None:
    done(ready)
    with pytest.raises(StaleToken, match=str(BIG)):
        done(ready, token=BIG - 1)
    done(ready, token=BIG + 5)
    with pytest.raises(StaleToken, match=str(BIG + 5)):
        done(ready)


def test_what_was_rolled_back_was_not_done(ready: Open) -> None:
    def fail() -> None:
        raise EffectError

    with pytest.raises(EffectError):
        done(ready, effect=fail)
    assert done(ready, token=BIG + 1)


def test_keys_are_forgotten_when_they_are_old(ready: Open) -> None:
    done(ready)
    with ready() as connection:
        assert inbox.prune(connection, timedelta(hours=1)) == 0
        assert inbox.prune(connection, timedelta(seconds=-5)) == 1
    assert done(ready)


@pytest.mark.parametrize("commits", [True, False])
def test_of_two_at_once_the_second_waits_for_the_first(ready: Open, *, commits: bool) -> None:
    """The second can only begin to wait while the first is inside, and is told what became of it."""
    results: list[bool] = []
    second = threading.Thread(target=lambda: results.append(done(ready)))

    def begin_second() -> None:
        second.start()
        second.join(0.2)  # not to synchronise: the longer it waits, the surer it is that the other one waits too
        assert results == []
        if not commits:
            raise EffectError

    try:
        assert done(ready, effect=begin_second)
    except EffectError:
        assert not commits
    second.join()
    assert results == [not commits]


AsyncOpen: TypeAlias = Callable[[], Any]


@asynccontextmanager
async def asyncpg_transaction(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def pool_transaction(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection, connection.transaction():
        yield connection


@asynccontextmanager
async def async_psycopg_transaction(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection, connection.transaction():
        yield connection


@asynccontextmanager
async def async_sqlalchemy_transaction(url: str, *, is_session: bool) -> AsyncIterator[Any]:
    engine = create_async_engine(url)
    try:
        if is_session:
            async with AsyncSession(engine) as session, session.begin():
                yield session
        else:
            async with engine.begin() as connection:
                yield connection
    finally:
        await engine.dispose()


@pytest.fixture(params=["asyncpg", "pool", "psycopg", "connection", "session", "asyncpg session"])
async def ready_async(request: pytest.FixtureRequest, database_url: str) -> AsyncOpen:
    opens: dict[str, AsyncOpen] = {
        "asyncpg": lambda: asyncpg_transaction(database_url),
        "pool": lambda: pool_transaction(database_url),
        "psycopg": lambda: async_psycopg_transaction(database_url),
        "connection": lambda: async_sqlalchemy_transaction(_sqlalchemy(database_url, "psycopg"), is_session=False),
        "session": lambda: async_sqlalchemy_transaction(_sqlalchemy(database_url, "psycopg"), is_session=True),
        "asyncpg session": lambda: async_sqlalchemy_transaction(_sqlalchemy(database_url, "asyncpg"), is_session=True),
    }
    open_: AsyncOpen = opens[request.param]
    async with open_() as connection:
        await inbox.create_table(connection)
    return open_


async def done_async(
    open_: AsyncOpen, token: int = BIG, effect: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> bool:
    async with open_() as connection, inbox.once("run", token, connection) as is_first:
        if is_first and effect is not None:
            await effect()
        return bool(is_first)


async def test_an_effect_is_done_once_with_async_connections(ready_async: AsyncOpen) -> None:
    async def fail() -> None:
        raise EffectError

    with pytest.raises(EffectError):
        await done_async(ready_async, effect=fail)
    assert [await done_async(ready_async, BIG + n) for n in range(3)] == [True, False, False]
    with pytest.raises(StaleToken):
        await done_async(ready_async)
    async with ready_async() as connection:
        assert await inbox.prune(connection, timedelta(seconds=-5)) == 1


@pytest.mark.parametrize("commits", [True, False])
async def test_of_two_at_once_the_second_waits_with_async_connections(
    ready_async: AsyncOpen, connection: asyncpg.Connection, *, commits: bool
) -> None:
    second: asyncio.Task[bool] | None = None

    async def begin_second() -> None:
        nonlocal second
        second = asyncio.create_task(done_async(ready_async))
        await until(lambda: connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        if not commits:
            raise EffectError

    try:
        assert await done_async(ready_async, effect=begin_second)
    except EffectError:
        assert not commits
    assert second is not None
    assert await second is not commits


async def test_a_process_that_dies_in_between_leaves_nothing(database_url: str) -> None:
    async with asyncpg_transaction(database_url) as connection:
        await inbox.create_table(connection)
    dying = await asyncpg.connect(database_url)
    transaction = dying.transaction()
    await transaction.start()
    async with inbox.once("run", BIG, dying) as is_first:
        assert is_first
    dying.terminate()
    assert await done_async(lambda: asyncpg_transaction(database_url))


async def test_serializable_transactions_fail_cleanly_instead_of_doing_it_twice(database_url: str) -> None:
    async with asyncpg_transaction(database_url) as connection:
        await inbox.create_table(connection)
    late = await asyncpg.connect(database_url)
    transaction = late.transaction(isolation="repeatable_read")
    await transaction.start()
    await late.fetchval("SELECT 1 FROM evertick_inbox")  # its snapshot is from before
    assert await done_async(lambda: asyncpg_transaction(database_url))
    with pytest.raises(asyncpg.SerializationError):
        await inbox.once("run", BIG, late).__aenter__()
    await transaction.rollback()
    await late.close()


def test_a_locked_sqlite_fails_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "consumer.db"
    with sqlite_transaction(path) as first:
        inbox.create_table(first)
    with sqlite_transaction(path) as first, inbox.once("run", 1, first):
        impatient = sqlite3.connect(path, timeout=0)
        with (
            closing(impatient),
            pytest.raises(sqlite3.OperationalError, match="locked"),
            inbox.once("run", 1, impatient),
        ):
            pytest.fail("it was told something")


async def test_a_connection_on_which_each_statement_commits_is_refused(database_url: str, tmp_path: Path) -> None:
    engine = sa.create_engine(_sqlalchemy(database_url, "psycopg"), isolation_level="AUTOCOMMIT")
    sqlite = sqlite3.connect(tmp_path / "consumer.db", isolation_level=None)
    with closing(sqlite), psycopg.connect(database_url, autocommit=True) as plain, engine.connect() as connection:
        committing = connection.execution_options(isolation_level="AUTOCOMMIT")
        for each in (sqlite, plain, committing):
            with pytest.raises(InvalidInput, match="not in a transaction"), inbox.once("run", 1, each):
                pytest.fail("it went on")
    engine.dispose()
    alone = await asyncpg.connect(database_url)
    with pytest.raises(InvalidInput, match="not in a transaction"):
        async with inbox.once("run", 1, alone):
            pytest.fail("it went on")
    with pytest.raises(InvalidInput, match="use `async with`"), inbox.once("run", 1, alone):
        pytest.fail("it went on")
    await alone.close()


async def test_what_is_no_connection_and_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is a int"):
        inbox.once("run", 1, 7)
    with pytest.raises(InvalidInput, match="must be a name"):
        Inbox("inbox; DROP TABLE accounts")
    with (
        closing(sqlite3.connect(tmp_path / "consumer.db")) as connection,
        pytest.raises(InvalidInput, match="use `with`"),
    ):
        async with inbox.once("run", 1, connection):
            pytest.fail("it went on")


def test_a_table_of_another_name_and_the_users_own_class_of_connection(tmp_path: Path) -> None:
    class Own(sqlite3.Connection):
        pass

    mine = Inbox("main.done_keys")
    with closing(sqlite3.connect(tmp_path / "consumer.db", factory=Own)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute(mine.schema)
        with mine.once("run", 3, connection) as is_first:
            assert is_first
        key, token, done_at = connection.execute("SELECT key, token, done_at FROM done_keys").fetchone()
        assert (key, token) == ("run", 3)
        assert abs(time.time() - done_at) < 60
