"""`evertick top`: once, and live in a terminal."""

import contextlib
import os
import pty
import signal
import sys

import pytest

from cli.commands import Cli
from engine import until
from evertick.api.server import ApiServer
from evertick.config.settings import Settings

PARTS = ("fired/s", "lag p50", "oldest due", "Nothing needs attention", "Next ticks", "Last runs", "Queues", "Nodes")


@pytest.mark.parametrize("backend", ["database", "api"])
async def test_once_prints_the_page(cli: Cli) -> None:
    await cli("jobs", "add", "nightly", "0 3 * * *", "--handler", "h")
    shown = await cli("top", "--once")
    assert all(part in shown for part in (*PARTS, "nightly"))
    figures = await cli.json("top")
    assert figures["attention"]["next"][0]["name"] == "nightly"
    assert figures["stats"]["fired_per_second"] == 0


async def test_no_server_ends_the_command(cli: Cli) -> None:
    unreachable = Cli.at("--url", "http://127.0.0.1:9", EVERTICK_API_KEY="evt_x")
    await unreachable("top", "--once", code=3)


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *words: str, **environment: str) -> None:
        self.shown = b""
        pid, self._master = pty.fork()
        if pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # what runs the tests may ignore it, and pass that on
            os.environ |= {**environment, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
            os.execv(sys.executable, [sys.executable, "-m", "evertick.cli", *words])
        self.pid = pid
        os.set_blocking(self._master, False)

    async def sees(self, text: str) -> None:
        async def is_there() -> bool:
            self._read()
            return text.encode() in self.shown

        await until(is_there)
        self.shown = b""

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            self.shown += os.read(self._master, 65536)

    async def interrupt(self) -> int:
        """Press Ctrl-C; the exit code."""
        os.write(self._master, b"\x03")
        ended: list[int] = []

        async def has_ended() -> bool:
            self._read()  # a terminal that nobody reads would hold up what is still drawn
            pid, status = os.waitpid(self.pid, os.WNOHANG)  # noqa: ASYNC222 - it does not wait
            ended.extend([status] if pid else [])
            return bool(ended)

        await until(has_ended)
        os.close(self._master)
        return os.waitstatus_to_exitcode(ended[0])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


async def test_the_live_page_keeps_its_picture_while_the_server_is_away(over_api: Cli, database_url: str) -> None:
    url, key = over_api.options[1], over_api.environment["EVERTICK_API_KEY"]
    await over_api("jobs", "add", "nightly", "0 3 * * *", "--handler", "h")
    server = ApiServer(database_url, Settings(port=0))
    await server.start()
    terminal = Terminal("top", "--interval", "0.2", "--url", server.address, EVERTICK_API_KEY=key)
    assert url != server.address
    await terminal.sees("nightly")
    await server.stop()
    await terminal.sees("this is the last picture")
    assert await terminal.interrupt() == 0
