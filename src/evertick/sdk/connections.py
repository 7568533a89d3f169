"""Connections of other libraries: running a statement in the transaction that an application has open.

asyncpg; psycopg 3; SQLAlchemy 2, its Connection and Session; Django; sqlite3; each sync or async as it is. None of
these libraries is needed to import this module: an application that has a connection of one has the library.
"""

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from evertick.domain.errors import InvalidInput

_PARAMETER = re.compile(":([a-z_]+)")
_WAITING = "evertick_after_commit"
"""Under this key a session of SQLAlchemy keeps what is to be called when its transaction has ended."""


class Database(Protocol):
    """How a connection runs a statement. Its parameters are written `:name`."""

    is_async: bool

    def check(self) -> None:
        """Refuse a connection on which each statement commits by itself."""

    def run(self, sql: str, parameters: dict[str, Any]) -> Any:
        """The first column of the first row, or how many rows changed. Of an async connection: to be awaited."""

    def after_commit(self, call: Callable[[], None]) -> None:
        """Call it when the transaction has ended, if the library can tell."""


def database_of(connection: Any) -> Database:
    """By the library that the connection's class comes from; a class of the user's may derive from it."""
    for kind in type(connection).__mro__:
        package = kind.__module__.partition(".")[0]
        is_async = kind.__name__.startswith("Async") or kind.__name__ == "async_scoped_session"
        match package:
            case "asyncpg":
                return _Asyncpg(connection)
            case "psycopg":
                return _AsyncPsycopg(connection) if is_async else _Psycopg(connection)
            case "sqlalchemy":
                return _AsyncSqlalchemy(connection) if is_async else _Sqlalchemy(connection)
            case "django":
                return _Django(connection)
            case "sqlite3":
                return Sqlite(connection)
    raise InvalidInput(
        "connection",
        f"is a {type(connection).__qualname__}: a connection of asyncpg, psycopg 3, SQLAlchemy or Django is needed",
    )


def _refuse() -> None:
    raise InvalidInput("connection", "is not in a transaction: what is done with it would be committed at once")


class _Asyncpg:
    is_async = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def check(self) -> None:
        if not self._connection.is_in_transaction():
            _refuse()

    async def run(self, sql: str, parameters: dict[str, Any]) -> Any:
        names = list(dict.fromkeys(_PARAMETER.findall(sql)))
        numbered = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", sql)
        values = [parameters[name] for name in names]
        if "RETURNING" in sql or sql.startswith("SELECT"):
            return await self._connection.fetchval(numbered, *values)
        words = str(await self._connection.execute(numbered, *values)).split()
        return int(words[-1]) if words[-1].isdigit() else None

    def after_commit(self, call: Callable[[], None]) -> None:
        """The library does not tell."""


class _Psycopg:
    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def check(self) -> None:
        if self._connection.autocommit and not self._connection.info.transaction_status:
            _refuse()

    def run(self, sql: str, parameters: dict[str, Any]) -> Any:
        with self._cursor() as cursor:
            cursor.execute(_named(sql), parameters)
            return _first(cursor.fetchone()) if cursor.description else cursor.rowcount

    def after_commit(self, call: Callable[[], None]) -> None:
        """The library does not tell."""

    def _cursor(self) -> Any:
        """One with plain rows, whatever the connection makes of them."""
        return self._connection.cursor(row_factory=import_module("psycopg.rows").tuple_row)


class _AsyncPsycopg(_Psycopg):
    is_async = True

    async def run(self, sql: str, parameters: dict[str, Any]) -> Any:
        async with self._cursor() as cursor:
            await cursor.execute(_named(sql), parameters)
            return _first(await cursor.fetchone()) if cursor.description else cursor.rowcount


