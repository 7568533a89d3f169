"""Runs one scenario with its setup and cleanup, and adds the machine and the server to its result.

SIGINT and SIGTERM end the scenario but not the cleanup. A signal sets a flag and never raises in the middle of a setup
or a cleanup: every server, database and process that was started is removed. Further signals change nothing.
"""

import asyncio
import os
import platform
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType
from typing import Any, TypeVar

import uvloop

import evertick
from evertick import tzdb
from evertick.bench import queries
from evertick.bench.scenario import OptionsT, Result, Scenario
from evertick.bench.server import BenchServer, ServerChoice, create_database, start_server
from evertick.bench.testbed import BenchProgress, open_testbed
from evertick.runtime.process import expect_batches


def machine() -> dict[str, str | int]:
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count() or 1,
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "evertick": evertick.__version__,
        "tzdb": tzdb.VERSION,
    }


POLL_SECONDS = 0.1

T = TypeVar("T")


class Interruption:
    """Whether a signal has arrived."""

    def __init__(self) -> None:
        self.is_requested = False

    def request(self, _number: int, _frame: FrameType | None) -> None:
        self.is_requested = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has arrived."""
        if self.is_requested:
            raise KeyboardInterrupt

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work. After a signal the work is cancelled, and KeyboardInterrupt is raised when it has ended.

        The work is a task of its own, so the caller is not cancelled and can clean up. It is cancelled until it has
        ended, because a cancellation can be lost (`asyncio.wait_for` in Python 3.11 drops one that races a result).
        """
        working = asyncio.create_task(work)
        while not working.done():
            if self.is_requested:
                working.cancel()
            await asyncio.wait({working}, timeout=POLL_SECONDS)
        if working.cancelled() or working.exception() is not None:
            self.check()  # after a signal, any exception of the work is a consequence of the cancellation
        return await working


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Handle signals as requests. This includes SIGINT in background jobs of a shell, which ignore it otherwise."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, interruption.request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def measure(scenario: Scenario[OptionsT], options: OptionsT, choice: ServerChoice, progress: BenchProgress) -> Result:
    """The result of a scenario. Whatever happens, its processes, its database and its server are removed."""
    expect_batches()
    with interruptible() as interruption:
        progress.begin("starting")
        with start_server(choice) as server:
            interruption.check()
            return uvloop.run(_measure(scenario, options, server, progress, interruption))


async def _measure(
    scenario: Scenario[OptionsT],
    options: OptionsT,
    server: BenchServer,
    progress: BenchProgress,
    interruption: Interruption,
) -> Result:
    async with (
        create_database(server, reuse=scenario.reuses_database) as url,
        open_testbed(server, url, progress) as testbed,
    ):
        info = await queries.server(testbed.pool)
        result = await interruption.run(scenario.run(testbed, options))
    return {
        "scenario": scenario.name,
        **result,
        "settings": {**asdict(options), "place": server.kind, "server": info.settings},
        "machine": {**machine(), "postgres": info.version},
    }
