"""Bodies that cost much to read, to keep or to refuse. All need a key."""

import asyncio

from hostile.attacks.scene import WORKER_TARGET, Scene, again_and_again, all_of, held_for, lines_of, status_of

BATCH_BYTES = 33_554_432
NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}


async def worthless_lines(scene: Scene) -> None:
    """Batches as large as they may be: lines that are no JSON, empty lines, one huge line."""
    await _batches(scene, [(b"x\n" * (BATCH_BYTES // 2), NDJSON), (b"\n" * BATCH_BYTES, NDJSON)])


async def worthless_arrays(scene: Scene) -> None:
    """Deep and wide arrays, one huge line."""
    wide = b"[" + b"[]," * (BATCH_BYTES // 3 - 2) + b"[]]"
    deep = b"[" * (BATCH_BYTES // 2) + b"]" * (BATCH_BYTES // 2)
    await _batches(scene, [(wide, JSON), (deep, JSON), (b'"' + b"x" * (BATCH_BYTES - 2) + b'"', NDJSON)])


async def _batches(scene: Scene, bodies: list[tuple[bytes, dict[str, str]]]) -> None:
    async with scene.client() as client:

        async def send() -> None:
            for body, headers in bodies:
                scene.count(await client.post("/jobs:batch", content=body, headers=headers))

        await asyncio.gather(*(again_and_again(send) for _ in range(scene.size(1, 4))))


async def slow_bodies(scene: Scene) -> None:
    """Large bodies of which the last bytes come one by one."""
    size = 31 * 1_048_576
    part = b'"' + b"x" * 65_533 + b'",'

    async def send() -> None:
        head = scene.head("POST", "/api/v1/jobs:batch", scene.keys[0], Content_Length=size, **JSON_HEAD)
        async with scene.connection() as (reader, writer):
            writer.write(head + b"[")
            for _ in range(size // len(part) - 1):
                writer.write(part)
                await writer.drain()
            answering = asyncio.ensure_future(status_of(reader))
            is_held = await held_for(answering, 0.5)
            scene.seen["bodies held"] += is_held
            while await held_for(answering, 0.5):
                writer.write(b" ")
                await writer.drain()
            scene.seen[answering.result()] += 1

    await all_of(send() for _ in range(20))
    await asyncio.Event().wait()


JSON_HEAD = {"Content_Type": "application/json"}


async def amplified_faults(scene: Scene) -> None:
    """A small batch of which each line has as many faults as fit."""
    fields = {chr(number): 0 for number in range(ord("a"), ord("a") + 10)}
    lines = 10_000
    body = lines_of([fields] * lines)
    async with scene.client() as client:

        async def send() -> None:
            scene.count(await client.post("/jobs:batch", content=body, headers=NDJSON))
            scene.seen |= {"sent KB": len(body) // 1024, "lines": lines}

        await again_and_again(send)


async def hollow_payloads(scene: Scene) -> None:
    """Payloads of nothing but brackets, as many as a body may have."""
    hollow = b"[" + b"[]," * 349_000 + b"[]]"
    job = lines_of([{"schedule": "manual", "target": WORKER_TARGET}])[:-2] + b', "payload": ' + hollow + b"}"
    async with scene.client() as client:

        async def send() -> None:
            scene.count(await client.post("/jobs", content=job, headers=JSON))

        await asyncio.gather(*(again_and_again(send) for _ in range(4)))
