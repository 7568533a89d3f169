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
from typing import Any

import uvloop

from evertick.api import app, pipeline as serving
from evertick.api.server import ApiServer

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


async def _serve(url: str, *, hold_answers: bool) -> None:
    if hold_answers:
        _hold_answers()
    server = ApiServer(url, port=0, connections=4)
    await server.start()
    sys.stdout.write(f"{server.address}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def _hold_answers() -> None:
    """Commit as ever, and then never say so."""
    made = serving.answer

    async def held(*arguments: Any) -> None:
        await made(*arguments)
        await asyncio.Event().wait()

    vars(app)["answer"] = held


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--hold-answers", action="store_true")
    given = parser.parse_args()
    uvloop.run(_serve(given.url, hold_answers=given.hold_answers))
