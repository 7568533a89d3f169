"""Scenario `drain`: how fast workers run ready attempts.

One-off jobs are fired into the lanes while no worker runs. Then the workers start. The rate counts from the first lease
to the last outcome.
"""

from dataclasses import dataclass
from itertools import repeat
from typing import Annotated, Any

from evertick.bench import workload
from evertick.bench.scenario import MAX_COUNT, Concurrency, Option, PayloadBytes, Scenario, Seed, Workers
from evertick.bench.steps import drain, fire_all, vacuum_and_checkpoint
from evertick.bench.testbed import Testbed


@dataclass(frozen=True, slots=True)
class DrainOptions:
    runs: Annotated[int, Option("Number of ready runs.", 1, MAX_COUNT)] = 500_000
    payload_bytes: PayloadBytes = 300
    workers: Workers = 1
    concurrency: Concurrency = None
    seed: Seed = 1


async def run(testbed: Testbed, options: DrainOptions) -> dict[str, Any]:
    fire_at = await testbed.now()
    fields = workload.once(fire_at, payload=workload.payload(options.payload_bytes, options.seed))
    await testbed.load(repeat(fields, options.runs), options.runs, "creating jobs")
    await vacuum_and_checkpoint(testbed)
    fire_seconds = await fire_all(testbed, options.runs)
    result = await drain(testbed, fire_at, options.runs, options.workers, options.concurrency)
    return {**result, "making_ready_seconds": round(fire_seconds, 3)}


SCENARIO = Scenario(
    "drain",
    "How fast workers run ready attempts: from the first lease to the last outcome, with a handler that does nothing.",
    "evertick bench drain --runs 100000 --workers 1 --json",
    DrainOptions,
    run,
)
