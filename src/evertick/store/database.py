"""Connections to a database, the same for every role, and what the errors of a database mean.

No statement relies on the state of a session beyond the settings that it is opened with.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast
from urllib.parse import urlsplit
from weakref import WeakSet

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from evertick.metrics.catalog import POOL
from evertick.store.connections import (
    MAX_QUERIES,
    FailFastConnection,
    FailFastPool,
    Host,
    NoHostAnswered,
    chooses_session,
    first_to_answer,
    hosts_of,
    place,
)
from evertick.store.errors import DatabaseUnreachable
from evertick.store.location import DatabaseAddress, Location, PasswordUnavailable
from evertick.store.pooled_connections import PooledConnection, is_pooled

CONNECT_SECONDS = 10
"""For each host of a URL by itself."""
COMMAND_SECONDS = 60
IDLE_SECONDS = 10
"""A session that freezes inside a transaction does not keep rows locked for longer."""
LOCK_SECONDS = 20
"""So long a session without `Timeouts` waits for rows that another has locked."""
SERVER_SHARE = 0.9
"""Of the time for a statement: after it the server cancels the statement and says so, unless the line is slow."""

Pool: TypeAlias = asyncpg.Pool
Session: TypeAlias = asyncpg.Connection | PoolConnectionProxy
"""One connection, so that several statements can share a transaction."""

_CLIENT_SETTINGS = {"application_name": "evertick", "timezone": "UTC"}
"""Poolers accept these from a client, and pass them on."""
_SETTINGS = {
    # Statements take arrays. A generic plan expects few elements and so uses the indexes, however many come.
    "plan_cache_mode": "force_generic_plan",
    # A plan made while a table is empty would read all of it, and live on when it has grown.
    "enable_seqscan": "off",
    "jit": "off",  # compiling costs short statements more than it saves
}

TRANSIENT: tuple[type[Exception], ...] = (
    OSError,  # refused, reset, timed out, name not found
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,  # too many connections, disk full, out of memory
    asyncpg.CannotConnectNowError,  # it starts or stops
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,  # a primary that has just become a standby
    asyncpg.InternalClientError,  # the driver lost its place on a line that broke, or found no primary
)
_CONFLICTS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)
_GONE = ("connection is closed", "released back to the pool", "pool is closing", "pool is closed")
"""Messages that tell a lost connection from misuse of the driver: both have one class."""
_UNKNOWN = ("08", "40003", "57P")
"""SQLSTATEs of an error that does not say what became of the statement: the session was lost, or is being ended."""
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (asyncpg.DiskFullError, "the disk is full"),
    (asyncpg.TooManyConnectionsError, "all connections are taken"),
    (asyncpg.OutOfMemoryError, "the server is out of memory"),
    (asyncpg.CannotConnectNowError, "the server starts or stops"),
    (asyncpg.AdminShutdownError, "the server ended the session"),
    (asyncpg.CrashShutdownError, "the server ended the session"),
    (asyncpg.PostgresConnectionError, "the connection was lost"),
    (asyncpg.ReadOnlySQLTransactionError, "the server is a standby"),
    (asyncpg.TargetServerAttributeNotMatched, "the server is a standby"),
    (TimeoutError, "no answer in time"),
)
_pools: WeakSet[FailFastPool] = WeakSet()
"""All that are open, for the metrics."""
_MALFORMED = (
    "the database URL cannot be used: it must read postgresql://user:password@host:port/database,"
    " with @ : / ? # and % in the password percent-encoded"
)


_poolers: dict[tuple[str, Host | None], bool] = {}
"""Whether there is a pooler at a host of a URL, for those that were connected to."""


class Timeouts(NamedTuple):
    """How long a purpose waits: for a connection, for the answer to a statement, for a lock that others hold."""

    connection_seconds: float
    command_seconds: float
    lock_seconds: float


async def open_pool(
    url: DatabaseAddress,
    *,
    min_size: int = 1,
    max_size: int = 10,
    timeouts: Timeouts | None = None,
    purpose: str = "other",
) -> Pool:
    """A pool with `min_size` connections to begin with; more are made and ended as they are needed.

    `purpose` names it in the metrics.
    """
    pool = FailFastPool(
        url,
        connect=cast("Any", _dial),  # the stubs know one signature only
        init_size=min_size,
        # The pool would log a traceback for each connection that it fails to keep open, beside the error of the caller.
        min_size=0,
        max_size=max_size,
        reset=_keep_session,
        max_queries=MAX_QUERIES,
        max_inactive_connection_lifetime=300.0,
        loop=None,
        connection_class=FailFastConnection,
        record_class=asyncpg.Record,
        **_options(timeouts),
    )
    pool.wait_seconds = CONNECT_SECONDS + COMMAND_SECONDS if timeouts is None else timeouts.connection_seconds
    pool.purpose = purpose
    _pools.add(pool)
    return await pool


def _pool_use() -> Mapping[tuple[str, ...], float]:
    total: Counter[tuple[str, ...]] = Counter()
    for pool in list(_pools):
        if not pool.is_closing():
            total.update(pool.use())
    return total


POOL.watch(_pool_use)


async def connect(url: DatabaseAddress, *, timeouts: Timeouts | None = None) -> FailFastConnection:
    """One connection outside any pool."""
    async with asyncio.timeout(None if timeouts is None else timeouts.connection_seconds):
        return await _dial(url, **_options(timeouts), connection_class=FailFastConnection)


async def is_behind_pooler(pool: Pool) -> bool:
    async with pool.acquire() as connection:
        found: bool = cast("FailFastConnection", connection).is_pooled  # a proxy, which has all that it stands for
        return found


@asynccontextmanager
async def transaction_without_timeout(pool: Pool) -> AsyncIterator[Session]:
    """A transaction for a statement with a time-out of its own, which is longer than the server's for the others."""
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0")
        yield connection


