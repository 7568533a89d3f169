"""Nodes of broker clusters that are killed under a real dispatcher under load: it goes on with the nodes that are left.
Every tick ends as C1 to C3 demand, every success is there for consumers to see (C4), and what is there twice has equal
keys.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import aio_pika
import nats
import pytest
from nats.errors import Error as NatsError
from redis.asyncio import Redis

from engine import until
from evertick.targets.brokers import rabbitmq
from faults.broker_load import BrokerLoad
from faults.cluster import Cluster
from ports import free_ports
from real_brokers import DESTINATION, Broker, NatsBroker, RabbitMqBroker, RedisBroker
from redis_server import RedisServer, redis_server
from servers.nats import NatsServer, nats_cluster
from servers.process import ServerProcess
from servers.rabbitmq import RabbitMqServer, rabbitmq_cluster
from targets.brokers.publishing import message, publishing, until_published

pytestmark = pytest.mark.slow

NODES = 3


class BrokerNodes(Broker):
    """A broker of several nodes, of which one at a time is down."""

    @abstractmethod
    async def busiest(self) -> ServerProcess:
        """The node whose loss is felt most."""


class NatsNodes(NatsBroker, BrokerNodes):
    """A stream of three replicas."""

    def __init__(self, servers: Mapping[str, NatsServer]) -> None:
        super().__init__(next(iter(servers.values())))
        self._servers = servers
        self.settings = {"servers": [f"127.0.0.1:{server.port}" for server in servers.values()], "tls": False}
        self.url = [f"nats://{server}" for server in self.settings["servers"]]

    async def prepare(self) -> None:
        client = await nats.connect(self.url)
        stream = client.jetstream()

        async def is_created() -> bool:
            try:
                await stream.add_stream(name=DESTINATION, subjects=[f"{DESTINATION}.>"], num_replicas=NODES)
            except NatsError:  # it has not elected a leader for streams yet
                return False
            return True

        await until(is_created)
        await client.close()

    async def busiest(self) -> NatsServer:
        """The leader of the stream."""
        client = await nats.connect(self.url)
        found: list[str] = []

        async def has_leader() -> bool:
            try:
                info = await client.jetstream().stream_info(DESTINATION)
            except NatsError:
                return False
            found.extend([info.cluster.leader] if info.cluster and info.cluster.leader else [])
            return bool(found)

        await until(has_leader)
        await client.close()
        return self._servers[found[0]]


class RabbitMqNodes(RabbitMqBroker, BrokerNodes):
    """A quorum queue on three nodes, which are all named in the connection."""

    def __init__(self, servers: list[RabbitMqServer]) -> None:
        super().__init__(servers[0])
        self._servers = servers
        self.settings = {**self.settings, "other_nodes": [f"127.0.0.1:{server.port}" for server in servers[1:]]}
        self._killed = 0

    async def prepare(self) -> None:
        async with await aio_pika.connect(self.server.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(DESTINATION, durable=True, arguments={"x-queue-type": "quorum"})

    async def busiest(self) -> RabbitMqServer:
        """The one that the dispatcher is connected to: the first, and after its loss the second."""
        self._killed += 1
        return self._servers[(self._killed - 1) % 2]


@asynccontextmanager
async def broker_nodes(kind: str) -> AsyncIterator[BrokerNodes]:
    if kind == "nats":
        with nats_cluster(NODES) as servers:
            stream = NatsNodes(servers)
            await stream.prepare()
            yield stream
    else:
        with rabbitmq_cluster(NODES) as nodes:
            queue = RabbitMqNodes(nodes)
            await queue.prepare()
            yield queue


async def kill_nodes_under_load(cluster: Cluster, broker: BrokerNodes, *, jobs: int, kills: int, between: int) -> None:
    """`between`: so many messages are acknowledged before each kill, while the node is down, and at the end."""
    load = BrokerLoad(cluster, broker)
    await load.begin(jobs)
    for _ in range(kills):
        await load.stored(between)
        node = await broker.busiest()
        await asyncio.to_thread(node.kill)
        await load.stored(between)
        await asyncio.to_thread(node.start)
    await load.stored(between)
    await load.judge(kills)


class RedisNodes(RedisBroker):
    """A primary and its replica behind one address, as a proxy, a virtual address or a name in DNS gives it."""

    def __init__(self, primary: RedisServer, replica: RedisServer, port: int) -> None:
        super().__init__(primary)
        self._replica = replica
        self.settings = {**self.settings, "port": port, "replicas": 1}

    async def fail_over(self) -> None:
        """Kill the primary; its replica takes over, and it becomes the replica of that."""
        killed = self.server
        await killed.kill()
        async with Redis.from_url(self._replica.url) as client:
            await client.replicaof("NO", "ONE")
        self.server, self._replica = self._replica, killed
        await killed.start()
        async with Redis.from_url(killed.url) as client:
            await client.replicaof("127.0.0.1", self.server.port)


@asynccontextmanager
async def redis_nodes() -> AsyncIterator[RedisNodes]:
    (port,) = free_ports(1)
    async with redis_server(is_durable=True) as primary, redis_server(is_durable=True, replica_of=primary) as replica:
        nodes = RedisNodes(primary, replica, port)
        async with Redis.from_url(primary.url) as client:

            async def is_replicated() -> bool:
                return bool(await client.wait(1, 1000))

            await until(is_replicated)
        async with forwarding(port, lambda: int(nodes.server.port)):
            yield nodes


@asynccontextmanager
async def forwarding(port: int, destination: Callable[[], int]) -> AsyncIterator[None]:
    """Pass on each connection to a port to where it leads when it is made."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind = await asyncio.open_connection("127.0.0.1", destination())
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, behind[1]), copy(behind[0], writer))

    async with await asyncio.start_server(serve, "127.0.0.1", port):
        yield


