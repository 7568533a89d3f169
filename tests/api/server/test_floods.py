"""Clients without a key that flood a server in a process of its own: its memory stays, and others are answered."""

import asyncio
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from api.processes import ServerProcess, served
from engine import PATIENCE_SECONDS, until
from evertick.api.server.connections import HEAD_BYTES, MAX_PIPELINED

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
MEGABYTE = 1_000_000
CLIENTS = 100


@pytest.fixture
def process(database_url: str, tmp_path: Path) -> Iterator[ServerProcess]:
    with served(database_url, tmp_path / "log") as process:
        yield process


@asynccontextmanager
async def connected(process: ServerProcess) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    place = urlsplit(process.address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def is_alive(process: ServerProcess) -> bool:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        async with connected(process) as (reader, writer):
            writer.write(LIVEZ)
            return (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    return False


def _memory(process: ServerProcess) -> int:
    return psutil.Process(process.pid).memory_info().rss


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"X-Header: %b\r\n" % (b"y" * 8000)),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Header: ", b"y" * 8000),
        (b"GET /", b"a" * 8000),
        (b"", LIVEZ * 250),
        (b"POST /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: ", b"y" * 8000),
    ],
    ids=["headers", "header", "URL", "pipelined", "trailer"],
)
async def test_floods_are_not_kept_in_memory(process: ServerProcess, first: bytes, more: bytes) -> None:
    await is_alive(process)
    before = _memory(process)

    async def flood(stack: AsyncExitStack) -> None:
        _, writer = await stack.enter_async_context(connected(process))
        writer.write(first)
        with suppress(ConnectionError, TimeoutError):
            for _ in range(250):  # 2 MB, unless the server stops reading
                writer.write(more)
                async with asyncio.timeout(1):
                    await writer.drain()

    async with AsyncExitStack() as stack:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(flood(stack) for _ in range(CLIENTS)))
        assert await is_alive(process)
        grown = _memory(process) - before
    # What the limits allow of each client, twice: once as it was read, and once as objects.
    allowed = 2 * HEAD_BYTES + MAX_PIPELINED * 10_000
    assert grown < CLIENTS * allowed + 10 * MEGABYTE


@pytest.mark.skipif(sys.platform != "linux", reason="sets a limit of another process")
async def test_without_descriptors_for_all_others_are_answered_once_there_are_some(process: ServerProcess) -> None:
    await is_alive(process)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (psutil.Process(process.pid).num_fds() + 20, hard))
    async with AsyncExitStack() as stack:
        for _ in range(100):
            with suppress(ConnectionError):
                await stack.enter_async_context(connected(process))
    await until(lambda: is_alive(process))
