"""What holds places for long: webhooks whose targets hang, long polls, searches over many jobs."""

import asyncio
from functools import partial
from typing import Any

from hostile.attacks.scene import WORKER_TARGET, Scene, again_and_again, held_for, lines_of, rest_of, status_of

LONGEST_TIMEOUT = 86_400


async def hanging_targets(scene: Scene) -> None:
    """Two tenants whose targets accept and never answer, each on a host of its own."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        scene.seen["calls held"] += 1
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "0.0.0.0", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    for key, count, net in zip(scene.keys, (280, 120), (1, 2), strict=True):
        urls = [f"http://127.{net}.{number // 250}.{number % 250 + 1}:{port}/" for number in range(count)]
        await _call_now(scene, key, urls)
    await asyncio.Event().wait()


async def hanging_at_the_victims_host(scene: Scene) -> None:
    """All slots of a host that others use, too."""
    await _call_now(scene, scene.keys[0], [f"{scene.hook_url}/hang"] * 60)
    await asyncio.Event().wait()


async def _call_now(scene: Scene, key: str, urls: list[str]) -> None:
    jobs = [
        {
            "schedule": "now",
            "target": {"type": "http", "url": url},
            "timeout_seconds": LONGEST_TIMEOUT,
            "max_retries": 0,
        }
        for url in urls
    ]
    async with scene.client(key) as client:
        scene.count(await client.post("/jobs:batch", json=jobs))


async def long_polls(scene: Scene) -> None:
    """Workers that wait, each for a queue of its own on a connection of its own, and come again."""
    key = await scene.key("worker")

    async def wait(number: int) -> None:
        body = f'{{"worker_id": "w{number}", "wait_seconds": 20}}'.encode()
        head = scene.head("POST", f"/api/v1/queues/idle-{number}/lease", key, Content_Length=len(body))
        async with scene.connection() as (reader, writer):
            while True:
                writer.write(head + body)
                scene.seen["asked"] += 1
                answering = asyncio.ensure_future(status_of(reader))
                is_held = await held_for(answering, 1)
                scene.seen["polls held"] += is_held
                status = await answering
                scene.seen[status] += 1
                if status == "hung up":
                    return
                await rest_of(reader)
                if status != "answers 200":
                    await asyncio.sleep(0.5)

    await asyncio.gather(*(again_and_again(partial(wait, number)) for number in range(scene.size(2000, 5000))))


async def label_searches(scene: Scene) -> None:
    """Searches for what is nowhere, over many jobs."""
    job: dict[str, Any] = {"schedule": "manual", "target": WORKER_TARGET, "labels": {"team": "growth"}}
    async with scene.client() as client:
        for _ in range(scene.size(1, 5)):
            answer = await client.post(
                "/jobs:batch", content=lines_of([job] * 10_000), headers={"Content-Type": "application/x-ndjson"}
            )
            scene.seen[f"batches {answer.status_code}"] += 1
            await asyncio.sleep(0 if not scene.is_heavy else 10)  # the rate at which a tenant may submit

        async def search() -> None:
            scene.count(await client.get("/jobs", params={"label": "team:nobody"}))

        await asyncio.gather(*(again_and_again(search) for _ in range(8)))


async def slow_lists(scene: Scene) -> None:
    """Lists of runs over as many queues as a tenant may have, and figures of them, many at once."""
    jobs = [
        {"schedule": "now", "target": {"type": "worker", "queue": f"slow-{number}", "handler": "none"}}
        for number in range(scene.size(500, 900))
    ]
    async with scene.client() as client:
        scene.count(await client.post("/jobs:batch", json=jobs))

        async def list_runs() -> None:
            scene.count(await client.get("/runs", params={"status": "dead", "limit": 200}))

        async def look() -> None:
            scene.count(await client.get("/stats"))

        works = [list_runs, look] * 32
        await asyncio.gather(*(again_and_again(work) for work in works))


async def large_answers(scene: Scene) -> None:
    """Lists of jobs with payloads as large as they may be, on connections on which nothing is read."""
    job = {"schedule": "manual", "target": WORKER_TARGET, "payload": "x" * 65_000}
    async with scene.client() as client:
        scene.count(await client.post("/jobs:batch", json=[job] * 200))

    async def ask() -> None:
        async with scene.connection() as (reader, writer):
            writer.write(scene.head("GET", "/api/v1/jobs?limit=200", scene.keys[0]))
            scene.seen[await status_of(reader)] += 1
            await asyncio.sleep(60)  # what was sent stays in the buffers, which are small

    await asyncio.gather(*(again_and_again(ask) for _ in range(scene.size(100, 500))))