SCAN_SECONDS = 60.0
"""For a statement that reads a whole table of ten million rows, on a busy server."""
_SCAN_SETTINGS = f"""
SET LOCAL statement_timeout = '{SCAN_SECONDS:.0f}s';
SET LOCAL plan_cache_mode = force_custom_plan;
SET LOCAL enable_seqscan = on;
SET LOCAL enable_sort = off;
SET LOCAL work_mem = '64MB';
SET LOCAL parallel_setup_cost = 100;
SET LOCAL parallel_tuple_cost = 0.03;
"""
"""The planner expects far more groups than there are, and would sort all rows, or group them in one process."""


@asynccontextmanager
async def scanning(connection: Pool | Session) -> AsyncIterator[Session]:
    """A transaction whose statements read and group whole tables, in several processes of the server.

    It is rolled back in the end, and with it its settings, also if it is part of another one.
    """
    if isinstance(connection, asyncpg.Pool):
        async with connection.acquire() as acquired, scanning(acquired) as session:
            yield session
        return
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(_SCAN_SETTINGS)
        yield connection
    finally:
        if not connection.is_closed():  # else the server rolls back by itself, and the error of the statement counts
            await transaction.rollback()


def is_transient(error: BaseException) -> bool:
    """Whether the database was lost or unavailable, so that the same may work later. It may also have been done."""
    if isinstance(error, DatabaseUnreachable):
        return error.__cause__ is not None and is_transient(error.__cause__)
    if isinstance(error, asyncpg.InterfaceError):
        return any(words in str(error) for words in _GONE)
    return isinstance(error, TRANSIENT)


def was_too_slow(error: BaseException) -> bool:
    """Whether the server cancelled the statement, because it took too long or on request."""
    return isinstance(error, asyncpg.QueryCanceledError)


def was_rolled_back(error: BaseException) -> bool:
    """Whether the server said that it rolled back. Else the statement may have been done, or may yet be."""
    if isinstance(error, DatabaseUnreachable):
        return True  # there was no connection to send it on
    if not isinstance(error, asyncpg.PostgresError) or error.sqlstate is None:
        return False
    # FATAL ends the session, which may have committed just before.
    return error.severity_en not in {"FATAL", "PANIC"} and not error.sqlstate.startswith(_UNKNOWN)


def was_conflict(error: BaseException) -> bool:
    """Whether the server rolled back because of a concurrent transaction: the same may work at once."""
    return isinstance(error, _CONFLICTS)


def is_lock_timeout(error: BaseException) -> bool:
    """Whether the statement was rolled back because another session held a lock for too long."""
    return isinstance(error, asyncpg.LockNotAvailableError)


def lacks_privilege(error: BaseException) -> bool:
    return isinstance(error, asyncpg.InsufficientPrivilegeError)


def reason_of(error: BaseException) -> str:
    """Why the database did not do what it should, in one line for people."""
    if isinstance(error, DatabaseUnreachable):
        return str(error)
    said = str(error).partition("\n")[0]
    known = next((words for kind, words in _REASONS if isinstance(error, kind)), None)
    return ": ".join(part for part in (known or type(error).__name__, said) if part)


async def _keep_session(_: asyncpg.Connection) -> None:
    """Nothing to reset in a session without state: saves a round trip each time a connection returns to the pool."""


