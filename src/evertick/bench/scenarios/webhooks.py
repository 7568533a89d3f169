"""Scenario `webhooks`: how fast a dispatcher delivers what is due at one instant to receivers that answer at once."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from evertick.bench import workload
from evertick.bench.scenario import Scenario
from evertick.bench.burst import Due, measure_from, prepare
from evertick.bench.preparation import seconds_to_load, seconds_to_warm_up
from evertick.bench.processes import Process
from evertick.bench.testbed import Testbed
from evertick.bench.waiting import until_held
from evertick.contract.target import HTTP_QUEUE

LOADED_PER_SECOND = 2_000
"""Slower than any machine: there is no crowd here that tells how fast it is."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How many deliveries, to how many hosts, by how many dispatchers."""

    deliveries: int = 20_000
    hosts: int = 4
    payload_bytes: int = 300
    dispatchers: int = 1
    seed: int = 1


async def run(stage: Testbed, settings: Settings) -> dict[str, Any]:
    receiver = await stage.fleet.start("receiver", "evertick.bench.receiver", str(settings.hosts))
    urls = json.loads(await receiver.line())
    payload = workload.payload(settings.payload_bytes, settings.seed)

    def jobs(due_at: datetime) -> Iterator[workload.Fields]:
        fields = workload.once(due_at, payload=payload)
        hosts = [{**fields, "target": {"type": "http", "url": url}} for url in urls]
        return (hosts[number % len(hosts)] for number in range(settings.deliveries))

    async def start() -> Sequence[Process]:
        stage.progress.begin("starting scheduler and dispatchers")
        dispatchers = (stage.fleet.scheduler("dispatcher") for _ in range(settings.dispatchers))
        crew = await asyncio.gather(stage.fleet.scheduler(), *dispatchers)
        await until_held(stage)
        return crew

    lead_seconds = seconds_to_load(settings.deliveries, LOADED_PER_SECOND) + seconds_to_warm_up(settings.deliveries)
    due_at = await prepare(stage, Due(settings.deliveries, lead_seconds, jobs, start))
    before = await _received(receiver)
    figures = await measure_from(stage, due_at, settings.deliveries, HTTP_QUEUE)
    received = await _received(receiver) - before
    # An attempt that a busy host put off is no duplicate; what came twice is.
    return {**figures, "duplicates": max(received - settings.deliveries, 0), "received": received}


async def _received(receiver: Process) -> int:
    count: int = json.loads(await receiver.ask())
    return count


SCENARIO = Scenario("webhooks", run)
