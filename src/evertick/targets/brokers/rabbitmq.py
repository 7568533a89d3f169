"""Publishes to RabbitMQ by AMQP 0-9-1. A message is stored when the broker has confirmed it.

One connection has two channels. One publishes, with confirms and `mandatory`: a message that no queue gets comes back.
The other asks whether an exchange exists before the first message goes to it, because RabbitMQ answers a message to a
missing exchange by closing the channel, with all that others have published there. If it is closed nevertheless, for an
exchange that is gone or not permitted, then the messages to other exchanges are published again.

The frames are pamqp's; the connection is ours, since aio-pika opens its sockets by itself, out of the egress guard's
reach, and waits for each confirm apart.

Attributes are headers `cloudEvents_…`, as in CloudEvents' AMQP binding; `message_id` is the idempotency key of the run.
"""

import asyncio
import re
import struct
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from pamqp import commands, frame
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader, ProtocolHeader
from pamqp.heartbeat import Heartbeat

from evertick.contract.connections import RabbitMqConnection
from evertick.targets.brokers.publisher import Dial, Message, Publisher, PublishFailed
from evertick.targets.brokers.stream import CONNECT_SECONDS, Connection, Shared, broker_down, open_stream, tls_context
from evertick.version import __version__

PORT, TLS_PORT = 5672, 5671
HEARTBEAT_SECONDS = 10
FRAME_MAX = 131_072
FRAME_MIN = 4096
"""What AMQP guarantees: a body in frames of some bytes would keep the process busy."""
REFUSED_SECONDS = 10.0
"""How long an exchange that is missing or not permitted is not asked for again."""

_CONTROL, _PUBLISHING = 1, 2
_FRAME_OVERHEAD = 8
_ACCESS_REFUSED, _NOT_FOUND, _TOO_LARGE = 403, 404, 406
_FRAME_HEAD = struct.Struct(">BHI")
_BASIC_HEADER = struct.Struct(">HHQH")
_FLAGS = 1 << 15 | 1 << 13 | 1 << 12 | 1 << 7  # content_type, headers, delivery_mode, message_id
_MANDATORY, _PERSISTENT = b"\x01", b"\x02"
_SIZE = re.compile(r"message size (\d+)")
_MAX_SHORT = 255
_PROPERTIES: dict[str, Any] = {
    "connection_name": "evertick",
    "product": "evertick",
    "version": __version__,
    "capabilities": {
        "authentication_failure_close": True,
        "basic.nack": True,
        "connection.blocked": True,
        "publisher_confirms": True,
    },
}


class ChannelClosed(Exception):  # noqa: N818 - says what happened
    """The broker closed the channel for a message of another caller."""


@dataclass(slots=True, eq=False)
class Unconfirmed:
    """A message under way. `returned`: why no queue got it; the confirm of a returned message follows its return."""

    exchange: str
    message_id: str
    size: int
    confirmed: asyncio.Future[None]
    returned: str | None = None


def open_publisher(settings: Mapping[str, Any], secrets: Mapping[str, str], dial: Dial) -> Publisher:
    return RabbitMqPublisher(msgspec.convert(settings, RabbitMqConnection), secrets, dial)


