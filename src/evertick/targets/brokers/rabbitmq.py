"""Publishes to RabbitMQ by AMQP 0-9-1. A message is stored when the broker has confirmed it.

One connection has two channels. One publishes, with confirms and `mandatory`: a message that no queue gets comes back.
The other asks whether an exchange exists before the first message goes to it, because RabbitMQ answers a message to a
missing exchange by closing the channel, with all that others have published there. If it is closed nevertheless, for an
exchange that is gone or not permitted, then the messages to other exchanges are published again.

A channel whose first message to a quorum queue comes while the queue has no leader refuses all later ones, too, when
another node leads by then (RabbitMQ 3.10). So a channel that refuses messages is opened anew, now and then.

The frames are pamqp's; the connection is ours, since aio-pika opens its sockets by itself, out of the egress guard's
reach, and waits for each confirm apart.

Attributes are headers `cloudEvents_…`, as in CloudEvents' AMQP binding.
"""

import asyncio
import re
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from pamqp import commands, frame
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader, ProtocolHeader
from pamqp.heartbeat import Heartbeat

from evertick.contract.connections import RabbitMqConnection
from evertick.targets.brokers.amqp_messages import (
    ACK_SIZE,
    FRAME_OVERHEAD,
    PUBLISHING,
    Confirm,
    body_frames,
    header_frame,
    publish_frame,
    read_ack,
)
from evertick.targets.brokers.publisher import NO_MESSAGE, Dial, Publisher, PublishFailed, Sending, fail_all, made_of
from evertick.targets.brokers.stream import (
    CONNECT_SECONDS,
    Connection,
    Shared,
    all_of,
    broker_down,
    host_and_port,
    open_stream,
    reason_of_all,
    tls_context,
)
from evertick.version import __version__

PORT, TLS_PORT = 5672, 5671
HEARTBEAT_SECONDS = 10
FRAME_MAX = 131_072
FRAME_MIN = 4096
"""What AMQP guarantees: a body in frames of some bytes would keep the process busy."""
REFUSED_SECONDS = 10.0
"""How long an exchange that is missing or not permitted is not asked for again."""
RENEW_SECONDS = 2.0
"""How old a channel that refuses messages must be to be opened anew: a queue that is full refuses all the time."""
CONFIRM_SECONDS = 0.5
"""For so long at most messages wait until all before them are confirmed, and the channel can be opened anew."""

_CONTROL = 1
_ACCESS_REFUSED, _NOT_FOUND, _TOO_LARGE = 403, 404, 406
_DEFAULT = "amq.default"
"""How RabbitMQ names the exchange without a name."""
_SIZE = re.compile(r"message size (\d+)")
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


@dataclass(slots=True, eq=False)
class Unconfirmed:
    """A message under way: its frames but for the body, until they are written. `size`: of the body. `returned`: why no
    queue got it; the confirm of a returned message follows its return.
    """

    exchange: str
    content: bytes
    sending: Sending
    receipt: str
    message_id: str
    size: int
    returned: str | None = None


class _GivenUp(Sending):
    """Stands for messages that nobody waits for any more."""

    __slots__ = ()

    def ended(self, receipt: str | None, failure: Exception | None) -> None:
        """It was over before."""


_GIVEN_UP = _GivenUp(NO_MESSAGE)
_GIVEN_UP.is_over = True


def open_publisher(settings: Mapping[str, Any], secrets: Mapping[str, str], dial: Dial) -> Publisher:
    return RabbitMqPublisher(msgspec.convert(settings, RabbitMqConnection), secrets, dial)


