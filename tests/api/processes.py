"""The API in a process of its own, so that it can be killed."""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from evertick.api.server import ApiServer
from evertick.config.settings import Settings
from evertick.store.engine import redis_buckets

TESTS = Path(__file__).parents[1]
PATIENCE_SECONDS = 120


class ServerProcess:
    """A server that says where it listens."""

    def __init__(self, popen: "subprocess.Popen[bytes]", log: Path) -> None:
        self._popen = popen
        self._log = log
        self.pid = popen.pid
        self.address = self._wait()

    @property
    def peak_memory(self) -> int:
        """The most bytes that the process ever had resident."""
        status = Path(f"/proc/{self._popen.pid}/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait(PATIENCE_SECONDS)

    def _wait(self) -> str:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (said := self._log.read_text()).endswith("\n"):
            assert self._popen.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.01)
        return said.strip()


@contextmanager
def served(database_url: str, log: Path, *options: str) -> Iterator[ServerProcess]:
    with log.open("wb") as output:
        popen = subprocess.Popen(
            [sys.executable, __file__, database_url, *options],
            stdout=output,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
    try:
        yield ServerProcess(popen, log)
    finally:
        if popen.poll() is None:
            popen.kill()
            popen.wait(PATIENCE_SECONDS)


async def _serve(url: str, *, hold_answers: bool, redis_url: str | None) -> None:
    redis_buckets.TIMEOUT_SECONDS = PATIENCE_SECONDS  # a busy machine is no outage of Redis
    server = ApiServer(url, Settings(port=0, redis_url=redis_url), connections=4)
    await server.start()
    address = await _without_answers(server.address) if hold_answers else server.address
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def _without_answers(address: str) -> str:
    """An address that passes requests on to the server, and nothing back."""
    port = urlsplit(address).port

    async def pass_on(reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        _, server = await asyncio.open_connection("127.0.0.1", port)
        while data := await reader.read(65_536):
            server.write(data)
            await server.drain()

    relay = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    return f"http://127.0.0.1:{relay.sockets[0].getsockname()[1]}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--hold-answers", action="store_true")
    parser.add_argument("--redis-url")
    given = parser.parse_args()
    uvloop.run(_serve(given.url, hold_answers=given.hold_answers, redis_url=given.redis_url))
