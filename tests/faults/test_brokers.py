"""Brokers that are killed under load: what a publisher was told to be stored is there, and nothing else but repeats."""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

import aio_pika
import nats
import pytest

from evertick.targets.brokers import kafka, nats as nats_module, rabbitmq
from evertick.targets.brokers.publisher import Message, Publisher
from servers.kafka import KafkaServer
from servers.nats import NatsServer
from servers.process import ServerProcess
from servers.rabbitmq import PASSWORD, USER, RabbitMqServer
from targets.brokers.kafka_reading import create, read
from targets.brokers.publishing import message, publishing, until_published

pytestmark = pytest.mark.campaign

CALLERS = 100
KILLS = 2
STORED_BETWEEN = 2000
"""So many messages are stored before each kill, and after the last."""


async def load(publisher: Publisher, server: ServerProcess, new: Callable[[int], Message]) -> tuple[set[str], int]:
    """Publish without pause while the server is killed and started; the ids that were confirmed, and how many were
    tried. A message that failed is published again, as a dispatcher does.
    """
    confirmed: set[str] = set()
    begun = 0
    is_over = asyncio.Event()

    async def call() -> None:
        nonlocal begun
        while not is_over.is_set():
            begun += 1
            each = new(begun)
            await until_published(publisher, each)
            confirmed.add(each.attributes["id"])

    async def stored(more: int) -> None:
        until = len(confirmed) + more
        while len(confirmed) < until:  # noqa: ASYNC110 - callers set no event
            await asyncio.sleep(0.01)  # between two looks

    async def disturb() -> None:
        for _ in range(KILLS):
            await stored(STORED_BETWEEN)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await stored(STORED_BETWEEN)
        is_over.set()

    await asyncio.gather(disturb(), *(call() for _ in range(CALLERS)))
    return confirmed, begun


def judge(found: Counter[str], confirmed: set[str], begun: int) -> None:
    """Every caller ends with a confirm, so that all that was begun was confirmed."""
    assert confirmed == {f"run_{number}" for number in range(1, begun + 1)}
    assert found.keys() == confirmed
    sys.stdout.write(f"{begun} messages over {KILLS} kills, {found.total() - begun} of them repeats\n")


async def run(
    publisher: Publisher,
    server: ServerProcess,
    new: Callable[[int], Message],
    read_ids: Callable[[], Awaitable[Counter[str]]],
) -> None:
    confirmed, begun = await load(publisher, server, new)
    judge(await read_ids(), confirmed, begun)


async def test_kafka_has_all_that_was_confirmed() -> None:
    with KafkaServer.running() as server:
        await create(server, "jobs", partitions=3)
        settings = {"bootstrap_servers": [f"localhost:{server.port}"], "security_protocol": "PLAINTEXT"}

        async def read_ids() -> Counter[str]:
            return Counter(dict(each.headers)["ce_id"].decode() for each in await read(server, "jobs"))

        async with publishing(kafka.open_publisher, settings) as publisher:
            await run(publisher, server, lambda n: message(n, topic="jobs", key=f"job_{n % 20}"), read_ids)


async def test_rabbitmq_has_all_that_was_confirmed() -> None:
    with RabbitMqServer.running() as server:
        async with await aio_pika.connect(server.url) as connection:
            await (await connection.channel()).declare_queue("jobs", durable=True)
        settings = {"host": "localhost", "port": server.port, "username": USER, "tls": False}

        async def read_ids() -> Counter[str]:
            found: Counter[str] = Counter()
            async with await aio_pika.connect(server.url) as connection:
                queue = await (await connection.channel()).declare_queue("jobs", passive=True)
                while each := await queue.get(no_ack=True, fail=False):
                    found[str(each.headers["cloudEvents_id"])] += 1
            return found

        async with publishing(rabbitmq.open_publisher, settings, {"password": PASSWORD}) as publisher:
            await run(publisher, server, lambda n: message(n, exchange="", routing_key="jobs"), read_ids)


async def test_nats_has_all_that_was_confirmed() -> None:
    with NatsServer.running() as server:
        url = f"nats://127.0.0.1:{server.port}"
        client = await nats.connect(url)
        await client.jetstream().add_stream(name="jobs", subjects=["jobs.>"])
        await client.close()

        async def read_ids() -> Counter[str]:
            found: Counter[str] = Counter()
            client = await nats.connect(url)
            stream = await client.jetstream().stream_info("jobs")
            subscription = await client.jetstream().pull_subscribe("jobs.>", stream="jobs")
            while found.total() < stream.state.messages:
                for each in await subscription.fetch(500):
                    found[(each.headers or {})["ce-id"]] += 1
                    await each.ack()
            await client.close()
            return found

        settings = {"servers": [f"localhost:{server.port}"], "tls": False}
        async with publishing(nats_module.open_publisher, settings) as publisher:
            await run(publisher, server, lambda n: message(n, subject="jobs.a"), read_ids)