async def fail_over_under_load(cluster: Cluster, broker: RedisNodes, *, jobs: int, kills: int, between: int) -> None:
    load = BrokerLoad(cluster, broker)
    await load.begin(jobs)
    for _ in range(kills):
        await load.stored(between)
        await broker.fail_over()
    await load.stored(between)
    await load.judge(kills)


@pytest.mark.parametrize("kind", ["nats", "rabbitmq"])
async def test_a_dispatcher_goes_on_with_the_nodes_that_are_left(cluster: Cluster, kind: str) -> None:
    async with broker_nodes(kind) as broker:
        await kill_nodes_under_load(cluster, broker, jobs=50, kills=1, between=100)


async def test_a_channel_that_met_a_queue_without_a_leader_is_not_kept() -> None:
    """RabbitMQ refuses all that comes by such a channel, also when the queue has a leader again."""
    async with (
        broker_nodes("rabbitmq") as broker,
        publishing(rabbitmq.open_publisher, broker.settings, broker.secrets) as publisher,
    ):
        await publisher.publish(message(1, routing_key=DESTINATION))
        await asyncio.to_thread((await broker.busiest()).kill)
        await until_published(publisher, message(2, routing_key=DESTINATION))
        await publisher.publish(message(3, routing_key=DESTINATION))


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["nats", "rabbitmq"])
async def test_nodes_that_are_killed_again_and_again_lose_nothing(cluster: Cluster, kind: str) -> None:
    async with broker_nodes(kind) as broker:
        await kill_nodes_under_load(cluster, broker, jobs=200, kills=4, between=1000)


async def test_a_replica_that_takes_over_has_every_success(cluster: Cluster) -> None:
    async with redis_nodes() as broker:
        await fail_over_under_load(cluster, broker, jobs=50, kills=1, between=200)


@pytest.mark.campaign
async def test_replicas_that_take_over_again_and_again_have_every_success(cluster: Cluster) -> None:
    async with redis_nodes() as broker:
        await fail_over_under_load(cluster, broker, jobs=200, kills=4, between=1000)
