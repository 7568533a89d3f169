"""Publishes to streams of Redis by XADD. A message is stored when the answer with its id has arrived.

The protocol (RESP2) is ours, since it is a few lines of text; redis-py waits for the answers to one batch before it
sends the next, so that Redis and the dispatcher would work in turns. Here messages are written as they come, and Redis
answers in their order.

An entry has the attributes as fields `ce_…`, the job's headers by their names, `content-type` and `data`. CloudEvents
has no binding for Redis; this one follows that of Kafka.

Redis answers when it has the entry in memory. When that is on a disk, its `appendfsync` says. If the connection asks
for replicas, each batch is followed by a WAIT, and its messages are stored when so many replicas have them.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import msgspec

from evertick.contract.connections import RedisStreamConnection
from evertick.targets.brokers.publisher import (
    MAX_REMEMBERED,
    NO_MESSAGE,
    Awaited,
    Dial,
    Envelope,
    Publisher,
    PublishFailed,
    Sending,
    fail_all,
    made_of,
)
from evertick.targets.brokers.stream import (
    CONNECT_SECONDS,
    Connection,
    Shared,
    broker_down,
    open_stream,
    tls_context,
)

MAX_ANSWER = 65_536
"""An id has about 20 bytes, what Redis says of itself some thousands."""
_BROKER_STATES = ("MISCONF", "NOREPLICAS", "BUSY", "TRYAGAIN")
"""What Redis says before its reason when it takes nothing at all."""
_UNREADABLE = "Redis sent what cannot be read"
_CREDENTIALS, _NOT_READY = "Redis refused the user name or password", "Redis is not ready"
_DOWN = {
    "NOAUTH": _CREDENTIALS,
    "WRONGPASS": _CREDENTIALS,
    "READONLY": "the Redis server is a read-only replica",
    "OOM": "Redis is out of memory",
    "CLUSTERDOWN": _NOT_READY,
    "LOADING": _NOT_READY,
    "MASTERDOWN": _NOT_READY,
    "DENIED": "Redis is in protected mode",
}
_NO_CLIENTS = "ERR max number of clients"
WAIT_SECONDS = 5.0
"""For so long replicas may be behind. Meanwhile Redis does nothing else for the connection."""
_SIZES = [f"{length}\r\n" for length in range(4096)]


class NotPermitted(PublishFailed):
    """The user is known, and may not do this."""


def open_publisher(settings: Mapping[str, Any], secrets: Mapping[str, str], dial: Dial) -> Publisher:
    return RedisStreamPublisher(msgspec.convert(settings, RedisStreamConnection), secrets, dial)


class RedisStreamPublisher(Publisher):
    """One connection to one server."""

    def __init__(self, settings: RedisStreamConnection, secrets: Mapping[str, str], dial: Dial) -> None:
        self._settings, self._secrets, self._dial = settings, secrets, dial
        self._shared: Shared[RedisStream] = Shared(self._connect)

    async def send(self, batch: Sequence[Sending]) -> None:
        connection = await self._shared.get()
        requests = [request for sending in batch if (request := made_of(sending, _request)) is not None]
        if self._settings.replicas and requests:
            requests = _replicated(requests, self._settings.replicas)
        await connection.send(requests)

    async def check(self) -> str:
        connection = await self._shared.get()
        if self._settings.replicas:
            await connection.find_replicas(self._settings.replicas)
        try:
            found = await connection.ask(b"INFO", b"server")
        except NotPermitted:  # XADD is enough for messages
            return "Redis knows the user, who may not ask for its version"
        fields = dict(line.split(":", 1) for line in found.splitlines() if ":" in line)
        return f"Redis {fields.get('redis_version', 'of an unknown version')}"

    async def close(self) -> None:
        await self._shared.close()

    async def _connect(self) -> "RedisStream":
        settings = self._settings
        tls = tls_context(settings.tls_ca) if settings.tls else None
        reader, writer = await open_stream(self._dial, settings.host.strip("[]"), settings.port, tls)
        connection = RedisStream(f"{settings.host}:{settings.port}", reader, writer)
        connection.begin()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.log_in(settings.username, self._secrets.get("password"), settings.database)
        except TimeoutError:
            failure = connection.lost("Redis did not answer in time")
            connection.lose(failure)
            raise failure from None
        except BaseException:
            connection.lose(connection.lost())
            raise
        return connection


_Request: TypeAlias = tuple[bytes, str, Sending]
"""A command, and what gets its answer, with this text before it. Plain, as the next: one is made for each message."""
_Asked: TypeAlias = tuple[str, Sending, float]
"""What gets the answer to a command that was written, and when that was by the clock of the loop."""


class RedisStream(Connection):
    """A connection that has the answers to its commands in their order."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(name, reader, writer)
        self._asked: deque[_Asked] = deque()
        self._buffer = b""

    async def log_in(self, username: str | None, password: str | None, database: int) -> None:
        if password is not None:
            words = [password] if username is None else [username, password]
            try:
                await self.ask(b"AUTH", *(word.encode() for word in words))
            except PublishFailed as refused:
                raise refused if refused.is_broker_down else broker_down(_CREDENTIALS) from refused
        if database:
            try:
                await self.ask(b"SELECT", b"%d" % database)
            except NotPermitted as refused:  # no fault of any message
                raise broker_down(str(refused)) from refused
        try:
            # A server that wants a password, or is not ready, says so to a short command. It does not read a long one.
            await self.ask(b"PING")
        except PublishFailed as refused:
            if refused.is_broker_down:  # else the user may do other things
                raise

    async def ask(self, *words: bytes) -> str:
        asked = Awaited()
        await self.send([(_packed(words), "", asked)])
        return await self.answer(asked.answer)

    async def find_replicas(self, wanted: int) -> None:
        """PublishFailed: there are fewer, or the user may not wait for them."""
        asked = Awaited()
        kept = _Kept(asked)
        kept.stored("")  # there is nothing that they would have to get
        await self.send([_wait([kept], wanted)])
        await self.answer(asked.answer)

    async def send(self, requests: Sequence[_Request]) -> None:
        """Write commands; each of them ends when it is answered."""
        self.write(b"".join([command for command, _, _ in requests]))
        now = self._loop.time()
        self._asked.extend([(place, sending, now) for _, place, sending in requests])
        await self.drain()

    @property
    def awaits_answers(self) -> bool:
        return bool(self._asked)

    def ping(self) -> None:
        # A server that sends something now and then is not silent, and may answer nothing all the same.
        if self._asked and self.is_overdue(self._asked[0][2]):
            self.lose(self.unanswered())

    def fail_all(self, failure: PublishFailed) -> None:
        asked, self._asked = self._asked, deque()
        fail_all((sending for _, sending, _ in asked), failure)

    def take(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at = 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            kind, text = buffer[at : at + 1], buffer[at + 1 : end]
            at = end + 2
            if kind == b"$" and text.isdigit():
                if len(text) > 9 or int(text) > MAX_ANSWER:
                    raise broker_down("Redis sent an answer that is too long")
                after = at + int(text)
                if len(buffer) < after + 2:
                    at = end - 1 - len(text)
                    break
                self._answered(buffer[at:after])
                at = after + 2
            elif kind == b"+":
                self._answered(text)
            elif kind == b":" and self._asked and isinstance(replicas := self._asked[0][1], _Replicas):
                self._answered(text)
                if replicas.failure is not None:
                    # All else would wait as long. By now the address may lead to a replica that was promoted.
                    raise replicas.failure
            elif kind == b"-":
                self._refused(text.decode(errors="replace"))
            else:
                raise broker_down(_UNREADABLE)
        self._buffer = buffer[at:]
        if len(self._buffer) > 2 * MAX_ANSWER:
            raise broker_down("Redis sent an answer that is too long")

    def _answered(self, found: bytes) -> None:
        if not self._asked:
            raise broker_down(_UNREADABLE)
        place, sending, _ = self._asked.popleft()
        sending.stored(place + found.decode(errors="replace"))

    def _refused(self, text: str) -> None:
        failure = _failure_of(text)
        if text.startswith(("READONLY", _NO_CLIENTS)):
            # All else would fail the same way. By now the name of a replica may lead to another server.
            raise failure
        if not self._asked:
            raise broker_down(_UNREADABLE)
        self._asked.popleft()[1].failed(failure)


class _Kept(Sending):
    """A message that waits for replicas: Redis has it when there is a receipt."""

    __slots__ = ("receipt", "sending")

    def __init__(self, sending: Sending) -> None:
        super().__init__(sending.message)
        self.sending = sending
        self.receipt: str | None = None

    def ended(self, receipt: str | None, failure: Exception | None) -> None:
        self.receipt = receipt
        if failure is not None:
            self.sending.failed(failure)


class _Replicas(Sending):
    """Gets the answer to a WAIT: how many replicas have the messages before it. `failure`: why they are not stored."""

    __slots__ = ("failure", "kept", "wanted")

    def __init__(self, kept: Sequence[_Kept], wanted: int) -> None:
        super().__init__(NO_MESSAGE)
        self.kept = kept
        self.wanted = wanted
        self.failure: Exception | None = None

    def ended(self, receipt: str | None, failure: Exception | None) -> None:
        if receipt is not None and not receipt.isdigit():
            failure = broker_down(_UNREADABLE)
        elif receipt is not None and int(receipt) < self.wanted:
            failure = broker_down(f"{receipt} of {self.wanted} replicas have acknowledged within {WAIT_SECONDS:g} s")
        elif isinstance(failure, PublishFailed) and not failure.is_broker_down:
            # No fault of any message: the user may not wait, or the server became a replica meanwhile.
            failure = broker_down(str(failure))
        self.failure = failure
        for each in self.kept:
            if failure is not None:
                each.sending.failed(failure)
            elif each.receipt is not None:
                each.sending.stored(each.receipt)


def _replicated(requests: Sequence[_Request], wanted: int) -> list[_Request]:
    """Commands whose messages are stored when replicas have them."""
    kept = [(command, place, _Kept(sending)) for command, place, sending in requests]
    return [*kept, _wait([each for _, _, each in kept], wanted)]


def _wait(kept: Sequence[_Kept], wanted: int) -> _Request:
    """The command that waits until replicas have what was written before it."""
    command = _packed([b"WAIT", b"%d" % wanted, b"%d" % (WAIT_SECONDS * 1000)])
    return command, "", _Replicas(kept, wanted)


def _failure_of(text: str) -> PublishFailed:
    """What an error in answer to a command means."""
    code = text.partition(" ")[0]
    if code in _DOWN:
        return broker_down(_DOWN[code])
    if text.startswith(_NO_CLIENTS):
        return broker_down("Redis has no connections left")
    is_down = code in _BROKER_STATES
    kind = NotPermitted if code == "NOPERM" else PublishFailed
    return kind(f"Redis refused: {text.removeprefix('ERR ')}", retryable=is_down, is_broker_down=is_down)


class _Form(NamedTuple):
    """What the commands for one envelope and stream have in common: the first words, and the names of the others.

    `opening` and `heads`, the same as they are written, are for texts of ASCII: each head ends with the `$` of the
    value's length, and is followed by two places, for that and for the value. `place` is what receipts begin with.
    """

    words: list[str]
    names: list[str]
    opening: str
    heads: list[str]
    place: str


def _request(sending: Sending) -> _Request:
    """The command that adds a message."""
    body, envelope, values, address, _ = sending.message
    stream = str(address["stream"])
    form_of = _remembered_form if len(stream) <= MAX_REMEMBERED else _form
    form = form_of(envelope, stream, address.get("max_length"))
    try:
        words = form.heads.copy()
        words[1::3] = [_SIZES[len(value)] for value in values]
        words[2::3] = values
        start = f"{form.opening}{''.join(words)}\r\n$4\r\ndata\r\n${len(body)}\r\n"
        # A text of ASCII has as many bytes as characters.
        return b"%b%b\r\n" % (start.encode("ascii"), body), form.place, sending
    except (IndexError, UnicodeEncodeError):  # a long value, or other characters
        words = [*form.words, *chain.from_iterable(zip(form.names, values, strict=True))]
        return _packed([*(word.encode(errors="replace") for word in words), b"data", body]), form.place, sending


def _form(envelope: Envelope, stream: str, most: object) -> _Form:
    words = ["XADD", stream, *(() if most is None else ("MAXLEN", "~", str(most))), "*"]
    words += chain.from_iterable(envelope.headers.items())
    words += ("content-type", envelope.content_type)
    for name, value in envelope.fixed.items():
        words += (f"ce_{name}", value)
    names = envelope.written_names("ce_")
    opening = "".join([f"\r\n${len(word)}\r\n{word}" for word in words])
    heads = [text for name in names for text in (f"\r\n${len(name)}\r\n{name}\r\n$", "", "")]
    return _Form(words, names, f"*{len(words) + 2 * len(names) + 2}{opening}", heads, f"stream {stream}, entry ")


_remembered_form = lru_cache(maxsize=1024)(_form)


def _packed(words: Sequence[bytes]) -> bytes:
    """A command as Redis reads it."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
