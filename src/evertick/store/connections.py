"""Connections that fail fast: one that does not answer in time is closed at once, and never used again.

The driver would ask the server to cancel a statement that timed out, and wait for the answer on the silent line. Here
the connection is closed at once. Whether the statement was done is unknown either way.

A URL may name several hosts, of which one is the primary and any may hang: the first that answers is used.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import asyncpg
from asyncpg.pool import PoolAcquireContext, PoolConnectionProxy
from asyncpg.transaction import Transaction

Isolation: TypeAlias = Literal["read_committed", "read_uncommitted", "serializable", "repeatable_read"]

CLOSE_SECONDS = 2.0
"""An orderly close takes one round trip."""
KEEPALIVE_SECONDS = {"TCP_KEEPIDLE": 5, "TCP_KEEPALIVE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""An idle connection whose peer is gone fails after 11 seconds. Systems differ in which of these they know."""
USER_TIMEOUT_MS = 10_000
"""So long may what was sent stay unacknowledged by the peer's kernel, instead of a quarter of an hour."""
HEAD_START_SECONDS = 1.0
"""A healthy host in the same region answers within milliseconds: after a second the next is tried beside it."""
DEFAULT_PORT = "5432"
MAX_QUERIES = 50_000
"""After so many a connection of a pool is closed."""


class FailFastTransaction(Transaction):
    """A transaction whose rollback does not hide the error that caused it."""

    _connection: asyncpg.Connection

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None and self._connection.is_closed():
            return  # the server rolls back by itself
        await super().__aexit__(kind, error, trace)


class FailFastConnection(asyncpg.Connection):
    """A connection that is closed as soon as a statement on it timed out or was cancelled."""

    _loop: asyncio.AbstractEventLoop
    _transport: asyncio.Transport
    _protocol: Any
    _top_xact: Transaction | None
    _on_release: Callable[[], None]
    _pool_holder: Callable[[], Any] | None
    is_abandoned = False
    is_pooled = False

    def is_closed(self) -> bool:
        return self.is_abandoned or super().is_closed()

    @property
    def is_at_rest(self) -> bool:
        """Whether it can go back to its pool as it is: no transaction is open, and it has not served its time."""
        protocol = self._protocol
        is_busy = protocol.is_in_transaction() or self._top_xact is not None or protocol._is_cancelling()  # noqa: SLF001
        return not is_busy and protocol.queries_count < MAX_QUERIES

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the driver's signature
        """Close in order, within `CLOSE_SECONDS`: a broken line never answers."""
        try:
            await super().close(timeout=CLOSE_SECONDS if timeout is None else timeout)
        except OSError:  # among them TimeoutError
            self.terminate()

    def transaction(
        self, *, isolation: Isolation | None = None, readonly: bool = False, deferrable: bool = False
    ) -> FailFastTransaction:
        return FailFastTransaction(self, isolation, readonly, deferrable)

    def keep_alive(self) -> None:
        """Let the kernel notice a peer that is gone."""
        link = self._transport.get_extra_info("socket")
        if link is None or link.family == socket.AF_UNIX:
            return
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE_SECONDS.items():
            if hasattr(socket, name):
                link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)

    def _cancel_current_command(self, *_: object) -> None:
        """The driver's hook for a statement that timed out, or whose task was cancelled."""
        self.is_abandoned = True
        # The driver still writes to the connection after this call.
        self._loop.call_soon(self._cut)

    def _cut(self) -> None:
        holder = self._pool_holder() if self._pool_holder is not None else None
        self.terminate()
        if holder is not None:
            # The idle connections of the pool use the same line: the next statement should not have to time out, too.
            holder._pool.drop_idle()  # noqa: SLF001 - a holder does not tell its pool otherwise


