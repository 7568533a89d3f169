"""Scenario `hot-second`: very many of many jobs are due at one and the same instant.

All is in place, warm and quiet before. Counted from that instant to the last outcome.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import Any

from evertick.bench import workload
from evertick.bench.measuring import Scenario
from evertick.bench.one_instant import Due, measure_from, prepare
from evertick.bench.preparing import gather_crowd, seconds_to_load, seconds_to_warm_up, warm_crew
from evertick.bench.processes import Process
from evertick.bench.stage import Stage


@dataclass(frozen=True, slots=True)
class Settings:
    """How many jobs there are, and how many of them are due at once."""

    jobs: int = 1_000_000
    due: int = 500_000
    rules: int = 1_000
    payload_bytes: int = 300
    workers: int = 1
    concurrency: int | None = None
    seed: int = 1


async def run(stage: Stage, settings: Settings) -> dict[str, Any]:
    gathered = await gather_crowd(stage, settings.jobs - settings.due, settings.rules, settings.seed)
    due_at = await prepare(stage, at_once(stage, settings, gathered.rate))
    return await measure_from(stage, due_at, settings.due)


def at_once(stage: Stage, settings: Settings, rate: float) -> Due:
    """What is due at one instant, with its processes, the scheduler first; loading goes at so many jobs per second."""
    payload = workload.payload(settings.payload_bytes, settings.seed)

    def jobs(due_at: datetime) -> Iterator[workload.Fields]:
        return repeat(workload.once(due_at, payload=payload), settings.due)

    async def start() -> Sequence[Process]:
        crew = await warm_crew(stage, settings.workers, settings.concurrency)
        return (crew.scheduler, *crew.workers)

    lead_seconds = seconds_to_load(settings.due, rate) + seconds_to_warm_up(settings.due)
    return Due(settings.due, lead_seconds, jobs, start)


SCENARIO = Scenario("hot-second", run)
