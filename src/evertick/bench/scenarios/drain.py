"""Scenario `drain`: how fast workers run what is ready.

One-offs that do nothing are fired into the lanes while no worker runs. Then the workers start. The rate counts from the
first lease to the last outcome.
"""

from dataclasses import dataclass
from itertools import repeat
from typing import Any

from evertick.bench import workload
from evertick.bench.measuring import Scenario
from evertick.bench.preparing import drain_ready, make_ready, tidy
from evertick.bench.stage import Stage


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to run, and by how many."""

    runs: int = 500_000
    payload_bytes: int = 300
    workers: int = 1
    concurrency: int | None = None
    seed: int = 1


async def run(stage: Stage, settings: Settings) -> dict[str, Any]:
    fire_at = await stage.now()
    fields = workload.once(fire_at, payload=workload.payload(settings.payload_bytes, settings.seed))
    await stage.load(repeat(fields, settings.runs), settings.runs, "creating jobs")
    await tidy(stage)
    fire_seconds = await make_ready(stage, settings.runs)
    figures = await drain_ready(stage, fire_at, settings.runs, settings.workers, settings.concurrency)
    return {**figures, "making_ready_seconds": round(fire_seconds, 3)}


SCENARIO = Scenario("drain", run)
