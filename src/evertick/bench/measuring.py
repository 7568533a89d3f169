"""Runs one scenario from its setting up to its clearing away, and adds to its figures what they were measured on."""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, asdict, dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import uvloop

from evertick.bench.machine import machine
from evertick.bench.progress import Progress
from evertick.bench.server_lifetime import Ground, Place, database, server
from evertick.bench.stage import Stage, staged
from evertick.runtime.garbage import expect_batches
from evertick.store import bench_figures


class Sized(Protocol):
    """Settings of a scenario: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


S = TypeVar("S", bound=Sized)


@dataclass(frozen=True, slots=True)
class Scenario(Generic[S]):
    """A measurement by name. `reuses`: it leaves only quiet jobs behind, so the next may use the same database."""

    name: str
    run: Callable[[Stage, S], Awaitable[dict[str, Any]]]
    reuses: bool = True


def measure(scenario: Scenario[S], settings: S, place: Place, progress: Progress) -> dict[str, Any]:
    """One object with all figures. Whatever happens, processes are stopped and what was made for this is removed."""
    expect_batches()
    with _interrupted_by_sigterm():
        progress.begin("starting")
        with server(place) as ground:
            try:
                return uvloop.run(_measure(scenario, settings, ground, progress))
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None


def is_sound(result: dict[str, Any]) -> bool:
    """Whether everything that was to happen happened, and once."""
    return not result.get("missing") and not result.get("duplicates")


async def _measure(scenario: Scenario[S], settings: S, ground: Ground, progress: Progress) -> dict[str, Any]:
    if threading.current_thread() is threading.main_thread():
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with database(ground, reuse=scenario.reuses) as url, staged(ground, url, progress) as stage:
        facts = await bench_figures.server(stage.pool)
        figures = await scenario.run(stage, settings)
    return {
        "scenario": scenario.name,
        **figures,
        "settings": {**asdict(settings), "place": ground.kind, "server": facts.settings},
        "machine": {**machine(), "postgres": facts.version},
    }


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends a measurement as Ctrl-C does: in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
