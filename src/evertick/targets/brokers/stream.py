"""Connections to brokers over TCP: opened through the egress guard, shared by publishes, opened again after a loss.

- `open_stream` connects to an address that the guard returned, and checks a certificate against the name.
- `Connection` reads in one task. It is lost when the stream ends, when the broker sends what cannot be read, and when
  publishes wait and nothing has arrived for `SILENCE_SECONDS`, or no answer to a request of its own or no room to write
  for so long: a broker may go on with heartbeats alone. A lost connection fails everything that waits for it.
- `Shared` keeps one connection for all publishes. Those that come while it is being opened wait for the same opening;
  a caller that is cancelled ends neither the opening nor the connection.
"""

import asyncio
import os
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Generic, TypeVar

from evertick.domain.errors import EvertickError
from evertick.targets.brokers.publisher import Dial, PublishFailed

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 15.0
LOOKS = 3
UNSENT_BYTES = 65_536
"""With no more than that unsent, nobody waits."""
_CHUNK = 65_536


async def all_of(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Do all of it at once; what is alone needs no task."""
    if len(work) == 1:
        await work[0]
    else:
        await asyncio.gather(*work)


def broker_down(reason: str) -> PublishFailed:
    return PublishFailed(reason, retryable=True, is_broker_down=True)


def reason_of_all(failures: Sequence[PublishFailed]) -> PublishFailed:
    """Why none of several servers can be used: the first reason, but one that may pass before those that do not."""
    return min(failures, key=lambda failure: not failure.retryable)


@lru_cache(maxsize=128)  # reading those of the system takes tens of milliseconds
def tls_context(authorities: str | None) -> ssl.SSLContext:
    """Trusts these authorities, or those of the system."""
    try:
        return ssl.create_default_context(cadata=authorities)
    except ssl.SSLError as error:
        raise PublishFailed(
            "tls_ca has no certificate that can be read", retryable=False, is_broker_down=True
        ) from error


def host_and_port(server: str, default_port: int) -> tuple[str, int]:
    """The parts of `host`, `host:port` or `[address]:port`."""
    host, separator, port = server.rpartition(":")
    if not separator or server.endswith("]") or (":" in host and not host.startswith("[")):
        host, port = server, str(default_port)
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise PublishFailed(f"{server} has no valid port", retryable=False, is_broker_down=True)
    return host.strip("[]"), int(port)


async def open_stream(
    dial: Dial, host: str, port: int, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to one of the addresses that the guard permits. Reasons name the host, never an address."""
    try:
        addresses = await dial(host, port)
    except EvertickError as error:  # the guard refuses
        raise PublishFailed(f"{host}:{port}: {error}", retryable=False, is_broker_down=False) from error
    except OSError as error:
        raise broker_down(f"the addresses of {host} cannot be found") from error
    why = "it has no address"
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(address, port, ssl=tls, server_hostname=host if tls else None)
        except (OSError, TimeoutError) as error:
            why = reason_of(error)
    # One that does not speak TLS closes the connection, or waits.
    raise broker_down(f"cannot connect {'with TLS ' if tls else ''}to {host}:{port}: {why}")


def reason_of(error: Exception) -> str:
    """Why a connection failed, without the address that is in many of the system's messages."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not valid: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS failed: {error.reason}"
        case TimeoutError():
            return "it did not answer in time"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case _:
            return "the connection failed"


Answer = TypeVar("Answer")


class Connection(ABC):
    """A stream to a broker and the task that reads from it."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = name
        """`host:port`, for reasons."""
        self.failure: PublishFailed | None = None
        """Why it is lost."""
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._tasks: list[asyncio.Task[None]] = []

    @abstractmethod
    def take(self, data: bytes) -> None:
        """Handle what has arrived."""

    @abstractmethod
    def fail_all(self, failure: PublishFailed) -> None:
        """End everything that waits for an answer."""

    @property
    @abstractmethod
    def awaits_answers(self) -> bool: ...

    def ping(self) -> None:  # noqa: B027 - not all protocols have one
        """Called at each look for silence; a protocol with heartbeats sends one."""

    def begin(self) -> None:
        self._tasks = [self._loop.create_task(self._read()), self._loop.create_task(self._watch())]

    def write(self, data: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self._writer.write(data)

    async def drain(self) -> None:
        """Wait while much is unsent."""
        if self.failure is None and self._writer.transport.get_write_buffer_size() <= UNSENT_BYTES:
            return
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                await self._writer.drain()
        except OSError as error:  # and TimeoutError, which is one
            self.lose(self.unanswered() if isinstance(error, TimeoutError) else self.lost())
            assert self.failure is not None
            raise self.failure from None

    async def answer(self, reply: asyncio.Future[Answer]) -> Answer:
        """The answer to a request, for which nobody else waits."""
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                return await reply
        except TimeoutError:
            self.lose(self.unanswered())
            assert self.failure is not None
            raise self.failure from None

    async def wait_for(self, reply: asyncio.Future[Answer]) -> None:
        """Wait for an answer, for as long as a broker may be silent at most."""
        await asyncio.wait([reply], timeout=SILENCE_SECONDS)

    def is_overdue(self, asked_at: float) -> bool:
        """Whether what was asked at that time of the loop should have been answered."""
        return asked_at + SILENCE_SECONDS < self._loop.time()

    def unanswered(self) -> PublishFailed:
        return self.lost(f"the broker has not answered for {SILENCE_SECONDS:g} s")

    def lost(self, why: str = "the connection was lost before the broker confirmed") -> PublishFailed:
        return broker_down(f"{self.name}: {why}")

    def lose(self, failure: PublishFailed) -> None:
        """The connection ends; the first reason counts."""
        if self.failure is None:
            self.failure = failure
            for task in self._tasks:
                if task is not asyncio.current_task(self._loop):
                    task.cancel()
            self._writer.close()
            self.fail_all(failure)

    async def close(self) -> None:
        self.lose(self.lost("the connection was closed"))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()

    async def _read(self) -> None:
        failure = self.lost()
        try:
            while data := await self._reader.read(_CHUNK):
                self._heard_at = self._loop.time()
                self.take(data)
        except PublishFailed as error:
            failure = error
        except OSError as error:
            failure = self.lost(f"the connection was lost before the broker confirmed: {reason_of(error)}")
        except Exception as error:  # noqa: BLE001 - a broker may send anything
            failure = self.lost(f"the broker sent what cannot be read: {error}")
        finally:
            self.lose(failure)

    async def _watch(self) -> None:
        quiet = 0  # looks in a row at which something waited and nothing had arrived
        while quiet <= LOOKS:
            heard_at = self._heard_at
            await asyncio.sleep(SILENCE_SECONDS / LOOKS)
            quiet = quiet + 1 if self.awaits_answers and self._heard_at == heard_at else 0
            self.ping()
            if self.failure is not None:
                return
        self.lose(self.unanswered())


C = TypeVar("C", bound=Connection)


class Shared(Generic[C]):
    """One connection for many callers."""

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, C]]) -> None:
        self._connect = connect
        self._connection: C | None = None
        self._opening: asyncio.Task[C] | None = None
        self._is_closed = False

    @property
    def is_live(self) -> bool:
        return self._connection is not None and self._connection.failure is None

    async def get(self) -> C:
        if self._connection is not None and self._connection.failure is None:
            return self._connection
        if self._is_closed:
            raise broker_down("the connection was closed")
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._connect())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, opening: asyncio.Task[C]) -> None:
        self._opening = None
        # Reading the exception says to asyncio that it is handled, even if all callers are gone.
        if not opening.cancelled() and opening.exception() is None:
            self._connection = opening.result()

    async def close(self) -> None:
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()