class _Sqlalchemy:
    """A Connection or a Session, which begin a transaction by themselves."""

    is_async = False

    def __init__(self, connection: Any) -> None:
        registry = getattr(connection, "registry", None)
        self._connection = registry() if callable(registry) else connection  # of a scoped session the session

    def check(self) -> None:
        _refuse_autocommit(self._source())

    def _source(self) -> Any:
        """What knows how statements commit: the connection, or the engine of a session that has none yet."""
        if not hasattr(self._connection, "get_bind"):
            return self._connection
        return self._connection.connection() if self._connection.in_transaction() else self._connection.get_bind()

    def run(self, sql: str, parameters: dict[str, Any]) -> Any:
        return _result(self._connection.execute(_text(sql), parameters))

    def after_commit(self, call: Callable[[], None]) -> None:
        """A session tells when its transaction has ended. A connection tells only before it commits."""
        session = getattr(self._connection, "sync_session", self._connection)
        if not hasattr(session, "info") or not hasattr(session, "in_nested_transaction") or hasattr(session, "dialect"):
            return
        if _WAITING not in session.info:
            import_module("sqlalchemy.event").listen(session, "after_transaction_end", _transaction_ended)
        session.info.setdefault(_WAITING, []).append(call)


class _AsyncSqlalchemy(_Sqlalchemy):
    is_async = True

    def check(self) -> None:
        if not self._is_session:  # a session is asked for its connection first, in `run`
            super().check()

    def _source(self) -> Any:
        return self._connection.sync_connection

    @property
    def _is_session(self) -> bool:
        return hasattr(self._connection, "get_bind")

    async def run(self, sql: str, parameters: dict[str, Any]) -> Any:
        if self._is_session:
            _refuse_autocommit((await self._connection.connection()).sync_connection)
        return _result(await self._connection.execute(_text(sql), parameters))


def _refuse_autocommit(source: Any) -> None:
    """Refuse a connection or an engine of SQLAlchemy on which each statement commits by itself."""
    of_engine = getattr(source.dialect, "_on_connect_isolation_level", None)  # from create_engine
    if source.get_execution_options().get("isolation_level", of_engine) == "AUTOCOMMIT":
        _refuse()


def _transaction_ended(session: Any, transaction: Any) -> None:
    if transaction.parent is None:  # else it is a savepoint
        waiting, session.info[_WAITING] = session.info[_WAITING], []
        for call in waiting:
            call()


class _Django:
    is_async = False

    def __init__(self, connection: Any) -> None:
        if connection.vendor != "postgresql":
            raise InvalidInput("connection", f"is one to {connection.display_name}: PostgreSQL is needed")
        self._connection = connection

    def check(self) -> None:
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            _refuse()

    def run(self, sql: str, parameters: dict[str, Any]) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(_named(sql), parameters)
            return _first(cursor.fetchone()) if cursor.description else cursor.rowcount

    def after_commit(self, call: Callable[[], None]) -> None:
        if self._connection.in_atomic_block:
            self._connection.on_commit(call, robust=True)


class Sqlite:
    """For the inbox: Evertick itself needs PostgreSQL."""

    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def check(self) -> None:
        connection = self._connection
        is_manual = connection.isolation_level is None or getattr(connection, "autocommit", False) is True
        if is_manual and not connection.in_transaction:
            _refuse()

    def run(self, sql: str, parameters: dict[str, Any]) -> Any:
        cursor = self._connection.execute(sql, parameters)
        return _first(cursor.fetchone()) if cursor.description else cursor.rowcount

    def after_commit(self, call: Callable[[], None]) -> None:
        """The library does not tell."""


def _named(sql: str) -> str:
    return _PARAMETER.sub(r"%(\1)s", sql)


def _text(sql: str) -> Any:
    return import_module("sqlalchemy").text(sql)


def _first(row: Any) -> Any:
    """The only column of a row, whatever the connection makes of rows."""
    if row is None:
        return None
    return next(iter(row.values())) if isinstance(row, dict) else row[0]


def _result(result: Any) -> Any:
    if result.returns_rows:
        found = result.first()
        return None if found is None else found[0]
    return result.rowcount
