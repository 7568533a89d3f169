"""A Kafka that answers as none does, or leaves when it hurts: a publisher stays within its bounds and loses nothing."""

import asyncio
import struct

import pytest

from evertick.targets.brokers import kafka, kafka_cluster, kafka_protocol as protocol
from evertick.targets.egress.resolution import TooManyLookups
from ports import free_port
from targets.brokers.publishing import WAIT_SECONDS, failure_of, message, publishing, serving


class NamingKafka:
    """Names another broker, which is itself, each time it is asked, and gives out no producer ids."""

    def __init__(self) -> None:
        self.named = self.opened = self.now_open = self.most_open = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.now_open += 1
        self.most_open = max(self.most_open, self.now_open)
        port = writer.get_extra_info("sockname")[1]
        try:
            while True:
                data = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                answer = self._metadata(port) if data[:2] == b"\0\x03" else struct.pack(">ihqh", 0, 14, -1, -1)
                writer.write((len(answer) + 4).to_bytes(4) + data[4:8] + answer)
        finally:
            self.now_open -= 1

    def _metadata(self, port: int) -> bytes:
        self.named += 1
        brokers = struct.pack(">iii", 0, 1, self.named) + protocol.text(f"b{self.named}")
        brokers += struct.pack(">i", port) + protocol.text(None)
        topic = struct.pack(">ih", 1, 0) + protocol.text("orders") + b"\0"
        partition = struct.pack(">ihiiii", 1, 0, 0, self.named, 0, 0)
        return brokers + protocol.text("c") + struct.pack(">i", 1) + topic + partition


def kafka_settings(port: int) -> dict[str, object]:
    return {"bootstrap_servers": [f"localhost:{port}"], "security_protocol": "PLAINTEXT"}


async def test_a_kafka_that_names_ever_new_brokers_gets_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_cluster, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(kafka, "FAIL_OVER_SECONDS", kafka.RETRY_SECONDS)
    server = NamingKafka()
    async with (
        serving(server) as port,
        publishing(kafka.open_publisher, kafka_settings(port)) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        failure = await failure_of(publisher.publish(message(topic="orders")))
    assert str(failure) == "topic orders: the broker is still starting, or the cluster has no controller"
    assert server.opened > 3
    assert server.most_open <= 4  # one is opened while another is closed


SEQUENCE_AT = 95
"""In the request of a batch for the topic orders, after its correlation id."""


class MovingKafka:
    """Two brokers. The first leads the partition until a batch comes to it, then the second does."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.batches: list[bytes] = []
        self.producers = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.ports.index(writer.get_extra_info("sockname")[1])
        while True:
            data = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            match int.from_bytes(data[:2]):
                case protocol.METADATA:
                    answer = self._metadata(self.leader(number))
                case protocol.INIT_PRODUCER_ID:
                    self.producers += 1
                    answer = struct.pack(">ihqh", 0, 0, 7, 0)
                case _:
                    self.batches.append(data[8:])
                    answer = self.answer_to_batch(number)
            writer.write((len(answer) + 4).to_bytes(4) + data[4:8] + answer)

    def answer_to_batch(self, number: int) -> bytes:
        error = 0 if number else 6  # it does not lead the partition
        return struct.pack(">i", 1) + protocol.text("orders") + struct.pack(">iihq", 1, 0, error, 41)

    def leader(self, asked: int) -> int:
        return 1 if self.batches else 0

    def _metadata(self, leader: int) -> bytes:
        brokers = struct.pack(">ii", 0, len(self.ports))
        for node, port in enumerate(self.ports):
            brokers += struct.pack(">i", node) + protocol.text("localhost") + struct.pack(">i", port)
            brokers += protocol.text(None)
        topic = struct.pack(">ih", 1, 0) + protocol.text("orders") + b"\0"
        partition = struct.pack(">ihiiii", 1, 0, 0, leader, 0, 0)
        return brokers + protocol.text("c") + struct.pack(">i", 0) + topic + partition


async def test_a_partition_of_kafka_whose_leader_changes_gets_the_same_batch_again() -> None:
    kafka_brokers = MovingKafka()
    async with (
        serving(kafka_brokers) as first,
        serving(kafka_brokers) as second,
        publishing(kafka.open_publisher, kafka_settings(first)) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        kafka_brokers.ports = [first, second]
        assert await publisher.publish(message(topic="orders", key="a")) == "topic orders, partition 0, offset 41"
    before, after = kafka_brokers.batches
    assert before == after, "with its sequence number, so that a broker which has it stores it once"
    assert kafka_brokers.producers == 1


class LeavingKafka(MovingKafka):
    """Ends the connection instead of answering a batch, which it may have written."""

    def leader(self, asked: int) -> int:
        return 0

    def answer_to_batch(self, number: int) -> bytes:
        raise ConnectionAbortedError


async def test_a_message_that_kafka_may_have_written_fails_although_no_name_can_be_looked_up_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its attempt must not count as one that was never started."""
    monkeypatch.setattr(kafka, "FAIL_OVER_SECONDS", kafka.RETRY_SECONDS)
    broker = LeavingKafka()

    async def dial(host: str, port: int) -> list[str]:
        if broker.batches:
            raise TooManyLookups
        return ["127.0.0.1"]

    async with (
        serving(broker) as port,
        publishing(kafka.open_publisher, kafka_settings(port), dial=dial) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        broker.ports = [port]
        failure = await failure_of(publisher.publish(message(topic="orders", key="a")))
    assert "the connection" in str(failure)
    assert failure.retryable
    assert len(broker.batches) == 1


class CutOffKafka(MovingKafka):
    """The first broker does not hear of the second, and names a leader that is gone."""

    def leader(self, asked: int) -> int:
        return 1 if asked == 1 else 2


async def test_a_broker_of_kafka_that_does_not_know_the_new_leader_is_not_the_only_one_that_is_asked() -> None:
    kafka_brokers = CutOffKafka()
    async with (
        serving(kafka_brokers) as first,
        serving(kafka_brokers) as second,
        publishing(kafka.open_publisher, kafka_settings(first)) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        kafka_brokers.ports = [first, second, free_port()]
        assert await publisher.publish(message(topic="orders", key="a")) == "topic orders, partition 0, offset 41"


async def test_sequence_numbers_of_kafka_begin_again_after_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_SEQUENCE", 1)
    kafka_brokers = MovingKafka()
    async with (
        serving(kafka_brokers) as first,
        serving(kafka_brokers) as second,
        publishing(kafka.open_publisher, kafka_settings(first)) as publisher,
        asyncio.timeout(WAIT_SECONDS),
    ):
        kafka_brokers.ports = [first, second]
        for _ in range(3):
            await publisher.publish(message(topic="orders", key="a"))
    sequences = [struct.unpack_from(">i", batch, SEQUENCE_AT)[0] for batch in kafka_brokers.batches]
    assert sequences == [0, 0, 1, 0], "the first was tried twice"
