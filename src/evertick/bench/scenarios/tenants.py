"""Scenario `tenants`: what an idle dispatcher costs, and how punctual webhooks are, as the number of tenants grows."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any

from evertick.bench import queries, workload
from evertick.bench.results import count_fields, cpu_used, lag_fields, read_runs, total_fields
from evertick.bench.scenario import Option, Scenario, Seconds, Seed
from evertick.bench.steps import vacuum_and_checkpoint
from evertick.bench.testbed import Testbed
from evertick.bench.waiting import SOON, wait_for_ownership, wait_until_drained
from evertick.contract.target import HTTP_QUEUE
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create

STEPS = (1, 100)
CONCURRENT_CALLS = 4
NOT_DUE = timedelta(days=300)


@dataclass(frozen=True, slots=True)
class TenantsOptions:
    tenants: Annotated[
        int, Option("Number of tenants with an HTTP job each; 1 and 100 are measured as well.", 1, 1_000_000)
    ] = 10_000
    seconds: Seconds = 20.0
    webhooks: Annotated[int, Option("Number of webhooks, of tenants at random, one after the other.", 1, 100_000)] = 200
    calm_seconds: Annotated[float, Option("Pause before each measurement.", 0, 3600)] = 5.0
    seed: Seed = 1


async def run(testbed: Testbed, options: TenantsOptions) -> dict[str, Any]:
    receiver = await testbed.fleet.start("receiver", "evertick.bench.http_processes", "receive", "1")
    (url,) = json.loads(await receiver.line())
    testbed.progress.begin("starting scheduler and dispatcher")
    await asyncio.gather(testbed.fleet.scheduler(), testbed.fleet.scheduler("dispatcher"))
    await wait_for_ownership(testbed)
    tenants: list[TenantContext] = []
    results = []
    for count in sorted({min(step, options.tenants) for step in (*STEPS, options.tenants)}):
        tenants += await _add_tenants(testbed, count - len(tenants), url)
        await vacuum_and_checkpoint(testbed)
        await testbed.sleep(options.calm_seconds, "waiting before the measurement")
        results.append(
            {"tenants": count, **await _idle(testbed, options), **await _lag(testbed, options, tenants, url)}
        )
    return {**total_fields(results), "lag_ms": results[-1]["lag_ms"], "steps": results}


async def _add_tenants(testbed: Testbed, count: int, url: str) -> list[TenantContext]:
    """Tenants with one job that is not due."""
    tenants = [replace(testbed.tenant, tenant_id=each) for each in await queries.add_tenants(testbed.pool, count)]
    job = workload.once(await testbed.now() + NOT_DUE, target={"type": "http", "url": url}, name="not due")
    testbed.progress.begin("creating tenants with a job each", count)
    waiting = list(tenants)

    async def create_jobs() -> None:
        while waiting:
            await create(waiting.pop(), job)
            testbed.progress.reach(count - len(waiting))

    await asyncio.gather(*(create_jobs() for _ in range(CONCURRENT_CALLS)))
    return tenants


async def _idle(testbed: Testbed, options: TenantsOptions) -> dict[str, Any]:
    before, began_at = testbed.cpu_seconds(), await testbed.now()
    await testbed.sleep(options.seconds, "measuring while nothing is due")
    seconds = (await testbed.now() - began_at).total_seconds()
    return {"idle_cores_used": cpu_used(before, testbed.cpu_seconds(), seconds, digits=4)}


async def _lag(testbed: Testbed, options: TenantsOptions, tenants: Sequence[TenantContext], url: str) -> dict[str, Any]:
    """Webhooks that are due now, created at equal intervals."""
    choose = random.Random(options.seed)  # noqa: S311 - a repeatable workload, not a secret
    base, from_at = await queries.written_rows(testbed.pool), await testbed.now()
    jobs = workload.named([workload.once("now", target={"type": "http", "url": url})] * options.webhooks)
    testbed.progress.begin("webhooks one after the other", options.webhooks)
    loop = asyncio.get_running_loop()
    began, step = loop.time(), options.seconds / options.webhooks
    for number, job in enumerate(jobs):
        await asyncio.sleep(began + number * step - loop.time())
        await create(choose.choice(tenants), job)
        testbed.progress.reach(number)
    until_at = await testbed.now()
    await wait_until_drained(testbed, base, options.webhooks, "webhooks", due_before=until_at + SOON)
    runs = await read_runs(testbed, from_at, until_at, HTTP_QUEUE)
    return {**count_fields(runs, options.webhooks), **lag_fields(runs)}


SCENARIO = Scenario(
    "tenants",
    "What an idle dispatcher costs, and how punctual webhooks are, with 1, 100 and many tenants.",
    "evertick bench tenants --tenants 10000 --seconds 20 --json",
    TenantsOptions,
    run,
    reuses_database=False,
)
