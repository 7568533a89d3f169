"""Publishing to a real Kafka of three nodes, some of which are gone or hang. Each test leaves all of them running."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from evertick.targets.brokers import kafka, stream
from evertick.targets.brokers.kafka import open_publisher
from evertick.targets.brokers.kafka_protocol import partition_hash
from servers.kafka import KafkaServer, kafka_nodes
from targets.brokers.kafka_reading import create, described, read, until_described
from targets.brokers.publishing import WAIT_SECONDS, message, publishing, until_published

pytestmark = pytest.mark.slow

NODES = (1, 2, 3)
NEVER = 10_000
"""Seconds: longer than any test."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[KafkaServer]]:
    # The cluster notices early that a node is gone, and lets it lead again early.
    early = {
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "leader.imbalance.check.interval.seconds": "1",
    }
    with kafka_nodes(len(NODES), {"min.insync.replicas": "2", **early}) as found:
        yield found


def settings(nodes: Sequence[KafkaServer]) -> dict[str, object]:
    return {"bootstrap_servers": [f"localhost:{each.port}" for each in nodes], "security_protocol": "PLAINTEXT"}


async def keys_by_leader(nodes: Sequence[KafkaServer], topic: str) -> dict[int, str]:
    """For each node a key whose partition it leads; a topic with a partition for each node has such."""
    keys = {partition_hash(key.encode()) % len(nodes): key for key in map(str, range(100))}
    return {int(each["leader"]): keys[int(each["partition"])] for each in await described(nodes[0], topic)}


@contextmanager
def hanging(*nodes: KafkaServer) -> Iterator[None]:
    for each in nodes:
        each.suspend()
    try:
        yield
    finally:
        for each in nodes:
            each.resume()


async def until_all_lead(nodes: Sequence[KafkaServer], topic: str) -> None:
    """Each node has a partition to lead, and all replicas of it are in sync."""
    await until_described(
        nodes[0],
        topic,
        lambda found: (
            {int(each["leader"]) for each in found} == set(NODES)
            and all(len(each["isr"]) == len(NODES) for each in found)
        ),
    )


async def test_a_message_waits_for_the_new_leader_when_its_node_is_killed(nodes: list[KafkaServer]) -> None:
    await create(nodes[0], "killed", len(NODES))
    await until_all_lead(nodes, "killed")
    first, *others = nodes
    key = (await keys_by_leader(nodes, "killed"))[first.node]
    async with publishing(open_publisher, settings(nodes)) as publisher, asyncio.timeout(WAIT_SECONDS):
        await publisher.publish(message(1, topic="killed", key=key))
        await asyncio.to_thread(first.kill)
        try:
            await publisher.publish(message(2, topic="killed", key=key))
            async with publishing(open_publisher, settings(nodes)) as new:
                await new.publish(message(3, topic="killed", key=key))
                told = await new.check()
        finally:
            await asyncio.to_thread(first.start)
        assert "Kafka cluster" in told
        assert f"cannot connect to localhost:{first.port}: Connection refused" in told
        assert str(others[0].port) not in told
        await publisher.publish(message(4, topic="killed", key=key))
    ids = [dict(each.headers)["ce_id"].decode() for each in await read(nodes[0], "killed")]
    assert ids == ["run_1", "run_2", "run_3", "run_4"]


async def test_a_message_goes_to_the_new_leader_when_its_node_hangs(
    nodes: list[KafkaServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(nodes[0], "hung", len(NODES))
    await until_all_lead(nodes, "hung")
    key = (await keys_by_leader(nodes, "hung"))[nodes[0].node]
    monkeypatch.setattr(stream, "SILENCE_SECONDS", 5.0)
    async with publishing(open_publisher, settings(nodes)) as publisher, asyncio.timeout(WAIT_SECONDS):
        await publisher.publish(message(1, topic="hung", key=key))
        with hanging(nodes[0]):
            await publisher.publish(message(2, topic="hung", key=key))
    assert [dict(each.headers)["ce_id"] for each in await read(nodes[0], "hung")] == [b"run_1", b"run_2"]


async def test_a_server_that_hangs_keeps_nobody_from_the_others(
    nodes: list[KafkaServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(nodes[0], "found", len(NODES))
    await until_all_lead(nodes, "found")
    key = (await keys_by_leader(nodes, "found"))[nodes[1].node]
    async with publishing(open_publisher, settings(nodes)) as earlier:
        # The server that hangs may be the controller. After this the leader has ids for producers without asking it.
        await earlier.publish(message(topic="found", key=key))
    monkeypatch.setattr(stream, "SILENCE_SECONDS", NEVER)
    async with publishing(open_publisher, settings(nodes)) as publisher, asyncio.timeout(WAIT_SECONDS):
        with hanging(nodes[0]):
            await publisher.publish(message(topic="found", key=key))
            assert f"localhost:{nodes[0].port} has not answered for 5 s" in await publisher.check()


async def test_a_partition_without_replicas_keeps_no_other_of_its_leader_waiting(
    nodes: list[KafkaServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(nodes[0], "copied", len(NODES))
    await create(nodes[0], "single", len(NODES), replicas=1, min_insync_replicas="1")
    await until_all_lead(nodes, "copied")
    *others, leader = nodes
    copied = (await keys_by_leader(nodes, "copied"))[leader.node]
    single = (await keys_by_leader(nodes, "single"))[leader.node]
    monkeypatch.setattr(kafka, "TIMEOUT_MS", NEVER * 1000)
    monkeypatch.setattr(stream, "SILENCE_SECONDS", NEVER)
    async with publishing(open_publisher, settings(nodes)) as publisher, asyncio.timeout(WAIT_SECONDS):
        await until_published(publisher, message(1, topic="copied", key=copied))
        await until_published(publisher, message(2, topic="single", key=single))
        with hanging(*others):
            waiting = asyncio.create_task(publisher.publish(message(3, topic="copied", key=copied)))
            await asyncio.sleep(0)  # it is sent first
            for number in range(4, 10):
                await publisher.publish(message(number, topic="single", key=single))
            assert not waiting.done(), "it is stored by its leader alone"
        await waiting
