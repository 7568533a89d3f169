"""Runs one scenario from its setting up to its clearing away, and adds to its figures what they were measured on."""

from collections.abc import Callable, Coroutine
from dataclasses import Field, asdict, dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import uvloop

from evertick.bench.interruption import Interruption, interruptible
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
        facts = await bench_figures.server(stage.pool)
        figures = await interruption.end(scenario.run(stage, settings))
    return {
        "scenario": scenario.name,
        **figures,
        "settings": {**asdict(settings), "place": ground.kind, "server": facts.settings},
        "machine": {**machine(), "postgres": facts.version},
    }
