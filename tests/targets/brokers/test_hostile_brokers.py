"""Servers that answer as no broker does: a publisher must neither wait without end nor take what the process has."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import pytest

from evertick.targets.brokers import redis_stream, sqs
from targets.brokers.publishing import Guard, failure_of, message, publishing

SECONDS = 10
Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    """The port of a server."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the publisher has left
        finally:
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def sqs_settings(port: int, host: str = "localhost") -> dict[str, object]:
    return {"region": "eu-west-1", "access_key_id": "a", "endpoint_url": f"http://{host}:{port}"}


def http_answer(body: bytes, *headers: str) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = "\r\n".join(["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", "Connection: close", *headers])
        writer.write(f"{head}\r\n\r\n".encode() + body)
        await writer.drain()

    return serve


async def test_an_answer_of_sqs_that_names_no_message_fails_it() -> None:
    async with (
        serving(http_answer(b"{}")) as port,
        publishing(sqs.open_publisher, sqs_settings(port)) as publisher,
        asyncio.timeout(SECONDS),
    ):
        failure = await failure_of(publisher.publish(message(queue_url="http://q/1/orders")))
    assert str(failure) == "localhost: the answer does not name the message"
    assert (failure.retryable, failure.is_broker_down) == (True, True)


async def test_a_packed_answer_of_sqs_is_not_unpacked() -> None:
    packed = gzip.compress(b'{"Successful": [{"Id": "0", "MessageId": "m"}]}')
    async with (
        serving(http_answer(packed, "Content-Encoding: gzip")) as port,
        publishing(sqs.open_publisher, sqs_settings(port)) as publisher,
        asyncio.timeout(SECONDS),
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
    "answer", [b"$1000000000\r\n", b"*1000000000\r\n" + b"$9\r\n123456789\r\n" * 10], ids=["a text", "a list"]
)
async def test_an_answer_of_redis_without_end_ends_the_connection(answer: bytes) -> None:
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
        publishing(
            redis_stream.open_publisher, {"host": "localhost", "port": port, "database": 0, "tls": False}
        ) as publisher,
        asyncio.timeout(SECONDS),
    ):
        failure = await failure_of(publisher.publish(message(stream="orders")))
    assert str(failure) == "Redis sent an answer that is too long"
    assert (failure.retryable, failure.is_broker_down) == (True, True)
    assert sent < 50_000_000
