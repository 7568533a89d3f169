"""The examples as their readers run them: real processes, killed and stopped."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NEVER_LOST = EXAMPLES / "never-lost" / "demo.py"
TIMEOUT_SECONDS = 180


@asynccontextmanager
async def running(script: Path, data_dir: Path, *arguments: str) -> AsyncIterator[Process]:
    environment = {name: value for name, value in os.environ.items() if name != "EVERTICK_DATABASE_URL"}
    environment["EVERTICK_DATA_DIR"] = str(data_dir)
    command = (sys.executable, str(script), *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def lines_until(stream: asyncio.StreamReader | None, words: str) -> list[str]:
    """What it says, up to a line with these words."""
    assert stream
    lines: list[str] = []
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not lines or not re.search(words, lines[-1]):
            raw = await stream.readline()
            assert raw, f"it ended without {words!r} after {lines}"
            lines.append(raw.decode())
    return lines


async def stopped(process: Process, number: int) -> int:
    process.send_signal(number)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await process.communicate()
    assert process.returncode is not None
    return process.returncode


@pytest.mark.parametrize("with_server", [False, True], ids=["the demo is killed", "and its server too"])
async def test_nothing_is_lost_when_the_demo_is_killed(data_dir: Path, with_server: bool) -> None:  # noqa: FBT001
    async with running(NEVER_LOST, data_dir) as demo:
        await lines_until(demo.stdout, "one-off number 1")  # said once, ticks again and again
        await lines_until(demo.stdout, "tick of .*, tick")
        if with_server:
            pid = (data_dir / "postgres" / "postmaster.pid").read_text(encoding="ascii").split()[0]
            os.kill(int(pid), signal.SIGKILL)
        assert await stopped(demo, signal.SIGKILL) == -signal.SIGKILL
    async with running(NEVER_LOST, data_dir) as demo:
        await lines_until(demo.stdout, "one-off number 5")
        await lines_until(demo.stdout, "tick of .*, tick")
        assert await stopped(demo, signal.SIGTERM) == 0
    async with running(NEVER_LOST, data_dir, "check") as check:
        output, errors = await asyncio.wait_for(check.communicate(), TIMEOUT_SECONDS)
    assert check.returncode == 0, output.decode() + errors.decode()
    facts = dict(line.split(maxsplit=1) for line in output.decode().splitlines())
    assert facts["lost"] == "0 ticks, 0 one-offs, 0 runs"
    assert facts["gaps"].startswith("0 ticks")
    assert facts["one-offs"].startswith("10 promised")
    ticks, runs = (int(re.split(r"\D", facts[name])[0]) for name in ("ticks", "runs"))
    assert ticks == runs > 1


async def test_the_quickstart_runs_what_it_declares_and_submits(data_dir: Path) -> None:
    async with running(EXAMPLES / "quickstart.py", data_dir) as quickstart:
        said = await lines_until(quickstart.stderr, "beat .*: tick")
        if not any("an invoice for c1" in line for line in said):
            await lines_until(quickstart.stderr, "an invoice for c1")
        assert await stopped(quickstart, signal.SIGTERM) == 0


def test_the_quickstart_page_shows_the_example() -> None:
    page = (EXAMPLES.parent / "docs" / "quickstart.md").read_text(encoding="utf-8")
    _, _, code = (EXAMPLES / "quickstart.py").read_text(encoding="utf-8").partition("\n\n")
    assert f"```python\n{code}```" in page
