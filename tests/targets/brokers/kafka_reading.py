"""Topics of a test's Kafka: created and read by aiokafka, a client that is not ours."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from servers.kafka import KafkaServer

PATIENCE_SECONDS = 300
"""On a machine of any speed: reaching it means that something hangs."""


@asynccontextmanager
async def admin(server: KafkaServer) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=server.addresses)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def create(
    server: KafkaServer, topic: str, partitions: int = 1, replicas: int | None = None, **configs: str
) -> None:
    """If `replicas` is not set, each node has one."""
    options = {name.replace("_", "."): text for name, text in configs.items()}
    async with admin(server) as client:
        await client.create_topics([NewTopic(topic, partitions, replicas or len(server.voters), topic_configs=options)])


async def described(server: KafkaServer, topic: str) -> list[Any]:
    """The partitions of a topic, by number, each with its `leader` and the `isr`: the nodes that are in sync."""
    async with admin(server) as client:
        (found,) = await client.describe_topics([topic])
    return sorted(found["partitions"], key=lambda each: int(each["partition"]))


async def until_described(server: KafkaServer, topic: str, holds: Callable[[list[Any]], bool]) -> None:
    """Wait for what a topic's partitions shall be."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with suppress(KafkaError):  # a node that was asked is down
                if holds(await described(server, topic)):
                    return
            await asyncio.sleep(0.1)  # between two looks


async def read(server: KafkaServer, topic: str) -> list[Any]:
    """All records of a topic."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=server.addresses, auto_offset_reset="earliest")
    await consumer.start()
    try:
        ends = await consumer.end_offsets(consumer.assignment())
        found: list[Any] = []
        while len(found) < sum(ends.values()):
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                found += records
        return found
    finally:
        await consumer.stop()
