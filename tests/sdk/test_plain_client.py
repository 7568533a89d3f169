"""The client of the command line, which calls plain http by the standard library."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from evertick.client.client import PlainClient
from evertick.client.errors import Unreachable

KEY = "evt_key"


@asynccontextmanager
async def serving(answers: list[bytes], asked: asyncio.Event) -> AsyncIterator[str]:
    """A server that has one answer for each request. When there are none left, it says nothing."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        if answers:
            writer.write(answers.pop(0))
        else:
            await reader.read()  # until the client has gone
        writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_request_that_nobody_answers_can_be_cancelled() -> None:
    asked = asyncio.Event()
    async with serving([], asked) as url:
        request = asyncio.create_task(PlainClient(url, api_key=KEY, timeout=3600, retries=0).stats())
        await asked.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await asyncio.get_running_loop().shutdown_default_executor()
    assert [each.name for each in threading.enumerate() if each.name.startswith("asyncio_")] == []


async def test_a_link_of_a_proxy_does_not_hide_the_next_page() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n%b\r\n[]"
    links = b'Link: </api/v1/jobs?cursor=a>; rel="next"\r\nLink: </style.css>; rel=preload\r\n'
    answers = [answer % links, answer % b""]
    async with serving(answers, asyncio.Event()) as url:
        assert [job async for job in PlainClient(url, api_key=KEY, retries=0).jobs.list()] == []
    assert answers == [], "both pages were asked for"


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
async def test_a_name_that_no_host_has_is_unreachable(host: str) -> None:
    with pytest.raises(Unreachable):
        await PlainClient(f"http://{host}:1", api_key=KEY, retries=0).stats()
