"""Servers that answer as no broker does: a publisher must neither wait without end nor take what the process has."""

import asyncio
import gc
import gzip
import json
import ssl
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands, frame
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.heartbeat import Heartbeat

from evertick.targets.brokers import (
    kafka,
    kafka_protocol as protocol,
    nats,
    rabbitmq,
    redis_stream,
    sqs,
    stream,
)
from evertick.targets.brokers.publisher import Awaited, Connect
from evertick.targets.brokers.stream import tls_context
from ports import free_port
from secured_server import write_certificates
from targets.brokers.publishing import BODY, WAIT_SECONDS, Guard, Serve, failure_of, message, publishing, serving


def sqs_settings(port: int, host: str = "localhost") -> dict[str, object]:
    return {"region": "eu-west-1", "access_key_id": "a", "endpoint_url": f"http://{host}:{port}"}


def http_answer(body: bytes, *headers: str, status: str = "200 OK") -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers])
        writer.write(f"{head}\r\n\r\n".encode() + body)
        await writer.drain()

    return serve


async def test_an_answer_of_sqs_that_names_no_message_fails_it() -> None:
    async with (
        serving(http_answer(b"{}")) as port,
        publishing(sqs.open_publisher, sqs_settings(port)) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        failure = await failure_of(publisher.publish(message(queue_url="http://q/1/orders")))
    assert str(failure) == "localhost: the answer does not name the message"
    assert (failure.retryable, failure.is_broker_down) == (True, True)


async def test_a_session_token_that_sqs_repeats_is_in_no_reason() -> None:
    said = "The signature does not match.\n\nThe Canonical String should have been\n'POST\nx-amz-security-token:hidden'"
    body = json.dumps({"__type": "com.amazonaws.sqs#SignatureDoesNotMatch", "message": said}).encode()
    async with (
        serving(http_answer(body, status="403 Forbidden")) as port,
        publishing(sqs.open_publisher, sqs_settings(port), {"session_token": "hidden"}) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        failure = await failure_of(publisher.check())
    assert str(failure) == "wrong credentials: localhost: SignatureDoesNotMatch: The signature does not match."


async def test_a_packed_answer_of_sqs_is_not_unpacked() -> None:
    packed = gzip.compress(b'{"Successful": [{"Id": "0", "MessageId": "m"}]}')
    async with (
        serving(http_answer(packed, "Content-Encoding: gzip")) as port,
        publishing(sqs.open_publisher, sqs_settings(port)) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        failure = await failure_of(publisher.publish(message(queue_url="http://q/1/orders")))
    assert failure.retryable


@pytest.mark.parametrize("host", ["127.1", "2130706433", "127.0.0.1."])
async def test_the_guard_judges_each_endpoint_of_sqs_that_is_no_name(host: str) -> None:
    async with publishing(sqs.open_publisher, sqs_settings(80, host), dial=Guard(host)) as publisher:
        failure = await failure_of(publisher.check())
    assert str(failure) == f"{host}: not a public address"
    assert not failure.retryable


@pytest.mark.parametrize(
    ("connect", "settings", "address"),
    [
        (
            kafka.open_publisher,
            {"bootstrap_servers": ["refused:9092", "localhost:{}"], "security_protocol": "PLAINTEXT"},
            {"topic": "orders"},
        ),
        (
            rabbitmq.open_publisher,
            {"host": "refused", "other_nodes": ["localhost:{}"], "username": "u", "tls": False},
            {"routing_key": "orders"},
        ),
        (nats.open_publisher, {"servers": ["refused:4222", "localhost:{}"], "tls": False}, {"subject": "orders"}),
    ],
    ids=["kafka", "rabbitmq", "nats"],
)
async def test_messages_wait_for_a_node_that_is_down_although_the_guard_refuses_another(
    connect: Connect, settings: dict[str, Any], address: dict[str, Any]
) -> None:
    port = str(free_port())
    given = {
        name: [each.replace("{}", port) for each in value] if isinstance(value, list) else value
        for name, value in settings.items()
    }
    async with publishing(connect, given, dial=Guard("refused")) as publisher, asyncio.timeout(WAIT_SECONDS):
        failure = await failure_of(publisher.publish(message(**address)))
    assert str(failure) == f"cannot connect to localhost:{port}: Connection refused"
    assert (failure.retryable, failure.is_broker_down) == (True, True)


REDIS = {"host": "localhost", "database": 0, "tls": False}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"$1000000000\r\n", "Redis sent an answer that is too long"),
        (b"+" + b"x" * 1_000_000, "Redis sent an answer that is too long"),
        (b"*1000000000\r\n" + b"$9\r\n123456789\r\n" * 10, "Redis sent what cannot be read"),
    ],
    ids=["a text", "a line", "a list"],
)
async def test_an_answer_of_redis_without_end_ends_the_connection(answer: bytes, reason: str) -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n")
        writer.write(answer)
        while sent < 50_000_000:
            writer.write(b"$9\r\n123456789\r\n" * 4096)
            await writer.drain()
            sent += 15 * 4096

    async with (
        serving(serve) as port,
        publishing(redis_stream.open_publisher, {**REDIS, "port": port}) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        failure = await failure_of(publisher.publish(message(stream="orders")))
    assert str(failure) == reason
    assert (failure.retryable, failure.is_broker_down) == (True, True)
    assert sent < 50_000_000


async def test_a_redis_that_drips_and_never_answers_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SILENCE_SECONDS", 0.3)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"PING\r\n")
        writer.write(b"+PONG\r\n")
        await reader.readuntil(b"XADD\r\n")
        while True:
            writer.write(b"+")
            await writer.drain()
            await asyncio.sleep(0.01)  # between two drops

    async with (
        serving(serve) as port,
        publishing(redis_stream.open_publisher, {**REDIS, "port": port}) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        failure = await failure_of(publisher.publish(message(stream="orders")))
    assert str(failure) == f"localhost:{port}: the broker has not answered for 0.3 s"
    assert (failure.retryable, failure.is_broker_down) == (True, True)


async def test_a_redis_that_does_not_answer_a_wait_with_a_number_has_stored_nothing() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"PING\r\n")
        writer.write(b"+PONG\r\n")
        await reader.readuntil(b"WAIT\r\n")
        writer.write(b"$3\r\n1-0\r\n+many\r\n")
        await reader.read()

    async with (
        serving(serve) as port,
        publishing(redis_stream.open_publisher, {**REDIS, "port": port, "replicas": 1}) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        failure = await failure_of(publisher.publish(message(stream="orders")))
    assert str(failure) == "Redis sent what cannot be read"
    assert (failure.retryable, failure.is_broker_down) == (True, True)


async def test_a_redis_that_its_replicas_have_left_is_left_too() -> None:
    """By then its address may lead to the one of them that was made the primary."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        replicas, connections = connections, connections + 1
        await reader.readuntil(b"PING\r\n")
        writer.write(b"+PONG\r\n")
        while True:
            await reader.readuntil(b"WAIT\r\n")
            writer.write(b"$3\r\n1-0\r\n:%d\r\n" % replicas)

    async with (
        serving(serve) as port,
        publishing(redis_stream.open_publisher, {**REDIS, "port": port, "replicas": 1}) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        failure = await failure_of(publisher.publish(message(stream="orders")))
        assert str(failure).startswith("0 of 1 replicas")
        assert await publisher.publish(message(stream="orders")) == "stream orders, entry 1-0"


async def test_a_long_name_that_a_payload_makes_is_not_remembered() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"PING\r\n")
        writer.write(b"+PONG\r\n")
        await reader.readuntil(BODY)
        writer.write(b"$3\r\n1-0\r\n")
        await reader.read()

    stream_name, key = "s" * 60_000, b"k" * 60_000
    before = sys.getrefcount(stream_name), sys.getrefcount(key)
    async with (
        serving(serve) as port,
        publishing(redis_stream.open_publisher, {**REDIS, "port": port}) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        await publisher.publish(message(stream=stream_name))
    protocol.partition_hash(key)
    gc.collect()
    assert (sys.getrefcount(stream_name), sys.getrefcount(key)) == before


async def test_redis_gets_messages_while_it_has_not_answered_others() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"PING\r\n")
        writer.write(b"+PONG\r\n")
        await reader.readuntil(b"first")
        await reader.readuntil(b"second")
        writer.write(b"$3\r\n1-0\r\n$3\r\n2-0\r\n")

    async with (
        serving(serve) as port,
        publishing(redis_stream.open_publisher, {**REDIS, "port": port}) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        sent = [Awaited(message(body=body, stream="orders")) for body in (b"first", b"second")]
        for each in sent:
            await publisher.send([each])
        assert [await each.answer for each in sent] == ["stream orders, entry 1-0", "stream orders, entry 2-0"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"-ERR max number of clients reached\r\n", "Redis has no connections left"),
        (b"-DENIED Redis is running in protected mode\r\n", "Redis is in protected mode"),
        (b"-READONLY You can't write against a read only replica.\r\n", "the Redis server is a read-only replica"),
    ],
)
async def test_a_redis_that_takes_nobody_is_tried_again(said: bytes, reason: str) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()

    async with (
        serving(serve) as port,
        publishing(redis_stream.open_publisher, {**REDIS, "port": port}) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        failure = await failure_of(publisher.publish(message(stream="orders")))
    assert str(failure) == reason
    assert (failure.retryable, failure.is_broker_down) == (True, True)


async def test_one_message_that_sqs_refuses_a_batch_for_fails_alone() -> None:
    bodies: list[list[str]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            entries = json.loads(await reader.readexactly(size))["Entries"]
            bodies.append([entry["MessageBody"] for entry in entries])
            answer: dict[str, object]
            if "bad" in bodies[-1]:
                status, answer = "400 Bad", {"__type": "InvalidParameterValue", "message": "a bad one"}
            else:
                status, answer = "200 OK", {"Successful": [{"Id": entry["Id"], "MessageId": "m"} for entry in entries]}
            body = json.dumps(answer).encode()
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    batch = [Awaited(message(body=body, queue_url="http://q/1/orders")) for body in (b"one", b"bad", b"two")]
    async with (
        serving(serve) as port,
        publishing(sqs.open_publisher, sqs_settings(port)) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        await publisher.send(batch)
        failure = await failure_of(batch[1].answer)
        assert await batch[0].answer == await batch[2].answer == "queue orders, message m"
    assert str(failure) == "localhost: InvalidParameterValue: a bad one"
    assert bodies == [["one", "bad", "two"], ["one"], ["bad"], ["two"]]


AMQP_ANSWERS: dict[type, Frame] = {
    commands.Connection.StartOk: commands.Connection.Tune(),
    commands.Connection.Open: commands.Connection.OpenOk(),
    commands.Channel.Open: commands.Channel.OpenOk(),
    commands.Confirm.Select: commands.Confirm.SelectOk(),
}


async def amqp_frame(reader: asyncio.StreamReader) -> tuple[int, int, Any]:
    """The size of a frame, its channel, and what is in it."""
    head = await reader.readexactly(7)
    data = head + await reader.readexactly(int.from_bytes(head[3:7]) + 1)
    return len(data), *frame.unmarshal(data)[1:]


def amqp_broker(bodies: list[int], *, confirms: bool) -> Serve:
    """Asks for tiny frames, notes the sizes of those of bodies, and confirms the first message, or none."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(frame.marshal(commands.Connection.Start(), 0))
        while True:
            size, channel, found = await amqp_frame(reader)
            answers = {
                **AMQP_ANSWERS,
                commands.Connection.StartOk: commands.Connection.Tune(frame_max=9),
                Heartbeat: found,
            }
            if type(found) in answers:
                writer.write(frame.marshal(answers[type(found)], channel))
            if isinstance(found, ContentBody):
                bodies.append(size)
                if confirms:
                    writer.write(frame.marshal(commands.Basic.Ack(1), channel))

    return serve


def amqp_settings(port: int) -> dict[str, object]:
    return {"host": "localhost", "port": port, "username": "u", "tls": False}


async def test_a_broker_of_rabbitmq_cannot_ask_for_tiny_frames() -> None:
    sizes: list[int] = []
    async with (
        serving(amqp_broker(sizes, confirms=True)) as port,
        publishing(rabbitmq.open_publisher, amqp_settings(port)) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        await publisher.publish(message(body=b"x" * 4000, routing_key="orders"))
    assert sizes == [4008]


class Watched(Awaited):
    """One whose end of life can be noticed."""

    __slots__ = ("__weakref__",)


async def test_messages_that_were_given_up_are_not_kept_for_a_broker_of_rabbitmq_that_confirms_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "SILENCE_SECONDS", 0.3)
    is_gone = asyncio.Event()
    async with (
        serving(amqp_broker([], confirms=False)) as port,
        publishing(rabbitmq.open_publisher, amqp_settings(port)) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        sending = Watched(message(routing_key="orders"))
        weakref.finalize(sending, is_gone.set)
        await publisher.send([sending])
        sending.is_over = True
        del sending
        await is_gone.wait()


async def test_a_broker_of_rabbitmq_that_sends_heartbeats_and_does_not_answer_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "SILENCE_SECONDS", 0.3)
    async with (
        serving(amqp_broker([], confirms=True)) as port,
        publishing(rabbitmq.open_publisher, amqp_settings(port)) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        failure = await failure_of(publisher.publish(message(exchange="orders", routing_key="orders")))
    assert str(failure) == f"localhost:{port}: the broker has not answered for 0.3 s"
    assert (failure.retryable, failure.is_broker_down) == (True, True)


class ClosingRabbitMq:
    """Refuses the first message, and closes the channel for the second when it may. As RabbitMQ does, it takes the
    closing of a channel that is not open for a fault of the whole connection.
    """

    def __init__(self) -> None:
        self.may_close = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(frame.marshal(commands.Connection.Start(), 0))
        bodies = 0
        while True:
            _, channel, found = await amqp_frame(reader)
            if isinstance(found, ContentBody):
                bodies += 1
                await self._answer(bodies, writer, channel)
            elif isinstance(found, commands.Channel.Close):
                failure = commands.Connection.Close(504, "CHANNEL_ERROR - expected 'channel.open'", 0, 0)
                writer.write(frame.marshal(failure, 0))
            elif type(found) in AMQP_ANSWERS:
                writer.write(frame.marshal(AMQP_ANSWERS[type(found)], channel))

    async def _answer(self, bodies: int, writer: asyncio.StreamWriter, channel: int) -> None:
        if bodies == 2:
            writer.write(frame.marshal(commands.Basic.Nack(1), channel))
            await self.may_close.wait()
            closing = commands.Channel.Close(404, "NOT_FOUND - no exchange 'gone' in vhost '/'", 60, 40)
            writer.write(frame.marshal(closing, channel))
        elif bodies == 3:
            writer.write(frame.marshal(commands.Basic.Ack(1), channel))


async def test_a_channel_that_rabbitmq_closes_before_it_is_opened_anew_is_not_closed_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rabbitmq, "RENEW_SECONDS", 0.0)  # after a refusal the channel is opened anew
    monkeypatch.setattr(rabbitmq, "CONFIRM_SECONDS", WAIT_SECONDS)  # when the second message is confirmed
    server = ClosingRabbitMq()
    async with (
        serving(server) as port,
        publishing(rabbitmq.open_publisher, amqp_settings(port)) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        refused, lost = (Awaited(message(number, routing_key="orders")) for number in (1, 2))
        await publisher.send([refused, lost])
        assert "a queue is full or has failed" in str(await failure_of(refused.answer))
        waiting = asyncio.create_task(publisher.publish(message(3, routing_key="orders")))
        for _ in range(10):  # turns of the event loop: it waits until the second message is confirmed
            await asyncio.sleep(0)
        server.may_close.set()
        assert "NOT_FOUND" in str(await failure_of(lost.answer))
        assert await waiting == "exchange (default), routing key orders"


@pytest.mark.parametrize("has_more", [False, True])
async def test_what_is_said_before_tls_names_no_servers_of_nats(tmp_path: Path, *, has_more: bool) -> None:
    authority, certificate, key = tmp_path / "authority.pem", tmp_path / "server.pem", tmp_path / "server.key"
    write_certificates(authority, certificate, key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    info = b'INFO {"connect_urls": ["elsewhere.example:4222"]}\r\n'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not is_up:
            return
        writer.write(info * (1 + has_more))
        await writer.start_tls(tls)
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        await reader.readuntil(b"$JS.API.INFO")

    guard, is_up = Guard(), True
    async with asyncio.timeout(WAIT_SECONDS), serving(serve) as port:
        given = {"servers": [f"localhost:{port}"], "tls": True, "tls_ca": authority.read_text(encoding="utf-8")}
        async with publishing(nats.open_publisher, given, dial=guard) as publisher:
            failure = await failure_of(publisher.check())
            is_up = False
            await failure_of(publisher.check())
    assert ("sent more than an INFO before TLS began" in str(failure)) is has_more
    assert guard.asked == ["localhost"] * 2


def test_the_authorities_of_the_system_are_read_once() -> None:
    assert tls_context(None) is tls_context(None)
