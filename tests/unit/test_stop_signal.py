"""Signals that ask a process to stop. Each runs in a process of its own, for one may end it."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal
from evertick.runtime import process

async def main():
    process.REPEAT_SECONDS = {repeat_seconds}
    with process.stop_signal() as stopping:
        os.kill(os.getpid(), signal.SIGTERM)
        await stopping.wait()
        {between}
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("repeat_seconds", "between", "exit_code"),
    [
        (60, "", 0),
        (0, "await asyncio.sleep(0.01)", -signal.SIGTERM),
    ],
    ids=["a signal that arrives twice is one request", "a later one stops at once"],
)
def test_a_second_signal(repeat_seconds: float, between: str, exit_code: int) -> None:
    program = PROGRAM.format(repeat_seconds=repeat_seconds, between=between)
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == exit_code
