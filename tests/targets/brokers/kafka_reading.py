"""Topics of a test's Kafka: created and read by aiokafka, a client that is not ours."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from servers.kafka import KafkaServer


@asynccontextmanager
async def admin(server: KafkaServer) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{server.port}")
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def create(server: KafkaServer, topic: str, partitions: int = 1, **configs: str) -> None:
    options = {name.replace("_", "."): text for name, text in configs.items()}
    async with admin(server) as client:
        await client.create_topics([NewTopic(topic, partitions, 1, topic_configs=options)])


async def read(server: KafkaServer, topic: str) -> list[Any]:
    """All records of a topic."""
    servers = f"127.0.0.1:{server.port}"
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
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