class RabbitMqPublisher(Publisher):
    """One connection to one of the nodes."""

    def __init__(self, settings: RabbitMqConnection, secrets: Mapping[str, str], dial: Dial) -> None:
        self._settings, self._secrets, self._dial = settings, secrets, dial
        self._shared: Shared[AmqpConnection] = Shared(self._connect)
        self._repeating: set[asyncio.Task[None]] = set()

    async def send(self, batch: Sequence[Sending]) -> None:
        by_exchange: defaultdict[str, list[Unconfirmed]] = defaultdict(list)
        for sending in batch:
            if (unconfirmed := made_of(sending, _unconfirmed)) is not None:
                by_exchange[unconfirmed.exchange].append(unconfirmed)
        # At once: one exchange may have to be looked for.
        await all_of([self._send_to(exchange, each) for exchange, each in by_exchange.items()])

    async def _send_to(self, exchange: str, messages: list[Unconfirmed]) -> None:
        try:
            connection = await self._shared.get()
            await connection.publish(exchange, messages)
        except Exception as failure:  # noqa: BLE001 - its callers get it
            fail_all((each.sending for each in messages), failure)

    def _repeat(self, messages: list[Unconfirmed]) -> None:
        """The broker closed the channel for a message of another caller."""
        task = asyncio.create_task(self.send([each.sending for each in messages]))
        self._repeating.add(task)
        task.add_done_callback(self._repeating.discard)

    async def check(self) -> str:
        connection = await self._shared.get()
        return f"{connection.product} at {connection.name}, virtual host {self._settings.vhost}"

    async def close(self) -> None:
        await self._shared.close()
        await asyncio.gather(*self._repeating)

    async def _connect(self) -> "AmqpConnection":
        """Connect to the first node that takes it; what is raised is why none does."""
        settings = self._settings
        default_port = TLS_PORT if settings.tls else PORT
        nodes = [(settings.host.strip("[]"), settings.port or default_port)]
        nodes += [host_and_port(node, default_port) for node in settings.other_nodes or ()]
        failures: list[PublishFailed] = []
        for host, port in nodes:
            try:
                return await self._connect_to(host, port)
            except PublishFailed as failure:
                failures.append(failure)
        raise reason_of_all(failures)

    async def _connect_to(self, host: str, port: int) -> "AmqpConnection":
        settings = self._settings
        tls = tls_context(settings.tls_ca) if settings.tls else None
        reader, writer = await open_stream(self._dial, host, port, tls)
        connection = AmqpConnection(f"{host}:{port}", reader, writer, self._repeat)
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


def _unconfirmed(sending: Sending) -> Unconfirmed:
    body, envelope, values, address, message_id = sending.message
    exchange = str(address.get("exchange") or "")
    routing_key = str(address.get("routing_key") or "")
    content = publish_frame(exchange, routing_key) + header_frame(envelope, values, len(body), message_id)
    return Unconfirmed(exchange, content, sending, _receipt(exchange, routing_key), message_id, len(body))


@lru_cache(maxsize=1024)
def _receipt(exchange: str, routing_key: str) -> str:
    return f"exchange {exchange or '(default)'}, routing key {routing_key}"