def _options(timeouts: Timeouts | None) -> dict[str, Any]:
    """What `_dial` takes: the settings of a session, and the time for a statement."""
    settings = _SETTINGS | {
        "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
        "lock_timeout": f"{LOCK_SECONDS}s",
    }
    if timeouts is None:
        return {"settings": settings, "command_timeout": COMMAND_SECONDS}
    settings |= {
        "lock_timeout": f"{int(timeouts.lock_seconds * 1000)}ms",
        "statement_timeout": f"{int(timeouts.command_seconds * SERVER_SHARE * 1000)}ms",
    }
    return {"settings": settings, "command_timeout": timeouts.command_seconds}


async def _dial(location: DatabaseAddress, **options: Any) -> FailFastConnection:
    """Connect to the URL's host, or to the primary among its hosts."""
    location = location if isinstance(location, Location) else Location(location)
    url = location.url
    options["settings"] = options["settings"] | {"search_path": location.schema}
    if location.password is not None:
        options["password"] = location.password
    with _explained(url):
        hosts = hosts_of(url)
        if len(hosts) > 1:
            if not chooses_session(url):
                # By default never a standby, which answers but cannot write.
                options["target_session_attrs"] = location.wanted
            connection = await first_to_answer(hosts, partial(_dial_host, url, options))
        else:
            connection = await _dial_host(url, options, None)
        connection.keep_alive()
        return connection


async def _dial_host(url: str, options: dict[str, Any], host: Host | None) -> FailFastConnection:
    """Connect to one host, or to the one of the URL. The first connection finds out whether it is a pooler."""
    options = options if host is None else options | {"host": host.name, "port": host.port}
    known = _poolers.get((url, host))
    if known:
        return await _dial_pooler(url, options)
    try:
        connection = await _dial_directly(url, options)
    except (asyncpg.ProtocolViolationError, asyncpg.FeatureNotSupportedError):
        # A pooler that refuses settings, as PgBouncer does by default. Otherwise this fails again.
        connection = await _dial_pooler(url, options)
    else:
        if known is None and await is_pooled(connection):  # one that ignores settings
            connection.terminate()
            connection = await _dial_pooler(url, options)
    _poolers[url, host] = connection.is_pooled
    return connection


async def _dial_directly(url: str, options: dict[str, Any]) -> FailFastConnection:
    given = options | {"server_settings": options["settings"] | _CLIENT_SETTINGS}
    del given["settings"]
    return await _log_in(url, given)


async def _dial_pooler(url: str, options: dict[str, Any]) -> PooledConnection:
    given = options | {"server_settings": _CLIENT_SETTINGS, "connection_class": PooledConnection}
    settings = given.pop("settings")
    connection = cast("PooledConnection", await _log_in(url, given))
    connection.use_settings(settings, options["command_timeout"])
    return connection


async def _log_in(url: str, options: dict[str, Any]) -> FailFastConnection:
    try:
        connection: FailFastConnection = await asyncpg.connect(url, timeout=CONNECT_SECONDS, **options)
    except asyncpg.InvalidPasswordError as error:
        if "password" not in options:
            raise
        raise PasswordUnavailable(f"{error}; it will be read again") from error
    return connection


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn whatever keeps a connection from being made into one error that explains it."""
    where = _place(url)
    try:
        yield
    except NoHostAnswered as error:
        reasons = "; ".join(f"{host}: {_refusal(failure)}" for host, failure in error.failures.items())
        # What may pass for one host may pass for the whole.
        cause = max(error.failures.values(), key=is_transient)
        raise DatabaseUnreachable(f"cannot reach {where}: {reasons}") from cause
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise DatabaseUnreachable(f"cannot reach {where}: {_refusal(error)}") from error
    except ValueError:  # after OSError: a certificate that is refused is both
        # The driver's message quotes what it took for the port, which may be half a password.
        raise DatabaseUnreachable(_MALFORMED) from None


def _refusal(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not error.args:
        return f"no answer in {CONNECT_SECONDS} seconds"
    return "the server is a standby" if isinstance(error, asyncpg.TargetServerAttributeNotMatched) else str(error)


def _place(url: str) -> str:
    """Where a URL leads to, without user and password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise DatabaseUnreachable(_MALFORMED) from None
    # An @ this late means that a password with / ? or # in it has spilled over.
    if parts.scheme not in {"postgresql", "postgres"} or "@" in parts.path + parts.query + parts.fragment:
        raise DatabaseUnreachable(_MALFORMED)
    return place(parts)
