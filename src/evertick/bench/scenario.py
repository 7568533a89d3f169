"""Scenarios: their declaration, and how one is run.

An option is declared once, at its field: type, default, limits, help text. The command line builds its commands from
these declarations. SIGINT and SIGTERM end a scenario but not the cleanup: a signal sets a flag and never raises in the
middle of a setup or a cleanup, so every server, database and process that was started is removed. Further signals
change nothing.
"""

import asyncio
import json
import os
import platform
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, asdict, dataclass
from types import FrameType
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import uvloop

import evertick
from evertick import tzdb
from evertick.bench import queries
from evertick.bench.testbed import BenchProgress, BenchServer, ServerChoice, Testbed, open_testbed, start_server
from evertick.runtime.process import expect_batches

Result: TypeAlias = dict[str, Any]
MAX_COUNT = 50_000_000
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Option:
    """How the command line shows and checks one option. `parse` raises ValueError with a message for the user."""

    help: str
    min: float | None = None
    max: float | None = None
    flags: str | None = None
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None


Jobs = Annotated[int, Option("Number of jobs.", 1, MAX_COUNT)]
Rules = Annotated[int, Option("Number of rules that the jobs in the background share.", 1, 100_000)]
PayloadBytes = Annotated[int, Option("Size of the payload of each job.", 0, 60_000)]
Seconds = Annotated[float, Option("Duration of the measurement.", 1, 86_400)]
Workers = Annotated[int, Option("Number of worker processes.", 1, 64)]
Concurrency = Annotated[int | None, Option("Concurrent runs in each worker. [default: that of workers]", 1, 10_000)]
Seed = Annotated[int, Option("Seed of the random workload. The same seed gives the same workload.")]


class Options(Protocol):
    """The options of a scenario: a dataclass. Each field is Annotated with an Option."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


OptionsT = TypeVar("OptionsT", bound=Options)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scenario(Generic[OptionsT]):
    """A measurement.

    `fault` checks options against each other and returns what is wrong. `reuses_database`: the jobs that remain are not
    due, so the next measurement can use the same database. `can_keep`: its database may stay. `plot` draws its result
    as SVG.
    """

    name: str
    summary: str
    example: str
    options: type[OptionsT]
    run: Callable[[Testbed, OptionsT], Coroutine[Any, Any, Result]]
    fault: Callable[[OptionsT], str | None] = lambda _: None
    reuses_database: bool = True
    can_keep: bool = False
    plot: Callable[[Mapping[str, Any]], str] | None = None


def is_sound(result: Mapping[str, Any]) -> bool:
    """Whether every expected run happened exactly once."""
    return not result.get("missing") and not result.get("duplicates")


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
    """The result of a scenario, with the machine and the server.

    Whatever happens, its processes, its database and its server are removed.
    """
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
    async with open_testbed(server, progress, reuse_database=scenario.reuses_database) as testbed:
        info = await queries.server(testbed.pool)
        result = await interruption.run(scenario.run(testbed, options))
    return {
        "scenario": scenario.name,
        **result,
        "settings": {**asdict(options), "place": server.kind, "server": json.loads(info.settings)},
        "machine": {**machine(), "postgres": info.version},
    }
