"""What a publish costs the process that makes it. Rates are printed; on a busy machine they say little."""

import asyncio
import sys
import time
from collections.abc import Callable

import aio_pika
import nats
import pytest

from evertick.targets.brokers import kafka, nats as nats_module, rabbitmq, redis_stream
from evertick.targets.brokers.publisher import Message, Publisher, Sending
from redis_server import redis_server
from servers.kafka import KafkaServer
from servers.nats import NatsServer
from servers.rabbitmq import PASSWORD, USER, RabbitMqServer
from targets.brokers.kafka_reading import create
from targets.brokers.publishing import message, publishing

pytestmark = pytest.mark.campaign

MESSAGES = 20_000
AT_ONCE = 1000
BATCH = 100
MOST_MICROSECONDS = 100
"""Of CPU time: ten thousand messages a second on one core. It was 30 when it was measured."""


class Counted(Sending):
    """Says when all of its batch are stored."""

    def __init__(self, message: Message, ends: "Ends") -> None:
        super().__init__(message)
        self.ends = ends

    def ended(self, receipt: str | None, failure: Exception | None) -> None:
        self.ends.left -= 1
        self.ends.failure = self.ends.failure or failure
        if not self.ends.left:
            self.ends.all.set()


class Ends:
    def __init__(self, left: int) -> None:
        self.left = left
        self.all = asyncio.Event()
        self.failure: Exception | None = None


async def measure(name: str, publisher: Publisher, new: Callable[[int], Message]) -> None:
    batches = iter(range(0, MESSAGES, BATCH))

    async def call() -> None:
        for first in batches:
            ends = Ends(BATCH)
            await publisher.send([Counted(new(first + number), ends) for number in range(BATCH)])
            await ends.all.wait()
            assert ends.failure is None

    await publisher.publish(new(MESSAGES))
    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(call() for _ in range(AT_ONCE // BATCH)))
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    each = cpu / MESSAGES * 1e6
    sys.stdout.write(f"{name}: {MESSAGES / seconds:,.0f}/s with {AT_ONCE} at once, {each:.0f} µs of CPU time each\n")
    assert each < MOST_MICROSECONDS


async def test_a_message_to_kafka_costs_little(kafka_server: KafkaServer) -> None:
    await create(kafka_server, "cost", partitions=6)
    settings = {"bootstrap_servers": [f"localhost:{kafka_server.port}"], "security_protocol": "PLAINTEXT"}
    async with publishing(kafka.open_publisher, settings) as publisher:
        await measure("kafka", publisher, lambda n: message(n, topic="cost", key=f"job_{n % 500}"))


async def test_a_message_to_rabbitmq_costs_little(rabbitmq_server: RabbitMqServer) -> None:
    async with await aio_pika.connect(rabbitmq_server.url) as connection:
        await (await connection.channel()).declare_queue("cost", durable=True)
    settings = {"host": "localhost", "port": rabbitmq_server.port, "username": USER, "tls": False}
    async with publishing(rabbitmq.open_publisher, settings, {"password": PASSWORD}) as publisher:
        await measure("rabbitmq", publisher, lambda n: message(n, exchange="", routing_key="cost"))


async def test_a_message_to_nats_costs_little(nats_server: NatsServer) -> None:
    client = await nats.connect(f"nats://127.0.0.1:{nats_server.port}")
    await client.jetstream().add_stream(name="cost", subjects=["cost.>"])
    await client.close()
    settings = {"servers": [f"localhost:{nats_server.port}"], "tls": False}
    async with publishing(nats_module.open_publisher, settings) as publisher:
        await measure("nats", publisher, lambda n: message(n, subject="cost.a"))


async def test_a_message_to_redis_costs_little() -> None:
    async with redis_server() as server:
        settings = {"host": "localhost", "port": server.port, "tls": False}
        async with publishing(redis_stream.open_publisher, settings) as publisher:
            await measure("redis", publisher, lambda n: message(n, stream="cost"))
