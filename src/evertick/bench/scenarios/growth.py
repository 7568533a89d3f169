"""Scenario `growth`: what things cost with few, many and very many jobs in one database that grows.

At each size: loading and the room that jobs take, the scheduler's look-up while nothing is due and while much is, and
one instant at which always as many are due.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evertick.bench import figures_queries
from evertick.bench.look_ups import LookUps, look_up_groups
from evertick.bench.measuring import Scenario
from evertick.bench.one_instant import measure_from, prepare
from evertick.bench.plot import Line, Panel
from evertick.bench.preparing import Gathered, gather_crowd, tidy
from evertick.bench.processes import Process, peak_memory_mb
from evertick.bench.scenarios import hot_second
from evertick.bench.stage import Stage

LOOKING_SECONDS = 3.0
"""So much earlier all is loaded, to look it up before it is due."""
HOT_SECOND = ("runs", "missing", "duplicates", "seconds", "rate_per_second", "first_start_seconds")


@dataclass(frozen=True, slots=True)
class Settings:
    """How many jobs stand there at each point, and how many others are due at one instant then."""

    sizes: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    due: int = 100_000
    rules: int = 1_000
    payload_bytes: int = 300
    workers: int = 1
    concurrency: int | None = None
    seed: int = 1


async def run(stage: Stage, settings: Settings) -> dict[str, Any]:
    points = [await _point(stage, settings, size) for size in sorted(settings.sizes)]
    totals = {name: sum(point["hot_second"][name] for point in points) for name in ("runs", "missing", "duplicates")}
    return {**totals, "points": points}


async def _point(stage: Stage, settings: Settings, size: int) -> dict[str, Any]:
    before = await figures_queries.sizes(stage.pool)
    gathered = await gather_crowd(stage, size, settings.rules, settings.seed)
    after = await figures_queries.sizes(stage.pool)
    await tidy(stage)
    idle = await look_up_groups(stage)
    hot, due, memory_mb = await _hot_second(stage, settings, size, gathered.rate)
    return {
        "jobs": size,
        **_loading(gathered, sum(after) - sum(before)),
        "us_per_run": round(1e6 * hot["seconds"] / hot["runs"], 2) if hot["runs"] else None,
        "hot_second": {name: hot[name] for name in HOT_SECOND},
        "look_up_ms": {"nothing_due": idle.figures, "due": due.figures},
        "scheduler_peak_memory_mb": memory_mb,
    }


def _loading(gathered: Gathered, grown_bytes: int) -> dict[str, Any]:
    return {
        "loaded": gathered.jobs,
        "loaded_per_second": round(gathered.rate),
        "us_per_job_loaded": round(1e6 / gathered.rate, 2),
        "bytes_per_job": round(grown_bytes / gathered.jobs),
    }


async def _hot_second(
    stage: Stage, settings: Settings, size: int, rate: float
) -> tuple[dict[str, Any], LookUps, float | None]:
    """What `hot-second` measures, the look-ups before it is due, and the scheduler's memory; all leave afterwards."""
    jobs = size + settings.due
    rest = (settings.rules, settings.payload_bytes, settings.workers, settings.concurrency, settings.seed)
    due = hot_second.at_once(stage, hot_second.Settings(jobs, settings.due, *rest), rate)
    looked: list[LookUps] = []
    processes: list[Process] = []

    async def look_and_start() -> Sequence[Process]:
        looked.append(await look_up_groups(stage))
        processes[:] = await due.start()
        return processes

    due_at = await prepare(stage, replace(due, lead_seconds=due.lead_seconds + LOOKING_SECONDS, start=look_and_start))
    figures = await measure_from(stage, due_at, settings.due)
    memory_mb = peak_memory_mb(processes[0].pid)
    await stage.fleet.stop(*processes)
    return figures, looked[-1], memory_mb


def panels(points: Sequence[Mapping[str, Any]]) -> tuple[Panel, ...]:
    """One for each cost, over the number of jobs."""

    def line(name: str, *path: str) -> Line:
        return Line(name, tuple((point["jobs"], _at(point, path)) for point in points))

    due = line("due", "look_up_ms", "due", "p50")
    nothing_due = line("nothing due", "look_up_ms", "nothing_due", "p50")
    return (
        Panel("Loading, µs per job", (line("", "us_per_job_loaded"),)),
        Panel("End to end, µs per run", (line("", "us_per_run"),)),
        Panel("Look-up, ms per group", (due, nothing_due)),
        Panel("Room, bytes per job", (line("", "bytes_per_job"),)),
    )


def _at(point: Mapping[str, Any], path: Sequence[str]) -> float | None:
    value: Any = point
    for name in path:
        value = value[name]
    return None if value is None else float(value)


SCENARIO = Scenario("growth", run)
