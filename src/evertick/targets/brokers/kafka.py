"""Publishes to Kafka with `acks=all`, as an idempotent producer. A message is stored when its batch is acknowledged.

Messages for a partition that arrive while a batch is under way form the next one. There is one batch of a partition
under way at a time, so a retry with the same sequence number changes neither the order nor the number of messages.
A batch is tried again for as long as a fail-over takes, unless no broker answers or the batch before was given up.
After a batch that may or may not have been written, the partition gets a new producer id.

The protocol is ours. librdkafka (confluent-kafka) resolves names in C, aiokafka opens its sockets itself, and brokers
tell clients which hosts to call: the egress guard must decide about each of them. aiokafka also lets a broker create
missing topics, waits for them for 40 s, and repeats an idempotent batch without end.

Attributes are headers `ce_…`, as in CloudEvents' Kafka binding. Keys go to the same partitions as by Java's producer.
"""

import asyncio
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from evertick.contract.connections import KafkaConnection
from evertick.domain.schedule.describe.english import counted
from evertick.targets.brokers import kafka_protocol as protocol
from evertick.targets.brokers.kafka_cluster import (
    BACKOFFS,
    NEW_PRODUCER,
    OF_RECORDS,
    OK,
    TRANSIENT,
    UNKNOWN_TOPIC,
    Cluster,
    failure_of,
)
from evertick.targets.brokers.publisher import Dial, Envelope, Publisher, PublishFailed, Sending, fail_all, made_of
from evertick.targets.brokers.stream import all_of, broker_down
from evertick.targets.egress.resolution import TooManyLookups

MAX_BATCH_BYTES = 500_000
"""Half of what Kafka takes by default."""
MAX_RECORDS = 10_000
TIMEOUT_MS = 10_000
"""How long a broker waits for the replicas."""
RETRY_SECONDS = 1.5
FAIL_OVER_SECONDS = 20.0
"""For so long a batch is tried again while some broker answers: a cluster needs about ten seconds to notice that a node
is gone, and a connection to one that hangs is left after fifteen."""

_DUPLICATE = 46


class Record(NamedTuple):
    data: bytes
    sending: Sending


@dataclass(slots=True, eq=False)
class Partition:
    """The records that wait for a partition, and its sequence with the broker. `producer` is None before the first
    batch, and after one of which nobody knows whether it was written.
    """

    topic: str
    number: int
    waiting: deque[Record] = field(default_factory=deque)
    sending: asyncio.Task[None] | None = None
    producer: tuple[int, int] | None = None
    sequence: int = 0
    most: int = MAX_RECORDS
    is_failing: bool = False  # the last batch was given up


def open_publisher(settings: Mapping[str, Any], secrets: Mapping[str, str], dial: Dial) -> Publisher:
    return KafkaPublisher(msgspec.convert(settings, KafkaConnection), secrets, dial)


