"""The port for metrics: who may read, what it answers, and that no client stops it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import pytest

from engine import PATIENCE_SECONDS
from evertick.config.settings import Settings
from evertick.metrics.exposition import MEDIA_TYPE
from evertick.runtime.metrics_server import MetricsServer, serving_metrics
from evertick.runtime.process import CannotListen

KEY = "a key of sixteen characters".replace(" ", "-")


async def some_page() -> bytes:
    return b"some_metric 1.0\n"


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = MetricsServer(some_page)
    yield await server.start("127.0.0.1", 0)
    await server.stop()


@pytest.fixture
async def reader() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=60, verify=False) as client:
        yield client


async def test_it_answers_with_the_page_and_tells_that_it_lives(address: str, reader: httpx.AsyncClient) -> None:
    answer = await reader.get(f"{address}/metrics?x=1")
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, await some_page(), MEDIA_TYPE)
    assert (await reader.get(f"{address}/livez")).json() == {"status": "alive"}
    assert (await reader.get(f"{address}/")).status_code == 404
    assert (await reader.post(f"{address}/metrics")).status_code == 405


async def test_with_a_key_it_answers_to_those_who_have_it(reader: httpx.AsyncClient) -> None:
    server = MetricsServer(some_page, KEY)
    address = await server.start("127.0.0.1", 0)
    try:
        for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}):
            refused = await reader.get(f"{address}/metrics", headers=wrong)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        right = await reader.get(f"{address}/metrics", headers={"Authorization": f"Bearer {KEY}"})
        assert right.status_code == 200
        assert (await reader.get(f"{address}/livez")).status_code == 200
    finally:
        await server.stop()


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET /metrics SPDY/1\r\n\r\n"])
async def test_what_is_not_http_is_refused(address: str, sent: bytes) -> None:
    assert (await exchanged(address, sent)).startswith(b"HTTP/1.1 400 ")


async def test_a_head_without_end_is_cut_off(address: str, reader: httpx.AsyncClient) -> None:
    assert await exchanged(address, b"GET /metrics HTTP/1.1\r\nx: " + b"x" * 100_000) == b""
    assert (await reader.get(f"{address}/metrics")).status_code == 200


async def test_clients_that_say_nothing_do_not_keep_it_from_stopping() -> None:
    server = MetricsServer(some_page)
    port = int((await server.start("127.0.0.1", 0)).rpartition(":")[2])
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        await server.stop()
        for reader, writer in streams:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()


async def test_an_address_that_is_taken_is_said_to_be(address: str) -> None:
    port = int(address.rpartition(":")[2])
    with pytest.raises(CannotListen, match=f"cannot listen for metrics on 127.0.0.1 port {port}"):
        await MetricsServer(some_page).start("127.0.0.1", port)


async def test_without_a_port_nothing_listens() -> None:
    async with serving_metrics(Settings()) as address:
        assert address is None


async def exchanged(address: str, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