class AmqpConnection(Connection):
    """A connection that is logged in, and its two channels."""

    def __init__(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        repeat: Callable[[list[Unconfirmed]], None],
    ) -> None:
        super().__init__(name, reader, writer)
        self._repeat = repeat
        self.product = "RabbitMQ"
        self._buffer = b""
        self._frame_max = FRAME_MAX
        self._blocked: str | None = None
        self._replies: defaultdict[int, deque[asyncio.Future[Frame]]] = defaultdict(deque)
        self._control = asyncio.Lock()
        self._opening: asyncio.Lock = asyncio.Lock()
        self._is_publishing = False
        self._is_open = False  # the channel that publishes
        self._opened_at = 0.0
        self._all_confirmed = asyncio.Event()
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
            channel_max=PUBLISHING, frame_max=self._frame_max, heartbeat=HEARTBEAT_SECONDS
        )
        self.write(frame.marshal(tuned, 0))
        await self._ask(commands.Connection.Open(virtual_host=vhost), 0)
        await self._ask(commands.Channel.Open(), _CONTROL)
        await self._begin_publishing()

    async def publish(self, exchange: str, messages: Sequence[Unconfirmed]) -> None:
        """Send messages to an exchange; each ends when it is confirmed or returned."""
        if self._blocked is not None:
            raise broker_down(f"{self.name}: RabbitMQ takes no messages now: {self._blocked}")
        if exchange not in self._known:
            await self._look_for(exchange)
        while not self._is_publishing:
            async with self._opening:
                if not self._is_publishing:
                    await self._begin_publishing()
        sent = [each for each in messages if not each.sending.is_over]
        self.write(b"".join([each.content + body_frames(each.sending.message.body, self._frame_max) for each in sent]))
        # The broker counts what it has got, so only what was written has a number. It stays taken if the message is
        # given up: a confirm for it will come.
        for each in sent:
            self._published += 1
            self._unconfirmed[self._published] = each
            each.content = b""  # a repeated one gets new frames
        await self.drain()

    @property
    def awaits_answers(self) -> bool:
        return bool(self._unconfirmed) or any(self._replies.values())

    def ping(self) -> None:
        # What was given up keeps its number, but not its body: a broker may confirm late, or never.
        for waiting in self._unconfirmed.values():
            if waiting.sending.is_over:
                waiting.sending = _GIVEN_UP
        if self.failure is None:
            self.write(frame.marshal(Heartbeat(), 0))

    def fail_all(self, failure: PublishFailed) -> None:
        fail_all((waiting.sending for waiting in self._unconfirmed.values()), failure)
        self._unconfirmed.clear()
        self._all_confirmed.set()
        for replies in self._replies.values():
            while replies:
                _fail(replies.popleft(), failure)

    def take(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at = 0
        while len(buffer) - at >= FRAME_OVERHEAD:
            size = int.from_bytes(buffer[at + 3 : at + 7])
            if size > FRAME_MAX:
                raise ValueError("a frame that is too long")
            end = at + size + FRAME_OVERHEAD
            if len(buffer) < end:
                break
            ack = read_ack(buffer, at) if end - at == ACK_SIZE else None
            if ack is not None:
                self._confirm(ack, None)
            else:
                _, channel, found = frame.unmarshal(buffer[at:end])
                self._handle(channel, found)
            at = end
        self._buffer = buffer[at:]

    def _handle(self, channel: int, found: Any) -> None:
        match found:
            case commands.Basic.Nack():
                reason = "the broker refused the message: a queue is full or has failed"
                failure = PublishFailed(reason, retryable=True, is_broker_down=False)
                self._confirm(Confirm(found.delivery_tag or 0, found.multiple), failure)
                if self._loop.time() >= self._opened_at + RENEW_SECONDS:
                    self._is_publishing = False
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

    def _confirm(self, confirm: Confirm, failure: PublishFailed | None) -> None:
        number = confirm.delivery_tag
        # Numbers are in order, so those up to this one are the first.
        while confirm.multiple and (first := next(iter(self._unconfirmed), number)) < number:
            _settle(self._unconfirmed.pop(first), failure)
        if number in self._unconfirmed:
            _settle(self._unconfirmed.pop(number), failure)
        if not self._unconfirmed:
            self._all_confirmed.set()

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
        self._is_publishing = self._is_open = False
        unconfirmed, self._unconfirmed = list(self._unconfirmed.values()), {}
        self._all_confirmed.set()
        at_fault = [waiting for waiting in unconfirmed if _is_at_fault(waiting, close)]
        fail_all((waiting.sending for waiting in at_fault), failure)
        if not at_fault:  # one of them is, and the others are worth another try
            unclear = PublishFailed(close.reply_text, retryable=True, is_broker_down=False)
            fail_all((waiting.sending for waiting in unconfirmed), unclear)
        if close.reply_code in (_ACCESS_REFUSED, _NOT_FOUND):
            for waiting in at_fault:
                self._refuse(waiting.exchange, failure)
        if others := [waiting for waiting in unconfirmed if not waiting.sending.is_over]:
            self._repeat(others)

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
        """Open the channel, or open it anew if all that it has got is confirmed soon: nothing is published twice."""
        self._opened_at = self._loop.time()
        if await self._is_confirmed_soon() and self._is_open:  # the broker may have closed it meanwhile
            await self._ask(commands.Channel.Close(0, "", 0, 0), PUBLISHING)
            self._is_open = False
        if not self._is_open:
            await self._ask(commands.Channel.Open(), PUBLISHING)
            await self._ask(commands.Confirm.Select(), PUBLISHING)
            self._published = 0
        self._is_open = self._is_publishing = True

    async def _is_confirmed_soon(self) -> bool:
        self._all_confirmed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(CONFIRM_SECONDS):
                if self._unconfirmed:
                    await self._all_confirmed.wait()
        return not self._unconfirmed

    def _expect(self, channel: int) -> asyncio.Future[Frame]:
        reply: asyncio.Future[Frame] = self._loop.create_future()
        self._replies[channel].append(reply)
        return reply

    async def _ask(self, method: Frame, channel: int) -> Frame:
        """Send a method, and return the broker's answer; answers come in the order of what was asked on a channel."""
        reply = self._expect(channel)
        self.write(frame.marshal(method, channel))
        return await self.answer(reply)


def _is_at_fault(waiting: Unconfirmed, close: commands.Channel.Close) -> bool:
    """Whether the broker closed the channel for this message: its text names the exchange, or the size."""
    size = _SIZE.search(close.reply_text)
    return waiting.size == int(size[1]) if size else f"'{waiting.exchange or _DEFAULT}'" in close.reply_text


def _settle(waiting: Unconfirmed, failure: PublishFailed | None) -> None:
    if waiting.returned is not None:
        failure = PublishFailed(waiting.returned, retryable=True, is_broker_down=False)
    if failure is not None:
        waiting.sending.failed(failure)
    else:
        waiting.sending.stored(waiting.receipt)


def _fail(answer: asyncio.Future[Any], failure: Exception) -> None:
    if not answer.done():
        answer.set_exception(failure)
        answer.exception()  # its caller may be gone
