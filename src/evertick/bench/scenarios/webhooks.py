"""Scenario `webhooks`: how fast dispatchers deliver a burst of webhooks to local receivers."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from evertick.bench import workload
from evertick.bench.processes import Process
from evertick.bench.scenario import Option, PayloadBytes, Scenario, Seed
from evertick.bench.steps import Burst, measure_burst, prepare_burst, seconds_to_load, seconds_to_warm_up
from evertick.bench.testbed import Testbed
from evertick.bench.waiting import wait_for_ownership
from evertick.contract.target import HTTP_QUEUE

LOADED_PER_SECOND = 2_000
"""Slower than any machine. This scenario has no background jobs to estimate the rate from."""


@dataclass(frozen=True, slots=True)
class WebhooksOptions:
    deliveries: Annotated[int, Option("Number of webhooks, due at one instant.", 1, 10_000_000)] = 20_000
    hosts: Annotated[int, Option("Number of local receivers.", 1, 254)] = 4
    payload_bytes: PayloadBytes = 300
    dispatchers: Annotated[int, Option("Number of dispatcher processes.", 1, 64)] = 1
    seed: Seed = 1


async def run(testbed: Testbed, options: WebhooksOptions) -> dict[str, Any]:
    receiver = await testbed.fleet.start("receiver", "evertick.bench.http_processes", "receive", str(options.hosts))
    urls = json.loads(await receiver.line())
    payload = workload.payload(options.payload_bytes, options.seed)

    def jobs(due_at: datetime) -> Iterator[workload.Fields]:
        fields = workload.once(due_at, payload=payload)
        hosts = [{**fields, "target": {"type": "http", "url": url}} for url in urls]
        return (hosts[number % len(hosts)] for number in range(options.deliveries))

    async def start() -> Sequence[Process]:
        testbed.progress.begin("starting scheduler and dispatchers")
        dispatchers = (testbed.fleet.scheduler("dispatcher") for _ in range(options.dispatchers))
        processes = await asyncio.gather(testbed.fleet.scheduler(), *dispatchers)
        await wait_for_ownership(testbed)
        return processes

    lead_seconds = seconds_to_load(options.deliveries, LOADED_PER_SECOND) + seconds_to_warm_up(options.deliveries)
    due_at, _ = await prepare_burst(testbed, Burst(options.deliveries, lead_seconds, jobs, start))
    before = await _received(receiver)
    result = await measure_burst(testbed, due_at, options.deliveries, HTTP_QUEUE)
    received = await _received(receiver) - before
    # A deferred attempt is not a duplicate. A second request is.
    return {**result, "duplicates": max(received - options.deliveries, 0), "received": received}


async def _received(receiver: Process) -> int:
    count: int = json.loads(await receiver.ask())
    return count


SCENARIO = Scenario(
    "webhooks",
    "How fast webhooks are delivered that are due at one instant, to local receivers that answer immediately.",
    "evertick bench webhooks --deliveries 20000 --hosts 4 --json",
    WebhooksOptions,
    run,
)
