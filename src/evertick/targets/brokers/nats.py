"""Publishes to NATS JetStream. A message is stored when the PubAck of its stream has arrived.

The protocol is ours, since it is a few lines of text, and no client lets the egress guard choose the address: nats-py
resolves names by itself, also those that servers advertise. Here advertised servers go through the guard too.

Attributes are headers `ce-…`, with values as in CloudEvents' NATS binding. `Nats-Msg-Id` is the idempotency key of the
run, so a stream drops a repeated message within its duplicate window.
"""

import asyncio
import base64
import json
import re
import secrets as random_secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from evertick.contract.connections import NatsConnection
from evertick.targets.brokers.publisher import Dial, Message, Publisher, PublishFailed
from evertick.targets.brokers.stream import (
    CONNECT_SECONDS,
    Connection,
    Shared,
    broker_down,
    host_and_port,
    open_stream,
    reason_of,
    tls_context,
)
from evertick.version import __version__

DEFAULT_PORT = 4222
MAX_LINE = 65_536
"""The longest line that is read; an INFO with many servers is the longest of all."""

_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_is_plain = re.compile(f"[{re.escape(_SAFE)}]*").fullmatch
_is_subject = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*").fullmatch
_VIOLATION = re.compile(r"permissions violation for publish to \"(.+?)\"", re.IGNORECASE)
_CREDENTIAL = re.compile(r"-----BEGIN [A-Z ]+-----\s+(\S+)\s+-+END [A-Z ]+-+")
_NO_STREAM = "503"
_TOO_LARGE = 10_054


class Ack(msgspec.Struct):
    """What a stream answers."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: dict[str, Any] | None = None


_read_ack = msgspec.json.Decoder(Ack).decode


class Waiting(NamedTuple):
    subject: str
    answer: asyncio.Future[bytes]


def open_publisher(settings: Mapping[str, Any], secrets: Mapping[str, str], dial: Dial) -> Publisher:
    return NatsPublisher(msgspec.convert(settings, NatsConnection), secrets, dial)


class NatsPublisher:
    """One connection to one of the servers."""

    def __init__(self, settings: NatsConnection, secrets: Mapping[str, str], dial: Dial) -> None:
        self._settings, self._secrets, self._dial = settings, secrets, dial
        self._last: NatsStream | None = None
        self._shared: Shared[NatsStream] = Shared(self._connect)

    async def publish(self, message: Message) -> str:
        connection = await self._shared.get()
        subject = str(message.address["subject"])
        if not _is_subject(subject):
            raise PublishFailed(f"{subject!r} is no subject to publish to", retryable=False, is_broker_down=False)
        head = _headers(message)
        if len(head) + len(message.body) > connection.max_payload:
            raise PublishFailed(
                f"the message has {len(head) + len(message.body)} bytes with its headers; the server takes at most"
                f" {connection.max_payload}",
                retryable=False,
                is_broker_down=False,
            )
        return _stored(await connection.request(subject, head, message.body), subject)

    async def check(self) -> str:
        connection = await self._shared.get()
        try:
            answer = await connection.request("$JS.API.INFO", b"NATS/1.0\r\n\r\n", b"")
        except PublishFailed as failure:
            if failure.is_broker_down:
                raise
            raise broker_down(f"{connection.name}: JetStream is not enabled") from failure
        found = msgspec.json.decode(answer)
        if "error" in found:
            raise PublishFailed(f"JetStream: {found['error'].get('description')}", retryable=True, is_broker_down=True)
        return f"NATS {connection.version} at {connection.name}, JetStream with {found.get('streams', 0)} streams"

    async def close(self) -> None:
        await self._shared.close()

    async def _connect(self) -> "NatsStream":
        failure: PublishFailed | None = None
        advertised = [] if self._last is None else self._last.advertised
        for server in dict.fromkeys([*self._settings.servers, *advertised]):
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    connection = await self._connect_to(server)
            except PublishFailed as error:
                # What the operator named says more than what a server advertised.
                failure = failure or error
            except TimeoutError:
                failure = failure or broker_down(f"{server} did not answer in time")
            else:
                self._last = connection
                return connection
        assert failure is not None
        raise failure

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

    async def request(self, subject: str, head: bytes, body: bytes) -> bytes:
        """Publish, and return the answer."""
        self._next += 1
        key = b"%d" % self._next
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[key] = Waiting(subject, answer)
        size = len(head) + len(body)
        try:
            self.write(
                f"HPUB {subject} {self._inbox}{self._next} {len(head)} {size}\r\n".encode() + head + body + b"\r\n"
            )
            await self.drain()
            return await answer
        finally:
            self._waiting.pop(key, None)

    @property
    def awaits_answers(self) -> bool:
        return bool(self._waiting)

    def ping(self) -> None:
        if self._waiting and self.failure is None:
            self.write(b"PING\r\n")

    def fail_all(self, failure: PublishFailed) -> None:
        for _, answer in self._waiting.values():
            _fail(answer, failure)
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
        waiting = self._waiting.get(subject.rpartition(b".")[2])
        if waiting is None or waiting.answer.done():
            return
        if head[9:12] == _NO_STREAM.encode():
            # A cluster that elects a leader answers so too.
            reason = f"no stream of JetStream takes the subject {waiting.subject}"
            waiting.answer.set_exception(PublishFailed(reason, retryable=True, is_broker_down=False))
        else:
            waiting.answer.set_result(body)

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
        failure = PublishFailed(text, retryable=False, is_broker_down=False)
        for subject, answer in self._waiting.values():
            if subject == violation[1]:
                _fail(answer, failure)

    def _learn(self, info: Mapping[str, Any]) -> None:
        self.max_payload = int(info.get("max_payload", 1_048_576))
        self.advertised = [str(server) for server in info.get("connect_urls") or []][:32]


def _fail(answer: asyncio.Future[Any], failure: PublishFailed) -> None:
    if not answer.done():
        answer.set_exception(failure)
        answer.exception()  # its caller may be gone


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


def _stored(answer: bytes, subject: str) -> str:
    ack = _read_ack(answer)
    if ack.error is None:
        repeated = ", which had it already" if ack.duplicate else ""
        return f"subject {subject}, stream {ack.stream}, sequence {ack.seq}{repeated}"
    code = ack.error.get("err_code")
    raise PublishFailed(
        f"the stream of {subject} refused: {ack.error.get('description', code)}",
        retryable=code != _TOO_LARGE,
        is_broker_down=False,
    )


def _headers(message: Message) -> bytes:
    lines = ["NATS/1.0"]
    lines += [f"{name}: {_one_line(value)}" for name, value in message.headers.items()]
    lines.append(f"content-type: {_one_line(message.content_type)}")
    lines += [f"ce-{name}: {_encoded(value)}" for name, value in message.attributes.items()]
    lines.append(f"Nats-Msg-Id: {_encoded(message.message_id)}\r\n\r\n")
    return "\r\n".join(lines).encode()


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


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
