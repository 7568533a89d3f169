"""Nodes of a Kafka of three that are killed under a real dispatcher under load: it goes on with the new leaders by
itself, and what too few replicas have is no success. In the end C1 to C4 hold for what consumers read.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from faults.broker_load import PATIENCE_SECONDS, BrokerLoad
from faults.cluster import Cluster
from real_brokers import DESTINATION, KafkaBroker
from servers.kafka import KafkaServer, kafka_nodes
from targets.brokers.kafka_reading import create, described, until_described

pytestmark = pytest.mark.slow

PARTITIONS = 6
_SUCCESSES_IN = (
    "SELECT count(*) FROM outcomes"
    f" WHERE result = 'success' AND excerpt LIKE 'topic {DESTINATION}, partition ' || $1 || ',%'"
)
_OPEN_CIRCUITS = "SELECT count(*) FROM target_hosts WHERE state <> 'closed'"
_REASONS = "SELECT coalesce(error, result::text) AS reason, count(*) FROM outcomes WHERE result <> 'success' GROUP BY 1"


class Load(BrokerLoad):
    """A dispatcher of Evertick that publishes to all partitions of a topic of three Kafka nodes."""

    def __init__(self, cluster: Cluster, nodes: Sequence[KafkaServer]) -> None:
        super().__init__(cluster, KafkaBroker(nodes[0]))
        self.nodes = nodes
        self.kills = 0

    async def begin(self, jobs: int) -> None:
        await create(self.nodes[0], DESTINATION, PARTITIONS)
        await super().begin(jobs)
        await self.until_all_partitions_take_messages()

    async def kill(self, node: KafkaServer) -> None:
        await asyncio.to_thread(node.kill)
        self.kills += 1

    async def start(self, node: KafkaServer) -> None:
        await asyncio.to_thread(node.start)

    async def leader(self) -> KafkaServer:
        """The node that leads most partitions."""
        leaders = [int(each["leader"]) for each in await described(self.nodes[0], DESTINATION)]
        return self.nodes[max(leaders, key=leaders.count) - 1]

    async def until_led_by_others(self, node: KafkaServer) -> None:
        await self._until_partitions(lambda each: each["leader"] not in (node.node, -1))

    async def until_in_sync(self) -> None:
        await self._until_partitions(lambda each: len(each["isr"]) == len(self.nodes))

    async def until_all_partitions_take_messages(self) -> None:
        """Some of those that are published from now on are stored, in each partition."""
        before = await self._stored()

        async def holds() -> bool:
            return all(now > then for now, then in zip(await self._stored(), before, strict=True))

        await self.cluster.until(holds, "each partition has more messages", PATIENCE_SECONDS)

    async def end(self) -> None:
        await self.judge(self.kills)
        for reason, count in (await self.reasons()).items():
            sys.stdout.write(f"{count:6}  {reason}\n")

    async def reasons(self) -> dict[str, int]:
        return {row["reason"]: row["count"] for row in await self.cluster.pool.fetch(_REASONS)}

    async def _stored(self) -> list[int]:
        return [await self.cluster.value(_SUCCESSES_IN, str(number)) for number in range(PARTITIONS)]

    async def _until_partitions(self, holds: Callable[[Any], bool]) -> None:
        await until_described(self.nodes[0], DESTINATION, lambda found: all(map(holds, found)))


@asynccontextmanager
async def loaded(cluster: Cluster, jobs: int) -> AsyncIterator[Load]:
    with kafka_nodes(3, {"min.insync.replicas": "2"}) as nodes:
        load = Load(cluster, nodes)
        await load.begin(jobs)
        yield load


async def kill_leaders(load: Load, times: int) -> None:
    for _ in range(times):
        node = await load.leader()
        await load.kill(node)
        await load.until_led_by_others(node)
        await load.until_all_partitions_take_messages()
        await load.start(node)
        await load.until_in_sync()
    await load.until_all_partitions_take_messages()


async def lose_the_quorum(load: Load) -> None:
    """Two of three nodes are down: what the third has alone is no success, and the circuit opens."""
    third = await load.leader()
    first, second = (each for each in load.nodes if each is not third)
    await asyncio.gather(load.kill(first), load.kill(second))
    await load.cluster.until_count(_OPEN_CIRCUITS, 1, PATIENCE_SECONDS)
    await load.start(second)
    await load.until_all_partitions_take_messages()
    await load.start(first)
    await load.until_in_sync()
    assert any("replicas" in reason for reason in await load.reasons())


async def test_messages_go_on_to_the_new_leaders_when_a_node_is_killed(cluster: Cluster) -> None:
    async with loaded(cluster, jobs=60) as load:
        await kill_leaders(load, times=2)
        await load.end()


async def test_messages_that_too_few_replicas_can_have_wait_for_a_node(cluster: Cluster) -> None:
    async with loaded(cluster, jobs=60) as load:
        await lose_the_quorum(load)
        await load.end()


@pytest.mark.campaign
async def test_nodes_that_are_killed_again_and_again_lose_nothing(cluster: Cluster) -> None:
    async with loaded(cluster, jobs=200) as load:
        for _ in range(2):
            await kill_leaders(load, times=3)
            await lose_the_quorum(load)
        await load.end()