class RabbitMqPublisher:
    """One connection to a broker."""

    def __init__(self, settings: RabbitMqConnection, secrets: Mapping[str, str], dial: Dial) -> None:
        self._settings, self._secrets, self._dial = settings, secrets, dial
        self._shared: Shared[AmqpConnection] = Shared(self._connect)

    async def publish(self, message: Message) -> str:
        exchange = str(message.address.get("exchange") or "")
        routing_key = str(message.address.get("routing_key") or "")
        for text in (exchange, routing_key, message.content_type, message.message_id, *message.headers):
            if len(text) > _MAX_SHORT or len(text.encode()) > _MAX_SHORT:
                reason = f"{text[:40]}… has more than the {_MAX_SHORT} bytes that AMQP has for it"
                raise PublishFailed(reason, retryable=False, is_broker_down=False)
        content = _content(message, exchange, routing_key)
        while True:
            connection = await self._shared.get()
            try:
                await connection.publish(exchange, message, content)
            except ChannelClosed:
                continue
            return f"exchange {exchange or '(default)'}, routing key {routing_key}"

    async def check(self) -> str:
        connection = await self._shared.get()
        return f"{connection.product} at {connection.name}, virtual host {self._settings.vhost}"

    async def close(self) -> None:
        await self._shared.close()

    async def _connect(self) -> "AmqpConnection":
        settings = self._settings
        tls = tls_context(settings.tls_ca) if settings.tls else None
        port = settings.port or (TLS_PORT if settings.tls else PORT)
        reader, writer = await open_stream(self._dial, settings.host, port, tls)
        connection = AmqpConnection(f"{settings.host}:{port}", reader, writer)
        connection.begin()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.log_in(settings.username, self._secrets.get("password", ""), settings.vhost)
        except TimeoutError:
            failure = connection.lost("the broker did not answer in time")
            connection.lose(failure)
            raise failure from None
        except BaseException:
            connection.lose(connection.lost())
            raise
        return connection


def _content(message: Message, exchange: str, routing_key: str) -> bytes:
    """The frames of a message without its body. pamqp would take three times as long as all else."""
    method = b"\x00\x3c\x00\x28\x00\x00" + _short(exchange) + _short(routing_key) + _MANDATORY
    fields = [_field(name, value) for name, value in message.headers.items()]
    fields += [_field(f"cloudEvents_{name}", value) for name, value in message.attributes.items()]
    table = b"".join(fields)
    header = (
        _BASIC_HEADER.pack(60, 0, len(message.body), _FLAGS)
        + _short(message.content_type)
        + len(table).to_bytes(4)
        + table
        + _PERSISTENT
        + _short(message.message_id)
    )
    return _frame(1, method) + _frame(2, header)


