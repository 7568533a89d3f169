"""The `evertick` command as a process: started, read, signalled, killed."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

TIMEOUT_SECONDS = 120


class Evertick:
    """One running command."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.log: list[str] = []
        """The lines of its log that were read: all of them, once it has ended."""

    async def ready(self) -> str:
        """Wait for the line that says that it is ready, and return it."""
        line = await self.line()
        assert line.startswith("Evertick is ready"), line + await self._rest()
        return line

    async def logged(self, words: str) -> str:
        """Wait until a line with these words is logged, and return it."""
        assert self._process.stderr
        while True:
            raw = await asyncio.wait_for(self._process.stderr.readline(), TIMEOUT_SECONDS)
            assert raw, f"it ended without {words!r}"
            self.log.append(raw.decode())
            if words in raw.decode():
                return raw.decode()

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop, and return its exit code."""
        self._process.send_signal(number)
        return await self.ended()

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def ended(self) -> int:
        _, rest = await asyncio.wait_for(self._process.communicate(), TIMEOUT_SECONDS)
        self.log += rest.decode().splitlines()
        assert self._process.returncode is not None
        return self._process.returncode

    async def line(self) -> str:
        """The next line on stdout."""
        assert self._process.stdout
        return (await asyncio.wait_for(self._process.stdout.readline(), TIMEOUT_SECONDS)).decode()

    async def _rest(self) -> str:
        _, errors = await asyncio.wait_for(self._process.communicate(), TIMEOUT_SECONDS)
        return errors.decode()


OURS = (sys.executable, "-c", "from evertick.cli.main import main; main()")


@asynccontextmanager
async def evertick(*arguments: str, program: Sequence[str] = OURS, **environment: str) -> AsyncIterator[Evertick]:
    """A running command. It is killed at the end if it still runs. Its API takes a free port."""
    process = await asyncio.create_subprocess_exec(
        *program, *arguments, stdout=PIPE, stderr=PIPE, env=os.environ | {"EVERTICK_PORT": "0"} | environment
    )
    try:
        yield Evertick(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
