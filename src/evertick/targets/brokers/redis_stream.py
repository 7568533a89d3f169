"""Publishes to streams of Redis by XADD, on redis-py: it is made by the makers of Redis, is at home in asyncio, and
lets us choose the address.

Messages that come while Redis has not answered yet form the next batch: one write, and as many answers. An entry has
the attributes as fields `ce_…`, the job's headers by their names, `content-type` and `data`. CloudEvents has no
binding for Redis; this one follows that of Kafka.

Redis answers when it has the entry in memory. When that is on a disk, its `appendfsync` says.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from evertick.contract.connections import RedisStreamConnection
from evertick.targets.brokers.publisher import Dial, Message, Publisher, PublishFailed
from evertick.targets.brokers.stream import broker_down, open_stream, tls_context

ANSWER_SECONDS = 15.0
"""For one batch, and for connecting before it."""
MAX_BATCH = 512
MAX_ANSWERS = 1_048_576
"""Bytes in answer to one batch. An id has about 20, what Redis says of itself some thousands."""
_BROKER_STATES = ("MISCONF", "NOREPLICAS", "BUSY ", "TRYAGAIN")
"""What Redis says before its reason when it takes nothing at all."""


def open_publisher(settings: Mapping[str, Any], secrets: Mapping[str, str], dial: Dial) -> Publisher:
    return RedisStreamPublisher(msgspec.convert(settings, RedisStreamConnection), secrets, dial)


class _Answers:
    """What a server sends, up to MAX_ANSWERS for one batch: redis-py reads as much as the server announces."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._left = MAX_ANSWERS

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def renew(self) -> None:
        self._left = MAX_ANSWERS

    async def read(self, size: int) -> bytes:
        return self._counted(await self._reader.read(size))

    async def readline(self) -> bytes:
        return self._counted(await self._reader.readline())

    async def readexactly(self, size: int) -> bytes:
        if size > self._left:
            raise broker_down("Redis sent an answer that is too long")
        return self._counted(await self._reader.readexactly(size))

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise broker_down("Redis sent an answer that is too long")
        return data