def _short(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(1) + data


def _field(name: str, value: str) -> bytes:
    data = value.encode()
    return _short(name) + b"S" + len(data).to_bytes(4) + data


def _frame(kind: int, payload: bytes) -> bytes:
    return _FRAME_HEAD.pack(kind, _PUBLISHING, len(payload)) + payload + b"\xce"


class AmqpConnection(Connection):
    """A connection that is logged in, and its two channels."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(name, reader, writer)
        self.product = "RabbitMQ"
        self._buffer = b""
        self._frame_max = FRAME_MAX
        self._blocked: str | None = None
        self._replies: defaultdict[int, deque[asyncio.Future[Frame]]] = defaultdict(deque)
        self._control = asyncio.Lock()
        self._opening: asyncio.Lock = asyncio.Lock()
        self._is_publishing = False
        self._published = 0
        self._unconfirmed: dict[int, Unconfirmed] = {}
        self._known = {""}
        self._refused: dict[str, tuple[float, PublishFailed]] = {}
        self._returning: tuple[str, str] | None = None

    async def log_in(self, username: str, password: str, vhost: str) -> None:
        start = self._expect(0)
        self.write(ProtocolHeader().marshal())
        said = await start
        if isinstance(said, commands.Connection.Start) and said.server_properties:
            properties = said.server_properties
            self.product = " ".join(str(properties.get(word, "")) for word in ("product", "version"))
        response = f"\0{username}\0{password}"
        tune = await self._ask(
            commands.Connection.StartOk(client_properties=_PROPERTIES, mechanism="PLAIN", response=response), 0
        )
        if isinstance(tune, commands.Connection.Tune):
            self._frame_max = max(min(tune.frame_max or FRAME_MAX, FRAME_MAX), FRAME_MIN)
        tuned = commands.Connection.TuneOk(
            channel_max=_PUBLISHING, frame_max=self._frame_max, heartbeat=HEARTBEAT_SECONDS
        )
        self.write(frame.marshal(tuned, 0))
        await self._ask(commands.Connection.Open(virtual_host=vhost), 0)
        await self._ask(commands.Channel.Open(), _CONTROL)
        await self._begin_publishing()

    async def publish(self, exchange: str, message: Message, content: bytes) -> None:
        """Return when the message is confirmed."""
        if self._blocked is not None:
            raise broker_down(f"{self.name}: RabbitMQ takes no messages now: {self._blocked}")
        if exchange not in self._known:
            await self._look_for(exchange)
        if not self._is_publishing:
            async with self._opening:
                if not self._is_publishing:
                    await self._begin_publishing()
        waiting = Unconfirmed(exchange, message.message_id, len(message.body), self._loop.create_future())
        self.write(content + self._body(message.body))
        # The broker counts what it has got, so only what was written has a number.
        self._published += 1
        number = self._published
        self._unconfirmed[number] = waiting
        await self.drain()
        # The number stays taken if the caller is cancelled: a confirm for it will come.
        await waiting.confirmed

    @property
    def awaits_answers(self) -> bool:
        return bool(self._unconfirmed) or any(self._replies.values())

    def ping(self) -> None:
        if self.failure is None:
            self.write(frame.marshal(Heartbeat(), 0))

    def fail_all(self, failure: PublishFailed) -> None:
        for waiting in self._unconfirmed.values():
            _fail(waiting.confirmed, failure)
        self._unconfirmed.clear()
        for replies in self._replies.values():
            while replies:
                _fail(replies.popleft(), failure)

    def take(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at = 0
        while len(buffer) - at >= _FRAME_OVERHEAD:
            size = int.from_bytes(buffer[at + 3 : at + 7])
            if size > FRAME_MAX:
                raise ValueError("a frame that is too long")
            end = at + size + _FRAME_OVERHEAD
            if len(buffer) < end:
                break
            _, channel, found = frame.unmarshal(buffer[at:end])
            at = end
            self._handle(channel, found)
        self._buffer = buffer[at:]

    def _handle(self, channel: int, found: Any) -> None:
        match found:
            case commands.Basic.Ack():
                self._confirm(found, None)
            case commands.Basic.Nack():
                reason = "the broker refused the message: a queue is full or has failed"
                self._confirm(found, PublishFailed(reason, retryable=True, is_broker_down=False))
            case commands.Basic.Return():
                self._returning = (found.exchange, f"{found.reply_text} for routing key {found.routing_key!r}")
            case ContentHeader() if self._returning is not None:
                self._returned(*self._returning, found.properties.message_id)
            case Heartbeat() | ContentBody() | ContentHeader():
                pass
            case _:
                self._handle_method(channel, found)

    def _handle_method(self, channel: int, found: Any) -> None:
        match found:
            case commands.Connection.Blocked():
                self._blocked = found.reason or "blocked"
            case commands.Connection.Unblocked():
                self._blocked = None
            case commands.Connection.Close():
                self.write(frame.marshal(commands.Connection.CloseOk(), 0))
                raise broker_down(f"{self.name}: {found.reply_text}")
            case commands.Channel.Close():
                self.write(frame.marshal(commands.Channel.CloseOk(), channel))
                self._channel_closed(channel, found)
            case _ if self._replies[channel]:
                reply = self._replies[channel].popleft()
                if not reply.done():
                    reply.set_result(found)

    def _confirm(self, found: commands.Basic.Ack | commands.Basic.Nack, failure: PublishFailed | None) -> None:
        number = found.delivery_tag or 0
        # Numbers are in order, so those up to this one are the first.
        while found.multiple and (first := next(iter(self._unconfirmed), number)) < number:
            _settle(self._unconfirmed.pop(first), failure)
        if number in self._unconfirmed:
            _settle(self._unconfirmed.pop(number), failure)

    def _returned(self, exchange: str, text: str, message_id: str | None) -> None:
        """Two messages with one id went to the same place, so that it does not matter which one came back."""
        self._returning = None
        for waiting in self._unconfirmed.values():
            if waiting.message_id == message_id and waiting.exchange == exchange and waiting.returned is None:
                waiting.returned = f"no queue gets it: exchange {exchange or '(default)'}: {text}"
                return

    def _channel_closed(self, channel: int, close: commands.Channel.Close) -> None:
        is_permanent = close.reply_code in (_ACCESS_REFUSED, _TOO_LARGE)
        failure = PublishFailed(close.reply_text, retryable=not is_permanent, is_broker_down=False)
        while self._replies[channel]:
            _fail(self._replies[channel].popleft(), failure)
        if channel == _CONTROL:
            return
        self._is_publishing = False
        unconfirmed, self._unconfirmed, self._published = list(self._unconfirmed.values()), {}, 0
        at_fault = [waiting for waiting in unconfirmed if _is_at_fault(waiting, close)]
        for waiting in at_fault or unconfirmed:
            _fail(waiting.confirmed, failure)
        if close.reply_code in (_ACCESS_REFUSED, _NOT_FOUND):
            for waiting in at_fault:
                self._refuse(waiting.exchange, failure)
        for waiting in unconfirmed:
            _fail(waiting.confirmed, ChannelClosed())

    def _refuse(self, exchange: str, failure: PublishFailed) -> None:
        self._known.discard(exchange)
        self._refused[exchange] = (self._loop.time() + REFUSED_SECONDS, failure)

    async def _look_for(self, exchange: str) -> None:
        async with self._control:
            until, failure = self._refused.get(exchange, (0.0, None))
            if failure is not None and self._loop.time() < until:
                raise failure
            if exchange in self._known:
                return
            try:
                await self._ask(commands.Exchange.Declare(exchange=exchange, passive=True), _CONTROL)
            except PublishFailed as error:
                if self.failure is None:
                    self._refuse(exchange, error)
                    await self._ask(commands.Channel.Open(), _CONTROL)
                raise
            self._known.add(exchange)
            self._refused.pop(exchange, None)

    async def _begin_publishing(self) -> None:
        await self._ask(commands.Channel.Open(), _PUBLISHING)
        await self._ask(commands.Confirm.Select(), _PUBLISHING)
        self._is_publishing = True

    def _expect(self, channel: int) -> asyncio.Future[Frame]:
        reply: asyncio.Future[Frame] = self._loop.create_future()
        self._replies[channel].append(reply)
        return reply

    async def _ask(self, method: Frame, channel: int) -> Frame:
        """Send a method, and return the broker's answer; answers come in the order of what was asked on a channel."""
        reply = self._expect(channel)
        self.write(frame.marshal(method, channel))
        return await reply

    def _body(self, body: bytes) -> bytes:
        most = self._frame_max - _FRAME_OVERHEAD
        return b"".join(_frame(3, body[at : at + most]) for at in range(0, len(body), most))


def _is_at_fault(waiting: Unconfirmed, close: commands.Channel.Close) -> bool:
    """Whether the broker closed the channel for this message: its text names the exchange, or the size."""
    size = _SIZE.search(close.reply_text)
    return waiting.size == int(size[1]) if size else f"'{waiting.exchange}'" in close.reply_text


def _settle(waiting: Unconfirmed, failure: PublishFailed | None) -> None:
    if waiting.returned is not None:
        failure = PublishFailed(waiting.returned, retryable=True, is_broker_down=False)
    if failure is not None:
        _fail(waiting.confirmed, failure)
    elif not waiting.confirmed.done():
        waiting.confirmed.set_result(None)


def _fail(answer: asyncio.Future[Any], failure: Exception) -> None:
    if not answer.done():
        answer.set_exception(failure)
        answer.exception()  # its caller may be gone
