"""An `evertick up` as the examples and pages find it, and the programs that they show."""

import asyncio
import os
import re
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
TIMEOUT_SECONDS = 180
LEASE_SECONDS = 9
"""Of workers: short, so that tests can outlive a lease."""


@dataclass(frozen=True)
class Server:
    """Evertick as the examples find it."""

    url: str
    api_key: str
    data_dir: Path

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERTICK_")}
        return kept | {"EVERTICK_URL": self.url, "EVERTICK_API_KEY": self.api_key} | more

    @asynccontextmanager
    async def running(self, *command: str, cwd: Path = EXAMPLES, **environment: str) -> AsyncIterator[Process]:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=PIPE, stderr=PIPE, cwd=cwd, env=self.environment(**environment)
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()

    async def output(self, *command: str, cwd: Path = EXAMPLES, **environment: str) -> str:
        """What a command says that ends well."""
        async with self.running(*command, cwd=cwd, **environment) as process:
            output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_SECONDS)
        assert process.returncode == 0, output.decode() + errors.decode()
        return output.decode()


async def told(stream: asyncio.StreamReader | None, words: str) -> re.Match[str]:
    """Wait until it says something like this."""
    assert stream
    said: list[str] = []
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while raw := await stream.readline():
            said.append(raw.decode())
            if found := re.search(words, said[-1]):
                return found
    raise AssertionError(f"it ended without {words!r} after {said}")


async def stopped(process: Process) -> int | None:
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), TIMEOUT_SECONDS)
    return process.returncode