class KafkaPublisher(Publisher):
    """A producer for one cluster, with a connection to each broker that it needs."""

    def __init__(self, settings: KafkaConnection, secrets: Mapping[str, str], dial: Dial) -> None:
        self._cluster = Cluster(settings, secrets, dial)
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._turns = itertools.count()

    async def send(self, batch: Sequence[Sending]) -> None:
        by_topic: defaultdict[str, list[Sending]] = defaultdict(list)
        for sending in batch:
            by_topic[str(sending.message.address["topic"])].append(sending)
        # At once: looking for a topic without a leader takes a while.
        await all_of([self._send_to(topic, each) for topic, each in by_topic.items()])

    async def _send_to(self, topic: str, batch: list[Sending]) -> None:
        try:
            count = len(await self._cluster.leaders(topic))
        except Exception as failure:  # noqa: BLE001 - its callers get it
            fail_all(batch, failure)
            return
        for sending in batch:
            if (keyed := made_of(sending, _keyed)) is not None:
                key, record = keyed
                number = (next(self._turns) if key is None else protocol.partition_hash(key)) % count
                self._add(topic, number, Record(record, sending))

    async def check(self) -> str:
        metadata, failures = await self._cluster.ask_all()
        found = f"Kafka cluster {metadata.cluster_id} with {counted(len(metadata.brokers), 'broker')}"
        return "; ".join([found, *map(str, failures)])

    async def close(self) -> None:
        sending = [each.sending for each in self._partitions.values() if each.sending is not None]
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        for partition in self._partitions.values():
            _fail(partition.waiting, broker_down("the connection was closed"))
        await self._cluster.close()

    def _add(self, topic: str, number: int, record: Record) -> None:
        partition = self._partitions.get((topic, number))
        if partition is None:
            partition = self._partitions[topic, number] = Partition(topic, number)
        partition.waiting.append(record)
        if partition.sending is None:
            partition.sending = asyncio.create_task(self._send_all(partition))

    async def _send_all(self, partition: Partition) -> None:
        batch: list[Record] = []
        try:
            while partition.waiting:
                batch = _next_batch(partition)
                if batch:
                    await self._send_one(partition, batch)
        finally:
            partition.sending = None
            _fail(batch, broker_down("the connection was closed"))

    async def _send_one(self, partition: Partition, batch: list[Record]) -> None:
        try:
            await self._send(partition, batch)
        except Exception as failure:  # noqa: BLE001 - its callers get it
            partition.producer = None
            _fail(batch, failure)

    async def _send(self, partition: Partition, batch: list[Record]) -> None:
        """Send a batch, with retries; each of its records ends with an offset or a failure."""
        at_ms = time.time_ns() // 1_000_000
        failure = not_tried = broker_down("not tried")
        began = time.monotonic()
        seconds = RETRY_SECONDS if partition.is_failing else FAIL_OVER_SECONDS
        for backoff in itertools.chain((0.0, *BACKOFFS), itertools.repeat(BACKOFFS[-1])):
            if time.monotonic() + backoff > began + seconds or all(each.sending.is_over for each in batch):
                break
            await asyncio.sleep(backoff)
            try:
                error, offset = await self._try(partition, batch, at_ms)
            except (PublishFailed, TooManyLookups) as lost:
                failure = _failure_of_try(lost, None if failure is not_tried else failure)
                if not failure.retryable:
                    break
                if not (failure.is_broker_down and self._cluster.is_reachable):
                    seconds = RETRY_SECONDS
                self._cluster.forget(partition.topic)
                continue
            if error in (OK, _DUPLICATE):
                partition.sequence = (partition.sequence + len(batch)) & protocol.MAX_SEQUENCE
                partition.most = min(partition.most * 2, MAX_RECORDS)
                partition.is_failing = False
                _succeed(partition, batch, offset if error == OK else None)
                return
            if error in OF_RECORDS and len(batch) > 1:
                _split(partition, batch)
                return
            failure = failure_of(error, partition.topic)
            if error in NEW_PRODUCER:
                partition.producer = None
            elif error in TRANSIENT:
                self._cluster.forget(partition.topic)
            else:
                break
        partition.producer = None
        partition.is_failing = failure.is_broker_down
        _fail(batch, failure)

    async def _try(self, partition: Partition, batch: list[Record], at_ms: int) -> tuple[int, int]:
        leaders = await self._cluster.leaders(partition.topic)
        if partition.number >= len(leaders):
            return UNKNOWN_TOPIC, -1
        leader = leaders[partition.number]
        if partition.producer is None:
            answer = await self._cluster.ask_node(leader, protocol.INIT_PRODUCER_ID, protocol.new_producer())
            error, *producer = protocol.read_producer_id(answer)
            if error:
                return error, -1
            partition.producer, partition.sequence = (producer[0], producer[1]), 0
        data = protocol.record_batch([each.data for each in batch], at_ms, *partition.producer, partition.sequence)
        body = protocol.produce(partition.topic, partition.number, data, TIMEOUT_MS)
        return protocol.read_produced(await self._cluster.ask_node(leader, protocol.PRODUCE, body))


def _failure_of_try(lost: PublishFailed | TooManyLookups, earlier: PublishFailed | None) -> PublishFailed:
    """Without a name nothing is sent. But an earlier try may have written the batch: it counts as started."""
    if isinstance(lost, PublishFailed):
        return lost
    if earlier is None:
        raise lost
    return earlier


def _keyed(sending: Sending) -> tuple[bytes | None, bytes]:
    """The key and the record of a message."""
    body, envelope, values, address, _ = sending.message
    key = address.get("key")
    raw = None if key is None else str(key).encode()
    return raw, protocol.record(raw, body, _header_form(envelope).written(values))


@lru_cache(maxsize=1024)
def _header_form(envelope: Envelope) -> protocol.HeaderForm:
    fixed = {f"ce_{name}": value for name, value in envelope.fixed.items()}
    headers = {**envelope.headers, "content-type": envelope.content_type, **fixed}
    return protocol.HeaderForm(headers, envelope.written_names("ce_"))


def _next_batch(partition: Partition) -> list[Record]:
    """The first records that still have a caller."""
    batch: list[Record] = []
    size = 0
    waiting = partition.waiting
    while waiting and len(batch) < partition.most and (not batch or size + len(waiting[0].data) <= MAX_BATCH_BYTES):
        record = waiting.popleft()
        if not record.sending.is_over:
            batch.append(record)
            size += len(record.data)
    return batch


def _split(partition: Partition, batch: list[Record]) -> None:
    """Something in it was refused, or it is too large as a whole: half of it is tried next."""
    partition.most = max(len(batch) // 2, 1)
    partition.waiting.extendleft(reversed(batch))
    batch.clear()


def _succeed(partition: Partition, batch: list[Record], first_offset: int | None) -> None:
    place = f"topic {partition.topic}, partition {partition.number}, offset"
    for number, record in enumerate(batch):
        record.sending.stored(f"{place} {'unknown' if first_offset is None else first_offset + number}")


def _fail(records: Iterable[Record], failure: Exception) -> None:
    fail_all((record.sending for record in records), failure)
