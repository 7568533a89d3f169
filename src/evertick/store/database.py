"""Connections: how Evertick reaches a database, the same for every role, and what it means when it does not.

No statement relies on the state of a session, so a pooler in transaction mode works: `search_path` is asked for at
connect time, and where a pooler drops that, the role's own setting, made by `migrate`, says the same.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs, urlsplit

import asyncpg
from asyncpg.pool import PoolAcquireContext, PoolConnectionProxy

from evertick.domain.errors import EvertickError

SCHEMA = "evertick"
CONNECT_SECONDS = 10
COMMAND_SECONDS = 60
CLOSE_SECONDS = 5

Pool: TypeAlias = asyncpg.Pool
Session: TypeAlias = asyncpg.Connection | PoolConnectionProxy
"""One connection, so that several statements can share a transaction."""

_SETTINGS = {
    "search_path": SCHEMA,
    "application_name": "evertick",
    "timezone": "UTC",
    # Statements take arrays. A generic plan expects few elements and so uses the indexes, however many come.
    "plan_cache_mode": "force_generic_plan",
    # A plan made while a table is empty would read all of it, and live on when it has grown.
    "enable_seqscan": "off",
    # Whoever freezes inside a transaction must not keep the others' rows locked, nor anyone wait for them for ever.
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "20s",
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
)
_ROLLED_BACK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)
_MALFORMED = (
    "the database URL cannot be used: it must read postgresql://user:password@host:port/database,"
    " with @ : / ? # and % in the password percent-encoded"
)


class DatabaseUnreachable(EvertickError):  # noqa: N818 - says what is wrong
    """No connection could be made; the message says where to and why, and never shows a password."""


class Patience(NamedTuple):
    """For how long somebody waits who has a client waiting: for a connection, an answer, a lock that others hold."""

    connection_seconds: float
    command_seconds: float
    lock_seconds: float


class _HurriedPool(asyncpg.Pool):
    """A pool that lets nobody wait for a connection longer than so many seconds: they get a TimeoutError."""

    seconds: float

    def acquire(self, *, timeout: float | None = None) -> PoolAcquireContext:
        return super().acquire(timeout=self.seconds if timeout is None else timeout)


async def open_pool(
    url: str, *, min_size: int = 1, max_size: int = 10, pooler: bool = False, patience: Patience | None = None
) -> Pool:
    """Connect. `pooler`: the URL is a PgBouncer's, which keeps neither settings nor prepared statements."""
    options = _options(pooler=pooler)
    if patience is None:
        with _explained(url):
            return await asyncpg.create_pool(url, min_size=min_size, max_size=max_size, reset=_leave, **options)
    options["command_timeout"] = patience.command_seconds
    if not pooler:
        options["server_settings"] = {**_SETTINGS, "lock_timeout": f"{int(patience.lock_seconds * 1000)}ms"}
    pool = _HurriedPool(
        url,
        min_size=min_size,
        max_size=max_size,
        reset=_leave,
        max_queries=50_000,
        max_inactive_connection_lifetime=300.0,
        loop=None,
        connection_class=asyncpg.Connection,
        record_class=asyncpg.Record,
        **options,
    )
    pool.seconds = patience.connection_seconds
    with _explained(url):
        await pool
    return pool


async def connect(url: str, *, pooler: bool = False) -> asyncpg.Connection:
    """One connection outside any pool."""
    with _explained(url):
        return await asyncpg.connect(url, **_options(pooler=pooler))


async def close_pool(pool: Pool) -> None:
    """Close in order, or at once if that does not come to an end: a broken line never answers a goodbye."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await pool.close()
    except TimeoutError:
        pool.terminate()


def is_transient(error: BaseException) -> bool:
    """Whether the database was lost or unavailable, so that the same may work later. It may also have been done."""
    if isinstance(error, DatabaseUnreachable):
        return error.__cause__ is not None and is_transient(error.__cause__)
    if isinstance(error, asyncpg.InterfaceError):
        # The driver has one class for its misuse and for a connection that went away between two statements.
        return any(words in str(error) for words in ("connection is closed", "pool is closing", "pool is closed"))
    return isinstance(error, TRANSIENT)


def was_too_slow(error: BaseException) -> bool:
    """Whether the server gave up what was asked, for it took too long or somebody asked it to."""
    return isinstance(error, asyncpg.QueryCanceledError)


def was_rolled_back(error: BaseException) -> bool:
    """Whether the server said that nothing was done, only because of others: the same again at once is safe."""
    return isinstance(error, _ROLLED_BACK)


def is_lock_timeout(error: BaseException) -> bool:
    """Whether a lock that somebody else holds was not to be had in time; the statement was rolled back."""
    return isinstance(error, asyncpg.LockNotAvailableError)


async def _leave(_: asyncpg.Connection) -> None:
    """Nothing to reset in a session without state: saves a round trip each time a connection returns to the pool."""


def _options(*, pooler: bool) -> dict[str, Any]:
    limits = {"timeout": CONNECT_SECONDS, "command_timeout": COMMAND_SECONDS}
    if pooler:
        return {"statement_cache_size": 0, **limits}
    return {"server_settings": _SETTINGS, **limits}


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn whatever keeps a connection from being made into one error that explains it."""
    place = _place(url)
    try:
        yield
    except ValueError:
        # The driver's message quotes what it took for the port, which may be half a password.
        raise DatabaseUnreachable(_MALFORMED) from None
    except TimeoutError as error:
        raise DatabaseUnreachable(f"cannot reach {place}: no answer in {CONNECT_SECONDS} seconds") from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise DatabaseUnreachable(f"cannot reach {place}: {error}") from error


def _place(url: str) -> str:
    """Where a URL leads to, without user and password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise DatabaseUnreachable(_MALFORMED) from None
    # An @ this late means that a password with / ? or # in it has spilled over.
    if parts.scheme not in {"postgresql", "postgres"} or "@" in parts.path + parts.query + parts.fragment:
        raise DatabaseUnreachable(_MALFORMED)
    host = parts.netloc.rpartition("@")[2] or parse_qs(parts.query).get("host", ["the default host"])[0]
    return f"database {parts.path.lstrip('/') or '(default)'} at {host}"
