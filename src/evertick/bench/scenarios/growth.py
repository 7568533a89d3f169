"""Scenario `growth`: what jobs and runs cost as the number of jobs in one database grows.

At each size: the cost of loading, the bytes of a job, the scheduler's lookup while nothing is due and while much is
due, and a burst of constant size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Annotated, Any

from evertick.bench import queries
from evertick.bench.plot import Panel, Series, draw
from evertick.bench.processes import Process, peak_memory_mb
from evertick.bench.results import LookupTimes, time_load_lookups, total_fields
from evertick.bench.scenario import MAX_COUNT, Concurrency, Option, PayloadBytes, Rules, Scenario, Seed, Workers
from evertick.bench.scenarios import hot_second
from evertick.bench.scenarios.hot_second import HotSecondOptions
from evertick.bench.steps import load_background_jobs, measure_burst, prepare_burst, vacuum_and_checkpoint
from evertick.bench.testbed import Testbed

LOOKUP_SECONDS = 3.0
"""Time between loading and the burst for measuring lookups."""
HOT_SECOND = ("runs", "missing", "duplicates", "seconds", "rate_per_second", "first_start_seconds")


def parse_sizes(text: str) -> tuple[int, ...]:
    """Numbers separated by commas, each greater than the one before."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError("--sizes must be numbers separated by commas")
    counts = tuple(int(part) for part in parts)
    if any(later <= earlier for earlier, later in zip((0, *counts), counts, strict=False)) or counts[-1] > MAX_COUNT:
        raise ValueError(f"--sizes must be in ascending order, from 1 to {MAX_COUNT}")
    return counts


@dataclass(frozen=True, slots=True)
class GrowthOptions:
    sizes: Annotated[
        tuple[int, ...],
        Option("Numbers of jobs at which to measure, in ascending order.", metavar="N,N,…", parse=parse_sizes),
    ] = (100_000, 1_000_000, 10_000_000)
    due: Annotated[int, Option("Number of further jobs that are due at one instant, at each size.", 1, MAX_COUNT)] = (
        100_000
    )
    rules: Rules = 1_000
    payload_bytes: PayloadBytes = 300
    workers: Workers = 1
    concurrency: Concurrency = None
    seed: Seed = 1


async def run(testbed: Testbed, options: GrowthOptions) -> dict[str, Any]:
    points = [await _point(testbed, options, size) for size in sorted(options.sizes)]
    return {**total_fields([point["hot_second"] for point in points]), "points": points}


async def _point(testbed: Testbed, options: GrowthOptions, size: int) -> dict[str, Any]:
    before = await queries.sizes(testbed.pool)
    load = await load_background_jobs(testbed, size, options.rules, options.seed)
    after = await queries.sizes(testbed.pool)
    await vacuum_and_checkpoint(testbed)
    idle = await time_load_lookups(testbed)
    hot, due, memory_mb = await _hot_second(testbed, options, size, load.rate)
    return {
        "jobs": size,
        "loaded": load.jobs,
        "loaded_per_second": round(load.rate),
        "us_per_job_loaded": round(1e6 / load.rate, 2),
        "bytes_per_job": round((sum(after) - sum(before)) / load.jobs),
        "us_per_run": round(1e6 * hot["seconds"] / hot["runs"], 2) if hot["runs"] else None,
        "hot_second": {name: hot[name] for name in HOT_SECOND},
        "look_up_ms": {"nothing_due": idle.fields, "due": due.fields},
        "scheduler_peak_memory_mb": memory_mb,
    }


async def _hot_second(
    testbed: Testbed, options: GrowthOptions, size: int, rate: float
) -> tuple[dict[str, Any], LookupTimes, float | None]:
    """The result of a burst, the lookups before it, and the scheduler's memory. Processes are stopped afterwards."""
    jobs = size + options.due
    rest = (options.rules, options.payload_bytes, options.workers, options.concurrency, options.seed)
    burst = hot_second.burst_of(testbed, HotSecondOptions(jobs, options.due, *rest), rate)
    lookups: list[LookupTimes] = []

    async def look_up_and_start() -> Sequence[Process]:
        lookups.append(await time_load_lookups(testbed))
        return await burst.start()

    due_at, processes = await prepare_burst(
        testbed, replace(burst, lead_seconds=burst.lead_seconds + LOOKUP_SECONDS, start=look_up_and_start)
    )
    result = await measure_burst(testbed, due_at, options.due)
    memory_mb = peak_memory_mb(processes[0].pid)
    await testbed.fleet.stop(*processes)
    return result, lookups[-1], memory_mb


def panels(points: Sequence[Mapping[str, Any]]) -> tuple[Panel, ...]:
    """One panel for each cost, over the number of jobs."""

    def series(name: str, cost: Callable[[Mapping[str, Any]], float | None]) -> Series:
        return Series(name, tuple((point["jobs"], cost(point)) for point in points))

    due = series("due", lambda point: point["look_up_ms"]["due"]["p50"])
    nothing_due = series("nothing due", lambda point: point["look_up_ms"]["nothing_due"]["p50"])
    return (
        Panel("Loading, µs per job", (series("", itemgetter("us_per_job_loaded")),)),
        Panel("End to end, µs per run", (series("", itemgetter("us_per_run")),)),
        Panel("Lookup, ms per group", (due, nothing_due)),
        Panel("Storage, bytes per job", (series("", itemgetter("bytes_per_job")),)),
    )


def plot(result: Mapping[str, Any]) -> str:
    return draw("Costs by number of jobs", "jobs", panels(result["points"]))


SCENARIO = Scenario(
    "growth",
    "What loading, running, looking up and storing cost as the number of jobs in one database grows.",
    "evertick bench growth --sizes 100000,1000000 --due 100000 --svg growth.svg --json",
    GrowthOptions,
    run,
    plot=plot,
)
