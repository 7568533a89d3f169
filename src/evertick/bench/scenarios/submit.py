"""Scenario `submit`: how fast an App submits one by one: in transactions of its own, and in those of an application."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from evertick.bench import queries, workload
from evertick.bench.results import created_fields, rate_fields, total_fields
from evertick.bench.scenario import Option, PayloadBytes, Scenario, Seed
from evertick.bench.scenarios.register import UNLIMITED
from evertick.bench.testbed import Testbed
from evertick.sdk.app import App
from evertick.store.database import Session, connect
from evertick.usecases.tenants import tenants

Submit = Callable[[Session, str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class SubmitBenchOptions:
    submits: Annotated[int, Option("Number of submits of each kind.", 1, 10_000_000)] = 5_000
    connections: Annotated[int, Option("Number of the application's connections.", 1, 100)] = 16
    payload_bytes: PayloadBytes = 300
    seed: Seed = 1


async def run(testbed: Testbed, options: SubmitBenchOptions) -> dict[str, Any]:
    await tenants.edit(testbed.pool, tenants.public_id(testbed.tenant.tenant_id), UNLIMITED)
    payload = workload.payload(options.payload_bytes, options.seed)
    await testbed.pool.execute("CREATE TABLE IF NOT EXISTS bench_orders (note text NOT NULL)")
    async with App(name="bench", database_url=testbed.url) as app:

        async def own(_: Session, queue: str) -> None:
            await app.submit("handler", payload, delay="60d", queue=queue)

        async def inside(connection: Session, queue: str) -> None:
            async with _ordering(connection):
                await app.submit("handler", payload, delay="60d", queue=queue, connection=connection)

        async def by_function(connection: Session, queue: str) -> None:
            async with _ordering(connection):
                await connection.execute(
                    "SELECT submit('handler', $1::text::jsonb, queue => $2, delay => '60 days')",
                    json.dumps(payload),
                    queue,
                )

        async def nothing(connection: Session, _: str) -> None:
            async with _ordering(connection):
                pass

        bare_seconds = await _timed(testbed, options, nothing, "nothing")
        methods = {
            name: await _measured(testbed, options, submit, name)
            for name, submit in (("own", own), ("transaction", inside), ("function", by_function))
        }
    await testbed.pool.execute("DROP TABLE bench_orders")
    totals = total_fields(list(methods.values()), ("jobs", "missing", "duplicates", "seconds"))
    return {
        "runs": 0,
        **totals,
        "seconds": round(totals["seconds"], 3),
        "rate_per_second": methods["transaction"]["rate_per_second"],
        "without_submit": rate_fields(options.submits, bare_seconds),
        **methods,
    }


@asynccontextmanager
async def _ordering(connection: Session) -> AsyncIterator[None]:
    """A transaction of the application, which writes a row of its own."""
    async with connection.transaction():
        await connection.execute("INSERT INTO bench_orders VALUES ('one more')")
        yield


async def _measured(testbed: Testbed, options: SubmitBenchOptions, submit: Submit, name: str) -> dict[str, Any]:
    queue = f"bench-{name}"
    before = await queries.queue_jobs(testbed.pool, queue)
    seconds = await _timed(testbed, options, submit, queue)
    created = await queries.queue_jobs(testbed.pool, queue) - before
    return {**created_fields(created, options.submits), **rate_fields(created, seconds)}


async def _timed(testbed: Testbed, options: SubmitBenchOptions, submit: Submit, queue: str) -> float:
    testbed.progress.begin(f"submitting: {queue}", options.submits)
    left = iter(range(options.submits))

    async def work(connection: Session) -> None:
        for done in left:
            await submit(connection, queue)
            testbed.progress.reach(done)

    async with AsyncExitStack() as stack:
        connections = [await connect(testbed.url) for _ in range(options.connections)]
        for connection in connections:
            stack.push_async_callback(connection.close)
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for connection in connections:
                group.create_task(work(connection))
        return time.perf_counter() - began


SCENARIO = Scenario(
    "submit",
    "How fast an App submits one by one: in its own transactions, in an application's, and by the SQL function.",
    "evertick bench submit --submits 5000 --connections 16 --json",
    SubmitBenchOptions,
    run,
)
