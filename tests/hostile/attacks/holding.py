"""What holds places for long: webhooks whose targets hang, long polls, searches over many jobs."""

import asyncio
from functools import partial
from typing import Any

from hostile.attacks.context import (
    WORKER_TARGET,
    AttackContext,
    held_for,
    ndjson,
    read_body,
    read_status,
    repeat_forever,
)

LONGEST_TIMEOUT = 86_400


async def hanging_targets(context: AttackContext) -> None:
    """Two tenants whose targets accept and never answer, each on a host of its own."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        context.counts["calls held"] += 1
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "0.0.0.0", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    for key, count, net in zip(context.keys, (280, 120), (1, 2), strict=True):
        urls = [f"http://127.{net}.{number // 250}.{number % 250 + 1}:{port}/" for number in range(count)]
        await _call_now(context, key, urls)
    await asyncio.Event().wait()


async def hanging_at_the_victims_host(context: AttackContext) -> None:
    """All slots of a host that others use, too."""
    await _call_now(context, context.keys[0], [f"{context.hook_url}/hang"] * 60)
    await asyncio.Event().wait()


async def _call_now(context: AttackContext, key: str, urls: list[str]) -> None:
    jobs = [
        {
            "schedule": "now",
            "target": {"type": "http", "url": url},
            "timeout_seconds": LONGEST_TIMEOUT,
            "max_retries": 0,
        }
        for url in urls
    ]
    async with context.client(key) as client:
        context.count(await client.post("/jobs:batch", json=jobs))


async def long_polls(context: AttackContext) -> None:
    """Workers that wait, each for a queue of its own on a connection of its own, and come again."""
    key = await context.key("worker")

    async def wait(number: int) -> None:
        body = f'{{"worker_id": "w{number}", "wait_seconds": 20}}'.encode()
        head = context.head("POST", f"/api/v1/queues/idle-{number}/lease", key, Content_Length=len(body))
        async with context.connection() as (reader, writer):
            while True:
                writer.write(head + body)
                context.counts["asked"] += 1
                answering = asyncio.ensure_future(read_status(reader))
                is_held = await held_for(answering, 1)
                context.counts["polls held"] += is_held
                status = await answering
                context.counts[status] += 1
                if status == "hung up":
                    return
                await read_body(reader)
                if status != "answers 200":
                    await asyncio.sleep(0.5)

    await asyncio.gather(*(repeat_forever(partial(wait, number)) for number in range(context.size(2000, 5000))))


async def label_searches(context: AttackContext) -> None:
    """Searches for what is nowhere, over many jobs."""
    job: dict[str, Any] = {"schedule": "manual", "target": WORKER_TARGET, "labels": {"team": "growth"}}
    async with context.client() as client:
        for _ in range(context.size(1, 5)):
            answer = await client.post(
                "/jobs:batch", content=ndjson([job] * 10_000), headers={"Content-Type": "application/x-ndjson"}
            )
            context.counts[f"batches {answer.status_code}"] += 1
            await asyncio.sleep(0 if not context.is_heavy else 10)  # the rate at which a tenant may submit

        async def search() -> None:
            context.count(await client.get("/jobs", params={"label": "team:nobody"}))

        await asyncio.gather(*(repeat_forever(search) for _ in range(8)))


async def slow_lists(context: AttackContext) -> None:
    """Lists of runs over as many queues as a tenant may have, and figures of them, many at once."""
    jobs = [
        {"schedule": "now", "target": {"type": "worker", "queue": f"slow-{number}", "handler": "none"}}
        for number in range(context.size(500, 900))
    ]
    async with context.client() as client:
        context.count(await client.post("/jobs:batch", json=jobs))

        async def list_runs() -> None:
            context.count(await client.get("/runs", params={"status": "dead", "limit": 200}))

        async def look() -> None:
            context.count(await client.get("/stats"))

        works = [list_runs, look] * 32
        await asyncio.gather(*(repeat_forever(work) for work in works))


async def large_answers(context: AttackContext) -> None:
    """Lists of jobs with payloads as large as they may be, on connections on which nothing is read."""
    job = {"schedule": "manual", "target": WORKER_TARGET, "payload": "x" * 65_000}
    async with context.client() as client:
        context.count(await client.post("/jobs:batch", json=[job] * 200))

    async def ask() -> None:
        async with context.connection() as (reader, writer):
            writer.write(context.head("GET", "/api/v1/jobs?limit=200", context.keys[0]))
            context.counts[await read_status(reader)] += 1
            await asyncio.sleep(60)  # what was sent stays in the buffers, which are small

    await asyncio.gather(*(repeat_forever(ask) for _ in range(context.size(100, 500))))
