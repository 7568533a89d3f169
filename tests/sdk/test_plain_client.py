"""The client of the command line, which calls plain http by the standard library, and without an event loop."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from evertick.client.client import PlainClient
from evertick.client.errors import Unreachable
from evertick.client.plain_transport import run_plain
from evertick.contract.job import Job
from evertick.runtime.process import INTERRUPTED

KEY = "evt_key"
ANSWER = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n%b\r\n[]"
T = TypeVar("T")


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


async def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it as the command line does, beside the server of the test."""
    return await asyncio.to_thread(run_plain, work)


async def jobs_of(client: PlainClient) -> list[Job]:
    return [job async for job in client.jobs.list()]


async def test_ctrl_c_ends_a_request_that_nobody_answers() -> None:
    asked = asyncio.Event()
    async with serving([], asked) as url:
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "evertick.cli", "jobs", "list", "--url", url),
            env={**os.environ, "EVERTICK_API_KEY": KEY},
            stderr=asyncio.subprocess.PIPE,
            # What runs the tests may ignore it, and pass that on.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        await asked.wait()
        command.send_signal(signal.SIGINT)
        _, errors = await command.communicate()
    assert (command.returncode, errors.strip()) == (INTERRUPTED, b"")


async def test_a_link_of_a_proxy_does_not_hide_the_next_page() -> None:
    links = b'Link: </api/v1/jobs?cursor=a>; rel="next"\r\nLink: </style.css>; rel=preload\r\n'
    answers = [ANSWER % (b"200 OK", links), ANSWER % (b"200 OK", b"")]
    async with serving(answers, asyncio.Event()) as url:
        assert await run(jobs_of(PlainClient(url, api_key=KEY, retries=0))) == []
    assert answers == [], "both pages were asked for"


async def test_a_call_that_failed_temporarily_is_repeated() -> None:
    answers = [ANSWER % (b"503 Service Unavailable", b"Retry-After: 0\r\n"), ANSWER % (b"200 OK", b"")]
    async with serving(answers, asyncio.Event()) as url:
        assert await run(jobs_of(PlainClient(url, api_key=KEY, retries=1))) == []
    assert answers == []


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_name_that_no_host_has_is_unreachable(host: str) -> None:
    with pytest.raises(Unreachable):
        run_plain(PlainClient(f"http://{host}:1", api_key=KEY, retries=0).stats())


def test_work_that_waits_for_more_is_refused() -> None:
    async def wait() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="awaits more"):
        run_plain(wait())