class _OpenedConnection(AbstractConnection):
    """A connection over a stream that is open already."""

    answers: _Answers

    def open(self, stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        reader, self._opened = stream
        self.answers = _Answers(reader)

    def repr_pieces(self) -> list[tuple[str, str | int]]:
        return []

    async def _connect(self) -> None:
        self._reader, self._writer = self.answers, self._opened  # type: ignore[assignment]

    def _host_error(self) -> str:
        return "Redis"


class RedisStreamPublisher:
    """One connection, and the messages that wait for their turn on it."""

    def __init__(self, settings: RedisStreamConnection, secrets: Mapping[str, str], dial: Dial) -> None:
        self._settings = settings
        self._dial = dial
        self._connection = _OpenedConnection(
            db=settings.database,
            username=settings.username,
            password=secrets.get("password"),
            socket_timeout=None,  # a batch has one: redis-py would start one for each answer
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._waiting: deque[tuple[bytes, asyncio.Future[str]]] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def publish(self, message: Message) -> str:
        entry_id = await self._request(_xadd(message))
        return f"stream {message.address['stream']}, entry {entry_id}"

    async def check(self) -> str:
        found = await self._request(_packed((b"INFO", b"server")))
        fields = dict(line.split(":", 1) for line in found.splitlines() if ":" in line)
        return f"Redis {fields.get('redis_version', 'of an unknown version')}"

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        _fail(self._waiting, broker_down("the connection was closed"))
        await self._connection.disconnect(nowait=True)

    async def _request(self, command: bytes) -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, answer))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all())
        return await answer

    async def _send_all(self) -> None:
        """Send what waits, batch by batch. A failure of the connection fails its batch, and ends it."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._exchange(batch)
            except BaseException as error:
                failure = _failure_of(error)
                _fail(batch, failure)
                await self._connection.disconnect(nowait=True)
                if not isinstance(error, Exception):
                    raise

    async def _exchange(self, batch: list[tuple[bytes, asyncio.Future[str]]]) -> None:
        connection = self._connection
        if not connection.is_connected:
            connection.open(await self._open())
            await connection.connect()  # type: ignore[no-untyped-call]
        connection.answers.renew()
        await connection.send_packed_command([b"".join([command for command, _ in batch])], check_health=False)
        is_stale = False
        for _, answer in batch:
            try:
                found = await connection.read_response()
            except ResponseError as refused:
                is_stale = is_stale or isinstance(refused, ReadOnlyError)
                if not answer.done():
                    answer.set_exception(_failure_of(refused))
            else:
                if not answer.done():
                    answer.set_result(found.decode(errors="replace"))
        if is_stale:  # the server became a replica: by now the name may lead to another
            await connection.disconnect(nowait=True)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        settings = self._settings
        tls = tls_context(settings.tls_ca) if settings.tls else None
        return await open_stream(self._dial, settings.host.strip("[]"), settings.port, tls)


def _xadd(message: Message) -> bytes:
    """The command that adds a message. One of these is made for each: lengths of ASCII need no encoding first."""
    stream, most = str(message.address["stream"]), message.address.get("max_length")
    words = ["XADD", stream, *(() if most is None else ("MAXLEN", "~", str(most))), "*"]
    for name, text in message.headers.items():
        words += (name, text)
    words += ("content-type", message.content_type)
    attributes = message.attributes
    head = _head(tuple(words), len(words) + 2 * len(attributes) + 2)
    described = "".join([f"{_field(name)}${len(text)}\r\n{text}\r\n" for name, text in attributes.items()])
    if head is not None and described.isascii():
        start = f"{head}{described}$4\r\ndata\r\n${len(message.body)}\r\n"
        return b"%b%b\r\n" % (start.encode("ascii"), message.body)
    for name, text in attributes.items():
        words += (f"ce_{name}", text)
    return _packed([*(word.encode(errors="replace") for word in words), b"data", message.body])


@lru_cache(maxsize=1024)
def _head(words: tuple[str, ...], count: int) -> str | None:
    """The first words of a command of so many, which the messages of a target share. None: lengths need encoding."""
    head = "".join([f"${len(word)}\r\n{word}\r\n" for word in words])
    return f"*{count}\r\n{head}" if head.isascii() else None


@lru_cache(maxsize=64)
def _field(name: str) -> str:
    return f"${len(name) + 3}\r\nce_{name}\r\n"


def _packed(words: Sequence[bytes]) -> bytes:
    """A command as Redis reads it."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _fail(batch: Iterable[tuple[bytes, asyncio.Future[str]]], failure: Exception) -> None:
    for _, answer in batch:
        if not answer.done():
            answer.set_exception(failure)


def _failure_of(error: BaseException) -> Exception:  # noqa: PLR0911 - by type
    """Why a message was not accepted, without addresses or secrets."""
    match error:
        case AuthenticationError():
            return broker_down("Redis refused the user name or password")
        case NoPermissionError():
            return PublishFailed(f"Redis refused: {error}", retryable=True, is_broker_down=False)
        case ReadOnlyError():
            return broker_down("the Redis server is a read-only replica")
        case OutOfMemoryError():
            return broker_down("Redis is out of memory")
        case ClusterDownError() | BusyLoadingError():
            return broker_down("Redis is not ready")
        case ResponseError():
            text = str(error)
            is_down = text.startswith(_BROKER_STATES)
            return PublishFailed(f"Redis refused: {text}", retryable=is_down, is_broker_down=is_down)
        case TimeoutError():
            return broker_down("Redis did not answer in time")
        case RedisError() | OSError() | asyncio.CancelledError():
            return broker_down("the connection to Redis was lost")
        case Exception():
            return error
        case _:
            return broker_down("the publisher was stopped")
