"""Runs one scenario from its setting up to its clearing away, and adds to its figures what they were measured on.

SIGINT and SIGTERM end the scenario, and only that, at any moment. A signal sets a flag. It never raises in the middle
of making or removing something, so a server, a database or a process that was begun is always known to the one who
removes it. Further signals change nothing.
"""

import asyncio
import os
import platform
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import Field, asdict, dataclass
from types import FrameType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import uvloop

import evertick
from evertick import tzdb
from evertick.bench import figures_queries
from evertick.bench.server_lifetime import Ground, Place, database, server
from evertick.bench.stage import Progress, Stage, staged
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


LOOK_SECONDS = 0.1

T = TypeVar("T")


class Interruption:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if somebody has asked."""
        if self.is_asked:
            raise KeyboardInterrupt

    async def end(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of some work, or KeyboardInterrupt once it has ended because somebody asked.

        The work is a task of its own: its caller is not cancelled and clears away undisturbed. It is cancelled until
        it has ended, for a cancellation can be lost (`asyncio.wait_for` in Python 3.11 drops one that races a result).
        """
        working = asyncio.create_task(work)
        while not working.done():
            if self.is_asked:
                working.cancel()
            await asyncio.wait({working}, timeout=LOOK_SECONDS)
        if working.cancelled() or working.exception() is not None:
            self.check()  # whatever ended it then, it was asked to end
        return await working


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Signals as a request, until the end; also those that were ignored, as a shell's background jobs ignore SIGINT."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, interruption.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Sized(Protocol):
    """Settings of a scenario: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


S = TypeVar("S", bound=Sized)


@dataclass(frozen=True, slots=True)
class Scenario(Generic[S]):
    """A measurement by name. `reuses`: it leaves only quiet jobs behind, so the next may use the same database."""

    name: str
    run: Callable[[Stage, S], Coroutine[Any, Any, dict[str, Any]]]
    reuses: bool = True


def measure(scenario: Scenario[S], settings: S, place: Place, progress: Progress) -> dict[str, Any]:
    """One object with all figures. Whatever happens, processes are stopped and what was made for this is removed."""
    expect_batches()
    with interruptible() as interruption:
        progress.begin("starting")
        with server(place) as ground:
            interruption.check()
            return uvloop.run(_measure(scenario, settings, ground, progress, interruption))


def is_sound(result: dict[str, Any]) -> bool:
    """Whether everything that was to happen happened, and once."""
    return not result.get("missing") and not result.get("duplicates")


async def _measure(
    scenario: Scenario[S], settings: S, ground: Ground, progress: Progress, interruption: Interruption
) -> dict[str, Any]:
    async with database(ground, reuse=scenario.reuses) as url, staged(ground, url, progress) as stage:
        facts = await figures_queries.server(stage.pool)
        figures = await interruption.end(scenario.run(stage, settings))
    return {
        "scenario": scenario.name,
        **figures,
        "settings": {**asdict(settings), "place": ground.kind, "server": facts.settings},
        "machine": {**machine(), "postgres": facts.version},
    }
