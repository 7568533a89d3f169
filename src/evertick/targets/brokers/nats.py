"""Publishes to NATS JetStream. A message is stored when the PubAck of its stream has arrived.

The protocol is ours, since it is a few lines of text, and no client lets the egress guard choose the address: nats-py
resolves names by itself, also those that servers advertise. Here advertised servers go through the guard too.

Attributes are headers `ce-…`, with values as in CloudEvents' NATS binding. `Nats-Msg-Id` is the message's id: a stream
drops a repeated message within its duplicate window.
"""

import asyncio
import base64
import json
import re
import secrets as random_secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from evertick.contract.broker_targets import shown, subject_fault
from evertick.contract.connections import NatsConnection
from evertick.domain.schedule.describe.english import counted
from evertick.targets.brokers.publisher import (
    Awaited,
    Dial,
    Envelope,
    Message,
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
    host_and_port,
    open_stream,
    reason_of,
    reason_of_all,
    tls_context,
)
from evertick.version import __version__

DEFAULT_PORT = 4222
MAX_LINE = 65_536
"""The longest line that is read; an INFO with many servers is the longest of all."""

_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_VIOLATION = re.compile(r"permissions violation for publish to \"(.+?)\"", re.IGNORECASE)
_CREDENTIAL = re.compile(r"-----BEGIN [A-Z ]+-----\s+(\S+)\s+-+END [A-Z ]+-+")
_NO_STREAM = b"503"
_TOO_LARGE = 10_054


class NotPermitted(PublishFailed):
    """The user is known, and may not publish to a subject."""