class FailFastPool(asyncpg.Pool):
    """A pool in which a wait for a connection ends with a TimeoutError after `wait_seconds`."""

    _holders: list[Any]
    _queue: asyncio.Queue[Any]
    wait_seconds: float
    purpose: str

    def acquire(self, *, timeout: float | None = None) -> PoolAcquireContext:
        return super().acquire(timeout=self.wait_seconds if timeout is None else timeout)

    async def release(self, connection: PoolConnectionProxy, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the driver's signature
        """Give a connection back. A lost one has freed its place already, which the driver does not expect."""
        held: FailFastConnection | None = getattr(connection, "_con", None)
        if held is not None and held.is_closed():
            held.terminate()
            return
        if held is not None and held.is_at_rest and not self._queue.empty():
            # The driver makes a task for it, which takes turns of the event loop. Here nothing is waited for that a
            # cancellation might interrupt. If all connections are in use the turns let others have it that wait.
            held._on_release()  # noqa: SLF001
            await connection._holder.release(timeout)  # noqa: SLF001
            return
        try:
            await super().release(connection, timeout=timeout)
        except asyncpg.InternalClientError:
            if held is None or not held.is_closed():
                raise

    def use(self) -> dict[tuple[str, str], int]:
        """How many connections are used, idle, and free to be opened."""
        size, idle = self.get_size(), self.get_idle_size()
        counts = {"used": size - idle, "idle": idle, "free": self.get_max_size() - size}
        return {(self.purpose, state): count for state, count in counts.items()}

    def drop_idle(self) -> None:
        """Cut all idle connections; new ones are made as they are needed."""
        for holder in self._holders:
            if holder.is_idle():
                holder.terminate()

    async def close(self) -> None:
        """Close in order, or at once if that takes too long."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await super().close()
        except TimeoutError:
            self.terminate()


class Host(NamedTuple):
    """One host of a URL, or the directory of a server's socket."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class NoHostAnswered(Exception):  # noqa: N818 - says what is wrong
    """None of several hosts could be used, and why for each."""

    def __init__(self, failures: Mapping[Host, Exception]) -> None:
        super().__init__("no host answered")
        self.failures = failures


_answered: dict[tuple[Host, ...], Host] = {}
"""Which of several hosts was the primary when one was last connected to."""


def hosts_of(url: str) -> tuple[Host, ...]:
    """The hosts that a URL names; none if it names none. ValueError: a port is not a number, or there are too few."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    ports = query.get("port", [os.environ.get("PGPORT", "")])[-1] or DEFAULT_PORT
    listed = parts.netloc.rpartition("@")[2]
    names = [unquote(name) for name in listed.split(",")] if listed else query.get("host", [""])[-1].split(",")
    defaults = ports.split(",") if "," in ports else [ports] * len(names)
    return tuple(_host(name, port) for name, port in zip(names, defaults, strict=True) if name)


def chooses_session(url: str) -> bool:
    """Whether the URL or the environment says what kind of server is wanted."""
    return "target_session_attrs" in parse_qs(urlsplit(url).query) or "PGTARGETSESSIONATTRS" in os.environ


def place(parts: SplitResult) -> str:
    """Where a URL leads to, without user and password."""
    host = parts.netloc.rpartition("@")[2] or parse_qs(parts.query).get("host", ["the default host"])[-1]
    return f"database {parts.path.lstrip('/') or '(default)'} at {host}"


async def first_to_answer(
    hosts: Sequence[Host], dial: Callable[[Host], Awaitable[FailFastConnection]]
) -> FailFastConnection:
    """Connect to the hosts in turn, beginning with the one that answered last; the first connection is used.

    The next host is tried when the one before failed, or did not answer within `HEAD_START_SECONDS`. So a host that
    hangs delays the others little, and has as much time as if it were alone.
    """
    known = tuple(hosts)
    last = _answered.get(known)
    waiting = sorted(known, key=lambda host: host != last)
    dialled: dict[asyncio.Future[FailFastConnection], Host] = {}
    failures: dict[Host, Exception] = {}
    try:
        while waiting or dialled:
            if waiting:
                host = waiting.pop(0)
                dialled[asyncio.ensure_future(dial(host))] = host
            pause = HEAD_START_SECONDS if waiting else None
            done, _ = await asyncio.wait(dialled, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                host = dialled.pop(task)
                try:
                    connection = task.result()
                except Exception as error:  # noqa: BLE001 - reported together, if no other host answers
                    failures[host] = error
                else:
                    _answered[known] = host
                    return connection
        raise NoHostAnswered(failures)
    finally:
        for task in dialled:
            task.cancel()
            task.add_done_callback(_close_late)


def _host(text: str, default: str) -> Host:
    if text.startswith("["):
        name, _, port = text[1:].partition("]")
        return Host(name, int(port.removeprefix(":") or default))
    if text.startswith("/"):
        return Host(text, int(default))
    name, _, port = text.partition(":")
    return Host(name, int(port or default))


def _close_late(late: "asyncio.Future[FailFastConnection]") -> None:
    """Close a connection that came after the first one."""
    if not late.cancelled() and late.exception() is None:
        late.result().terminate()
