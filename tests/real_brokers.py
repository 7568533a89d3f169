"""Brokers of tests that dispatchers publish to and consumers read from: each a real server with one destination.

Messages are read with the clients that consumers use, and `evertick.receive`. Each server can be killed and started
again, and keeps what it has acknowledged.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import aio_pika
import nats
from redis.asyncio import Redis

from evertick import receive
from evertick.bench.processes import family_cpu_seconds
from evertick.receive import MessageRun
from redis_server import RedisServer, redis_server
from servers.kafka import KafkaServer
from servers.nats import NatsServer
from servers.process import ServerProcess
from servers.rabbitmq import PASSWORD, USER, RabbitMqServer
from servers.sqs import REGION, SqsServer
from targets.brokers.kafka_reading import create, read
from targets.brokers.sqs_reading import create_queue, read_queue

DESTINATION = "bookings"
"""As in docs/receivers.md."""
CONNECTION = "orders"


class Broker(ABC):
    """A server with a destination: `settings` and `secrets` of a connection, and the `address` of a target."""

    kind: ClassVar[str]
    address: ClassVar[Mapping[str, Any]]
    settings: Mapping[str, Any]
    secrets: Mapping[str, str]
    server: Any  # a RedisServer or a ServerProcess

    def target(self, **fields: Any) -> dict[str, Any]:
        return {"type": self.kind, "connection": CONNECTION, **self.address, **fields}

    def connection(self, **changes: Any) -> dict[str, Any]:
        secrets = changes.pop("secrets", self.secrets)
        return {"name": CONNECTION, "type": self.kind, "settings": {**self.settings, **changes}, "secrets": secrets}

    def cpu_seconds(self) -> float:
        """CPU time of the server so far."""
        return family_cpu_seconds(self.server.pid) or 0.0

    @abstractmethod
    async def kill(self) -> None: ...

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def read(self) -> list[MessageRun]:
        """All messages of the destination, as often as they are there."""


class RedisBroker(Broker):
    kind = "redis_stream"
    address: ClassVar[Mapping[str, Any]] = {"stream": DESTINATION}

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.settings = {"host": "127.0.0.1", "port": server.port, "tls": False}
        self.secrets = {}

    async def kill(self) -> None:
        await self.server.kill()

    async def start(self) -> None:
        await self.server.start()

    async def read(self) -> list[MessageRun]:
        async with Redis.from_url(self.server.url) as client:
            found: Any = await client.xrange(DESTINATION)
        return [receive.redis(entry) for entry in found]


class _ProcessBroker(Broker):
    async def kill(self) -> None:
        await asyncio.to_thread(self.server.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)


class KafkaBroker(_ProcessBroker):
    kind = "kafka"
    address: ClassVar[Mapping[str, Any]] = {"topic": DESTINATION}

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        self.settings = {"bootstrap_servers": server.addresses, "security_protocol": "PLAINTEXT"}
        self.secrets = {}

    async def prepare(self) -> None:
        await create(self.server, DESTINATION, partitions=3)

    async def read(self) -> list[MessageRun]:
        return [receive.kafka(record) for record in await read(self.server, DESTINATION)]


class RabbitMqBroker(_ProcessBroker):
    kind = "rabbitmq"
    address: ClassVar[Mapping[str, Any]] = {"routing_key": DESTINATION}

    def __init__(self, server: RabbitMqServer) -> None:
        self.server = server
        self.settings = {"host": "127.0.0.1", "port": server.port, "username": USER, "tls": False}
        self.secrets = {"password": PASSWORD}

    async def prepare(self) -> None:
        async with await aio_pika.connect(self.server.url) as connection:
            await (await connection.channel()).declare_queue(DESTINATION, durable=True)

    async def read(self) -> list[MessageRun]:
        found = []
        async with await aio_pika.connect(self.server.url) as connection:
            queue = await (await connection.channel()).declare_queue(DESTINATION, passive=True)
            while message := await queue.get(no_ack=True, fail=False):
                found.append(receive.rabbitmq(message))
        return found


class NatsBroker(_ProcessBroker):
    kind = "nats"
    address: ClassVar[Mapping[str, Any]] = {"subject": f"{DESTINATION}.a"}

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.url: str | list[str] = f"nats://127.0.0.1:{server.port}"
        self.settings = {"servers": [f"127.0.0.1:{server.port}"], "tls": False}
        self.secrets = {}

    async def prepare(self) -> None:
        client = await nats.connect(self.url)
        await client.jetstream().add_stream(name=DESTINATION, subjects=[f"{DESTINATION}.>"])
        await client.close()

    async def read(self) -> list[MessageRun]:
        found: list[MessageRun] = []
        client = await nats.connect(self.url)
        stream = client.jetstream()
        count = (await stream.stream_info(DESTINATION)).state.messages
        subscription = await stream.pull_subscribe(f"{DESTINATION}.>", stream=DESTINATION)
        while len(found) < count:
            for message in await subscription.fetch(500):
                found.append(receive.nats(message))
                await message.ack()
        await client.close()
        return found


class SqsBroker(_ProcessBroker):
    kind = "sqs"

    def __init__(self, server: SqsServer) -> None:
        self.server = server
        self.address = {}  # type: ignore[misc] # the server chooses it
        self.settings = {"region": REGION, "access_key_id": "key", "endpoint_url": server.url}
        self.secrets = {"secret_access_key": "secret"}

    async def prepare(self) -> None:
        self.address = {"queue_url": await create_queue(self.server, DESTINATION)}  # type: ignore[misc] # as above

    async def read(self) -> list[MessageRun]:
        queue_url = str(self.address["queue_url"])
        return [receive.sqs(message) for message in await read_queue(self.server, queue_url)]


_OF_PROCESSES: Mapping[str, tuple[type[ServerProcess], Callable[[Any], Any]]] = {
    "kafka": (KafkaServer, KafkaBroker),
    "rabbitmq": (RabbitMqServer, RabbitMqBroker),
    "nats": (NatsServer, NatsBroker),
    "sqs": (SqsServer, SqsBroker),
}
KINDS = ("redis_stream", *_OF_PROCESSES)


@asynccontextmanager
async def real_broker(kind: str, config: Mapping[str, Any] | None = None) -> AsyncIterator[Broker]:
    """A broker of a test's own. The test is skipped, and says so, where its server is not installed. `config`: as its
    server takes it; not for Redis and SQS.
    """
    if kind == RedisBroker.kind:
        async with redis_server(is_durable=True) as redis:
            yield RedisBroker(redis)
        return
    server_of, broker_of = _OF_PROCESSES[kind]
    with server_of.running(**({} if config is None else {"config": config})) as server:
        broker = broker_of(server)
        await broker.prepare()
        yield broker