class Ack(msgspec.Struct):
    """What a stream answers."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: dict[str, Any] | None = None


_read_ack = msgspec.json.Decoder(Ack).decode


class Waiting:
    """A request under way. `is_publish`: its answer is an Ack, else any text."""

    __slots__ = ("is_publish", "sending", "subject")

    def __init__(self, subject: str, sending: Sending, *, is_publish: bool) -> None:
        self.subject = subject
        self.sending = sending
        self.is_publish = is_publish


def open_publisher(settings: Mapping[str, Any], secrets: Mapping[str, str], dial: Dial) -> Publisher:
    return NatsPublisher(msgspec.convert(settings, NatsConnection), secrets, dial)


class NatsPublisher(Publisher):
    """One connection to one of the servers."""

    def __init__(self, settings: NatsConnection, secrets: Mapping[str, str], dial: Dial) -> None:
        self._settings, self._secrets, self._dial = settings, secrets, dial
        self._last: NatsStream | None = None
        self._shared: Shared[NatsStream] = Shared(self._connect)

    async def send(self, batch: Sequence[Sending]) -> None:
        connection = await self._shared.get()
        requests = [request for sending in batch if (request := made_of(sending, connection.publish)) is not None]
        await connection.send(requests)

    async def check(self) -> str:
        connection = await self._shared.get()
        asked = Awaited()
        waiting = Waiting("$JS.API.INFO", asked, is_publish=False)
        try:
            await connection.send([connection.request(waiting, b"NATS/1.0\r\n\r\n", b"")])
            answer = await connection.answer(asked.answer)
        except NotPermitted:  # publishing to its subject is enough for messages
            return f"NATS {connection.version} at {connection.name} knows the user, who may not ask about JetStream"
        except PublishFailed as failure:
            if failure.is_broker_down:
                raise
            raise broker_down(f"{connection.name}: JetStream is not enabled") from failure
        finally:
            asked.is_over = True
        found = msgspec.json.decode(answer)
        if "error" in found:
            raise PublishFailed(f"JetStream: {found['error'].get('description')}", retryable=True, is_broker_down=True)
        streams = counted(int(found.get("streams", 0)), "stream")
        return f"NATS {connection.version} at {connection.name}, JetStream with {streams}"

    async def close(self) -> None:
        await self._shared.close()

    async def _connect(self) -> "NatsStream":
        failures: list[PublishFailed] = []
        advertised = [] if self._last is None else self._last.advertised
        for server in dict.fromkeys([*self._settings.servers, *advertised]):
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    connection = await self._connect_to(server)
            except PublishFailed as failure:
                failures.append(failure)
            except TimeoutError:
                failures.append(broker_down(f"{server} did not answer in time"))
            else:
                self._last = connection
                return connection
        raise reason_of_all(failures)  # what the operator named says more than what a server advertised

    async def _connect_to(self, server: str) -> "NatsStream":
        host, port = host_and_port(server, DEFAULT_PORT)
        reader, writer = await open_stream(self._dial, host, port, None)
        name = f"{host}:{port}"
        try:
            info = _info(await reader.readline(), self._settings)
            if self._settings.tls:
                # NATS says who it is before TLS begins, and so could anyone: that names no further servers.
                info = {**info, "connect_urls": None}
                await _check_silent(reader)
                await writer.start_tls(tls_context(self._settings.tls_ca), server_hostname=host)
            connection = NatsStream(name, reader, writer, info)
            connection.begin()
            await connection.log_in(_credentials(self._settings, self._secrets, info))
        except (OSError, ValueError) as error:
            writer.close()
            raise broker_down(f"{name}: {reason_of(error)}") from error
        except BaseException:
            writer.close()
            raise
        return connection


class NatsStream(Connection):
    """A connection that has a subscription for all its answers."""

    def __init__(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, info: Mapping[str, Any]
    ) -> None:
        super().__init__(name, reader, writer)
        self.version = str(info.get("version", "?"))
        self.advertised: list[str] = []
        self.max_payload = 0
        self._learn(info)
        self._inbox = f"_INBOX.{random_secrets.token_hex(11)}."
        self._next = 0
        self._waiting: dict[bytes, Waiting] = {}
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._buffer = b""

    async def log_in(self, credentials: Mapping[str, str]) -> None:
        options = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python",
            "version": __version__,
            "name": "evertick",
            **credentials,
        }
        self.write(f"CONNECT {json.dumps(options)}\r\nSUB {self._inbox}* 1\r\nPING\r\n".encode())
        await self._ready

    def publish(self, sending: Sending) -> bytes:
        """What `send` writes for a message."""
        message = sending.message
        subject, head = _checked(str(message.address["subject"])), _headers(message)
        size = len(head) + len(message.body)
        if size > self.max_payload:
            raise _refusal(
                f"the message has {size} bytes with its headers; the server takes at most {self.max_payload}"
            )
        return self.request(Waiting(subject, sending, is_publish=True), head, message.body)

    def request(self, waiting: Waiting, head: bytes, body: bytes) -> bytes:
        """What `send` writes, of which the answer goes to `waiting`."""
        number = self._next = self._next + 1
        size = len(head) + len(body)
        line = f"HPUB {waiting.subject} {self._inbox}{number} {len(head)} {size}\r\n".encode()
        self._waiting[b"%d" % number] = waiting
        return b"%b%b%b\r\n" % (line, head, body)

    async def send(self, requests: Sequence[bytes]) -> None:
        self.write(b"".join(requests))
        await self.drain()

    @property
    def awaits_answers(self) -> bool:
        return any(not waiting.sending.is_over for waiting in self._waiting.values())

    def ping(self) -> None:
        # A message that its caller gave up may never be answered.
        self._waiting = {key: waiting for key, waiting in self._waiting.items() if not waiting.sending.is_over}
        if self._waiting and self.failure is None:
            self.write(b"PING\r\n")

    def fail_all(self, failure: PublishFailed) -> None:
        fail_all((waiting.sending for waiting in self._waiting.values()), failure)
        self._waiting.clear()
        _fail(self._ready, failure)

    def take(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at = 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            line = buffer[at:end]
            if line[:3] == b"MSG" or line[:4] == b"HMSG":
                words = line.split(b" ")
                after = end + 2 + int(words[-1])
                if after - end > MAX_LINE:
                    raise ValueError("an answer that is too long")
                if len(buffer) < after + 2:
                    break
                head = int(words[-2]) if words[0] == b"HMSG" else 0
                self._answer(words[1], buffer[end + 2 : end + 2 + head], buffer[end + 2 + head : after])
                at = after + 2
            else:
                self._command(line)
                at = end + 2
        self._buffer = buffer[at:]
        if len(self._buffer) > 2 * MAX_LINE:
            raise ValueError("a line that is too long")

    def _answer(self, subject: bytes, head: bytes, body: bytes) -> None:
        waiting = self._waiting.pop(subject.rpartition(b".")[2], None)
        if waiting is None:
            return
        if head[9:12] == _NO_STREAM:
            # A cluster that elects a leader answers so too.
            reason = f"no stream of JetStream takes the subject {waiting.subject}"
            waiting.sending.failed(PublishFailed(reason, retryable=True, is_broker_down=False))
        elif waiting.is_publish:
            _settle(waiting, body)
        else:
            waiting.sending.stored(body.decode())

    def _command(self, line: bytes) -> None:
        word = line.split(b" ", 1)[0].upper()
        if word == b"PING":
            self.write(b"PONG\r\n")
        elif word == b"PONG":
            if not self._ready.done():
                self._ready.set_result(None)
        elif word == b"INFO":
            self._learn(msgspec.json.decode(line[5:]))
        elif word == b"-ERR":
            self._refused(line[5:].decode(errors="replace").strip("'"))

    def _refused(self, text: str) -> None:
        violation = _VIOLATION.search(text)
        if violation is None:  # the server closes the connection after all others
            raise broker_down(f"{self.name}: {text}")
        failure = NotPermitted(text, retryable=False, is_broker_down=False)
        fail_all((each.sending for each in self._waiting.values() if each.subject == violation[1]), failure)

    def _learn(self, info: Mapping[str, Any]) -> None:
        self.max_payload = int(info.get("max_payload", 1_048_576))
        self.advertised = [str(server) for server in info.get("connect_urls") or []][:32]


@lru_cache(maxsize=1024)
def _checked(subject: str) -> str:
    if (fault := subject_fault(subject)) is not None:
        raise _refusal(f"{shown(subject)} is no subject to publish to: it {fault}")
    return subject


def _fail(answer: asyncio.Future[None], failure: PublishFailed) -> None:
    if not answer.done():
        answer.set_exception(failure)
        answer.exception()  # its caller may be gone


def _refusal(reason: str) -> PublishFailed:
    return PublishFailed(reason, retryable=False, is_broker_down=False)


def _info(line: bytes, settings: NatsConnection) -> Mapping[str, Any]:
    """What a server says first."""
    if not line.startswith(b"INFO "):
        raise broker_down("a host that is no NATS server answered")
    found: Mapping[str, Any] = msgspec.json.decode(line[5:])
    if found.get("tls_required") and not settings.tls:
        raise PublishFailed(
            "the server requires TLS; the connection has tls false", retryable=False, is_broker_down=True
        )
    return found


async def _check_silent(reader: asyncio.StreamReader) -> None:
    """What has arrived before TLS must not be read as if it had come by it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            if await reader.read(1):
                raise broker_down("the server, or another, sent more than an INFO before TLS began")


