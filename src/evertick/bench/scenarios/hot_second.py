"""Scenario `hot-second`: how fast a burst of jobs runs that are due at one instant.

Processes are started and warmed up before. The rate counts from the instant to the last outcome.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import Annotated, Any

from evertick.bench import steps, workload
from evertick.bench.processes import Process
from evertick.bench.scenario import MAX_COUNT, Concurrency, Jobs, Option, PayloadBytes, Rules, Scenario, Seed, Workers
from evertick.bench.steps import Burst
from evertick.bench.testbed import Testbed


@dataclass(frozen=True, slots=True)
class HotSecondOptions:
    jobs: Jobs = 1_000_000
    due: Annotated[int, Option("How many of them are due at one instant.", 1, MAX_COUNT)] = 500_000
    rules: Rules = 1_000
    payload_bytes: PayloadBytes = 300
    workers: Workers = 1
    concurrency: Concurrency = None
    seed: Seed = 1


async def run(testbed: Testbed, options: HotSecondOptions) -> dict[str, Any]:
    load = await steps.load_background_jobs(testbed, options.jobs - options.due, options.rules, options.seed)
    due_at, _ = await steps.prepare_burst(testbed, burst_of(testbed, options, load.rate))
    return await steps.measure_burst(testbed, due_at, options.due)


def burst_of(testbed: Testbed, options: HotSecondOptions, rate: float) -> Burst:
    """The burst and its processes, the scheduler first. `rate` is how many jobs are loaded per second."""
    payload = workload.payload(options.payload_bytes, options.seed)

    def jobs(due_at: datetime) -> Iterator[workload.Fields]:
        return repeat(workload.once(due_at, payload=payload), options.due)

    async def start() -> Sequence[Process]:
        return await steps.start_cluster(testbed, options.workers, options.concurrency)

    lead_seconds = steps.seconds_to_load(options.due, rate) + steps.seconds_to_warm_up(options.due)
    return Burst(options.due, lead_seconds, jobs, start)


def fault(options: HotSecondOptions) -> str | None:
    return "--due must not be more than --jobs" if options.due > options.jobs else None


SCENARIO = Scenario(
    "hot-second",
    "How fast a burst of jobs runs that are due at one instant: from the instant to the last outcome.",
    "evertick bench hot-second --jobs 200000 --due 100000 --json",
    HotSecondOptions,
    run,
    fault,
)