def _settle(waiting: Waiting, answer: bytes) -> None:
    try:
        ack = _read_ack(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        ack = Ack()
    if ack.error is None and not ack.stream:
        # Who subscribes to the subject may answer, too: that stores nothing, and is no fault of the connection.
        reason = f"no stream of JetStream answered for the subject {waiting.subject}, but a subscriber of it"
        waiting.sending.failed(PublishFailed(reason, retryable=True, is_broker_down=False))
        return
    if ack.error is None:
        repeated = ", which had it already" if ack.duplicate else ""
        waiting.sending.stored(f"subject {waiting.subject}, stream {ack.stream}, sequence {ack.seq}{repeated}")
        return
    code = ack.error.get("err_code")
    reason = f"the stream of {waiting.subject} refused: {ack.error.get('description', code)}"
    waiting.sending.failed(PublishFailed(reason, retryable=code != _TOO_LARGE, is_broker_down=False))


class _Form(NamedTuple):
    """What the headers of one envelope's messages have in common: the first lines, and what is before each value."""

    opening: str
    heads: list[str]


def _headers(message: Message) -> bytes:
    values = [*message.values, message.message_id]
    if not _is_plain("".join(values)):
        values = [_encoded(value) for value in values]
    opening, heads = _form(message.envelope)
    lines = [head + value for head, value in zip(heads, values, strict=True)]
    return f"{opening}{''.join(lines)}\r\n\r\n".encode()


@lru_cache(maxsize=1024)
def _form(envelope: Envelope) -> _Form:
    lines = ["NATS/1.0"]
    lines += [f"{name}: {_one_line(value)}" for name, value in envelope.headers.items()]
    lines.append(f"content-type: {_one_line(envelope.content_type)}")
    lines += [f"ce-{name}: {_encoded(value)}" for name, value in envelope.fixed.items()]
    names = [*envelope.written_names("ce-"), "Nats-Msg-Id"]
    return _Form("\r\n".join(lines), [f"\r\n{name}: " for name in names])


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


def _is_plain(text: str) -> bool:
    """Whether it has none but the characters of `_SAFE`."""
    return text.isascii() and text.isprintable() and not (" " in text or '"' in text or "%" in text)


def _encoded(text: str) -> str:
    """A text as CloudEvents writes it in headers: what is not visible ASCII as the %XX of its UTF-8."""
    return text if _is_plain(text) else quote(text, safe=_SAFE, errors="replace")


def _credentials(settings: NatsConnection, secrets: Mapping[str, str], info: Mapping[str, Any]) -> dict[str, str]:
    if "creds" in secrets:
        return _signed(secrets["creds"], str(info.get("nonce", "")))
    if "token" in secrets:
        return {"auth_token": secrets["token"]}
    if settings.username is not None:
        return {"user": settings.username, "pass": secrets.get("password", "")}
    return {}


def _signed(creds: str, nonce: str) -> dict[str, str]:
    """A .creds file has a JWT and the seed of an Ed25519 key: base32 of two bytes of type, the seed, and a checksum."""
    parts = _CREDENTIAL.findall(creds)
    try:
        token, seed = parts[0], parts[1]
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
        key = Ed25519PrivateKey.from_private_bytes(raw[2:34])
    except (IndexError, ValueError) as error:
        raise PublishFailed("creds is not the text of a .creds file", retryable=False, is_broker_down=True) from error
    signature = base64.urlsafe_b64encode(key.sign(nonce.encode())).decode().rstrip("=")
    return {"jwt": token, "sig": signature}
