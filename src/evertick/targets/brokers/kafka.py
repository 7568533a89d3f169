"""Publishes to Kafka with `acks=all`, as an idempotent producer. A message is stored when its batch is acknowledged.

Messages for a partition that arrive while a batch is under way form the next one. There is one batch of a partition
under way at a time, so a retry with the same sequence number changes neither the order nor the number of messages.
After a batch that may or may not have been written, the partition gets a new producer id.

The protocol is ours. librdkafka (confluent-kafka) resolves names in C, aiokafka opens its sockets itself, and brokers
tell clients which hosts to call: the egress guard must decide about each of them. aiokafka also lets a broker create
missing topics, waits for them for 40 s, and repeats an idempotent batch without end.

Attributes are headers `ce_…`, as in CloudEvents' Kafka binding. Keys go to the same partitions as by Java's producer.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from evertick.contract.connections import KafkaConnection
from evertick.targets.brokers import kafka_protocol as protocol
from evertick.targets.brokers.publisher import Dial, Message, Publisher, PublishFailed
from evertick.targets.brokers.stream import (
    CONNECT_SECONDS,
    Connection,
    Shared,
    broker_down,
    host_and_port,
    open_stream,
    tls_context,
)

DEFAULT_PORT = 9092
MAX_BATCH_BYTES = 500_000
"""Half of what Kafka takes by default."""
MAX_RECORDS = 10_000
MAX_RESPONSE = 1_048_576
"""Of a topic with 20,000 partitions. What is longer would take too long to read."""
MAX_CONNECTIONS = 128
"""Of one publisher. A broker may name as many others as it likes."""
MAX_ASKED = 32
"""Brokers that only other brokers have named, and that are asked for metadata if no other answers."""
METADATA_SECONDS = 60.0
"""How old the list of a topic's partitions may be."""
TIMEOUT_MS = 10_000
"""How long a broker waits for the replicas."""
BACKOFFS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Between the tries of one batch, and of a topic without a leader."""

_OK, _DUPLICATE, _TOO_LARGE, _UNKNOWN_TOPIC = 0, 46, 10, 3
_NEW_PRODUCER = {45: "out of order", 47: "old epoch", 59: "unknown producer"}
_TRANSIENT = {
    3: "the partition does not exist on its leader",
    5: "the partition has no leader",
    6: "the leader of the partition has changed",
    7: "the replicas did not answer in time",
    9: "a replica is not available",
    13: "the broker lost its connection",
    14: "the broker is still starting",
    15: "the broker is still starting",
    19: "too few replicas are in sync",
    20: "too few replicas are in sync",
    56: "the broker cannot write to its disk",
    74: "the leader of the partition has changed",
}
_PERMANENT = {
    17: "the name of the topic is not valid",
    18: "the batch is too large for the broker",
    29: "writing to the topic is not permitted",
    31: "an idempotent producer is not permitted",
    44: "the rules of the topic do not allow it",
    87: "the broker refused the record",
}
_LOG_IN = {33: "the broker does not have the SASL mechanism", 34: "SASL is not expected", 58: "wrong credentials"}


@dataclass(slots=True, eq=False)
class Record:
    data: bytes
    stored: asyncio.Future[int]


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


def open_publisher(settings: Mapping[str, Any], secrets: Mapping[str, str], dial: Dial) -> Publisher:
    return KafkaPublisher(msgspec.convert(settings, KafkaConnection), secrets, dial)


class KafkaPublisher:
    """A producer for one cluster, with a connection to each broker that it needs."""

    def __init__(self, settings: KafkaConnection, secrets: Mapping[str, str], dial: Dial) -> None:
        self._cluster = Cluster(settings, secrets, dial)
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._turns = itertools.count()

    async def publish(self, message: Message) -> str:
        topic, key = str(message.address["topic"]), message.address.get("key")
        headers = [*message.headers.items(), ("content-type", message.content_type)]
        headers += [(f"ce_{name}", value) for name, value in message.attributes.items()]
        count = len(await self._cluster.leaders(topic))
        raw = None if key is None else str(key).encode()
        number = (next(self._turns) if raw is None else protocol.partition_hash(raw)) % count
        record = Record(protocol.record(raw, message.body, headers), asyncio.get_running_loop().create_future())
        self._add(topic, number, record)
        offset = await record.stored
        return f"topic {topic}, partition {number}, offset {offset if offset >= 0 else 'unknown'}"

    async def check(self) -> str:
        metadata = await self._cluster.ask()
        return f"Kafka cluster {metadata.cluster_id} with {len(metadata.brokers)} brokers"

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
        failure = broker_down("not tried")
        for backoff in (0.0, *BACKOFFS):
            await asyncio.sleep(backoff)
            try:
                error, offset = await self._try(partition, batch, at_ms)
            except PublishFailed as lost:
                failure = lost
                if not lost.retryable:
                    break
                self._cluster.forget(partition.topic)
                continue
            if error in (_OK, _DUPLICATE):
                partition.sequence += len(batch)
                partition.most = min(partition.most * 2, MAX_RECORDS)
                _succeed(batch, offset if error == _OK else -1)
                return
            if error == _TOO_LARGE and len(batch) > 1:
                _split(partition, batch)
                return
            failure = _failure(error, partition.topic)
            if error in _NEW_PRODUCER:
                partition.producer = None
            elif error in _TRANSIENT:
                self._cluster.forget(partition.topic)
            else:
                break
        partition.producer = None
        _fail(batch, failure)

    async def _try(self, partition: Partition, batch: list[Record], at_ms: int) -> tuple[int, int]:
        leaders = await self._cluster.leaders(partition.topic)
        if partition.number >= len(leaders):
            return _UNKNOWN_TOPIC, -1
        leader = await self._cluster.node(leaders[partition.number])
        if partition.producer is None:
            error, *producer = protocol.read_producer_id(
                await leader.ask(protocol.INIT_PRODUCER_ID, protocol.new_producer())
            )
            if error:
                return error, -1
            partition.producer, partition.sequence = (producer[0], producer[1]), 0
        data = protocol.record_batch([each.data for each in batch], at_ms, *partition.producer, partition.sequence)
        body = protocol.produce(partition.topic, partition.number, data, TIMEOUT_MS)
        return protocol.read_produced(await leader.ask(protocol.PRODUCE, body))


def _next_batch(partition: Partition) -> list[Record]:
    """The first records that still have a caller."""
    batch: list[Record] = []
    size = 0
    waiting = partition.waiting
    while waiting and len(batch) < partition.most and (not batch or size + len(waiting[0].data) <= MAX_BATCH_BYTES):
        record = waiting.popleft()
        if not record.stored.done():
            batch.append(record)
            size += len(record.data)
    return batch


def _split(partition: Partition, batch: list[Record]) -> None:
    """The limit of a topic is one of batches: half of this one is tried next."""
    partition.most = max(len(batch) // 2, 1)
    partition.waiting.extendleft(reversed(batch))
    batch.clear()


def _succeed(batch: list[Record], first_offset: int) -> None:
    for number, record in enumerate(batch):
        if not record.stored.done():
            record.stored.set_result(first_offset + number if first_offset >= 0 else -1)


def _fail(records: list[Record] | deque[Record], failure: Exception) -> None:
    for record in records:
        if not record.stored.done():
            record.stored.set_exception(failure)


def _failure(error: int, topic: str) -> PublishFailed:
    if error == _TOO_LARGE:
        reason = f"the message is larger than topic {topic} takes (max.message.bytes)"
        return PublishFailed(reason, retryable=False, is_broker_down=False)
    if error in _PERMANENT:
        return PublishFailed(f"topic {topic}: {_PERMANENT[error]}", retryable=False, is_broker_down=False)
    reason = _TRANSIENT.get(error) or _NEW_PRODUCER.get(error) or f"Kafka's error {error}"
    return PublishFailed(f"topic {topic}: {reason}", retryable=True, is_broker_down=error in _TRANSIENT)


class Cluster:
    """Which broker leads which partition, and the connections to brokers."""

    def __init__(self, settings: KafkaConnection, secrets: Mapping[str, str], dial: Dial) -> None:
        self._settings, self._secrets, self._dial = settings, secrets, dial
        self._brokers: Mapping[int, tuple[str, int]] = {}
        self._topics: dict[str, tuple[float, tuple[int, ...]]] = {}
        self._lookups: dict[str, asyncio.Task[tuple[int, ...]]] = {}
        self._connections: dict[tuple[str, int], Shared[KafkaStream]] = {}  # the last used is the last
        self._closing: set[asyncio.Task[None]] = set()

    async def leaders(self, topic: str) -> tuple[int, ...]:
        """The leaders of a topic's partitions; callers that ask at the same time share the request."""
        until, leaders = self._topics.get(topic, (0.0, ()))
        if time.monotonic() < until:
            return leaders
        lookup = self._lookups.get(topic)
        if lookup is None:
            lookup = self._lookups[topic] = asyncio.create_task(self._look_up(topic))
            lookup.add_done_callback(lambda ended: self._looked_up(topic, ended))
        return await asyncio.shield(lookup)

    def forget(self, topic: str) -> None:
        self._topics.pop(topic, None)

    async def node(self, number: int) -> "KafkaStream":
        address = self._brokers.get(number)
        if address is None:
            raise broker_down("the partition has no leader")
        return await self._connection(address)

    async def ask(self, *topics: str) -> protocol.Metadata:
        """Ask some broker: one that is connected, one that was named, or one that was known."""
        named = [host_and_port(server, DEFAULT_PORT) for server in self._settings.bootstrap_servers]
        live = [address for address, shared in self._connections.items() if shared.is_live]
        failure: PublishFailed | None = None
        for address in dict.fromkeys([*live, *named, *itertools.islice(self._brokers.values(), MAX_ASKED)]):
            try:
                connection = await self._connection(address)
                data = await connection.ask(protocol.METADATA, protocol.metadata_of(*topics))
            except PublishFailed as error:
                failure = failure or error
            else:
                return protocol.read_metadata(data)
        assert failure is not None
        raise failure

    async def close(self) -> None:
        for lookup in list(self._lookups.values()):
            lookup.cancel()
        for shared in self._connections.values():
            await shared.close()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _look_up(self, topic: str) -> tuple[int, ...]:
        failure = broker_down("not tried")
        for backoff in (0.0, *BACKOFFS):
            await asyncio.sleep(backoff)
            metadata = await self.ask(topic)
            self._brokers = metadata.brokers
            found = metadata.topics.get(topic)
            if found is None or found.error == _UNKNOWN_TOPIC:
                raise PublishFailed(f"topic {topic} does not exist", retryable=True, is_broker_down=False)
            if found.error == _OK and found.leaders:
                self._topics[topic] = (time.monotonic() + METADATA_SECONDS, found.leaders)
                return found.leaders
            failure = _failure(found.error, topic)
            if found.error not in _TRANSIENT:
                break
        raise failure

    def _looked_up(self, topic: str, lookup: asyncio.Task[tuple[int, ...]]) -> None:
        del self._lookups[topic]
        if not lookup.cancelled():
            lookup.exception()  # all callers may be gone

    async def _connection(self, address: tuple[str, int]) -> "KafkaStream":
        shared = self._connections.pop(address, None)
        if shared is None:
            shared = Shared(lambda: self._connect(*address))
            if len(self._connections) >= MAX_CONNECTIONS:
                closing = asyncio.create_task(self._connections.pop(next(iter(self._connections))).close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        self._connections[address] = shared
        return await shared.get()

    async def _connect(self, host: str, port: int) -> "KafkaStream":
        settings = self._settings
        tls = tls_context(settings.tls_ca) if settings.security_protocol.endswith("SSL") else None
        reader, writer = await open_stream(self._dial, host, port, tls)
        connection = KafkaStream(f"{host}:{port}", reader, writer)
        connection.begin()
        try:
            if settings.security_protocol.startswith("SASL"):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await connection.log_in(
                        settings.sasl_mechanism, settings.username or "", self._secrets.get("password", "")
                    )
        except (TimeoutError, ValueError, KeyError):
            failure = connection.lost("the broker did not answer as SASL requires")
            connection.lose(failure)
            raise failure from None
        except BaseException:
            connection.lose(connection.lost())
            raise
        return connection


class KafkaStream(Connection):
    """A connection to one broker, which answers requests in their order."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(name, reader, writer)
        self._correlation_id = 0
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._buffer = bytearray()

    async def ask(self, api: int, body: bytes) -> bytes:
        """Send a request, and return the body of its response."""
        self._correlation_id += 1
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self.write(protocol.request(api, self._correlation_id, body))
        self._answers[self._correlation_id] = answer
        await self.drain()
        return await answer

    async def log_in(self, mechanism: str, username: str, password: str) -> None:
        error, offered = protocol.read_mechanisms(await self.ask(protocol.SASL_HANDSHAKE, protocol.text(mechanism)))
        if error:
            raise broker_down(f"{self.name}: {_LOG_IN.get(error, error)}; it offers {', '.join(offered) or 'none'}")
        if mechanism == "PLAIN":
            await self._authenticate(f"\0{username}\0{password}".encode())
            return
        scram = protocol.Scram(mechanism, username, password)
        challenge = await self._authenticate(scram.first())
        scram.verify(await self._authenticate(scram.final(challenge)))

    async def _authenticate(self, token: bytes) -> bytes:
        answer = await self.ask(protocol.SASL_AUTHENTICATE, protocol.sasl_token(token))
        error, reason, challenge = protocol.read_authenticated(answer)
        if error:
            raise broker_down(f"{self.name}: {reason or _LOG_IN.get(error, error)}")
        return challenge

    @property
    def awaits_answers(self) -> bool:
        return bool(self._answers)

    def fail_all(self, failure: PublishFailed) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(failure)
                answer.exception()  # its caller may be gone
        self._answers.clear()

    def take(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 8:
            size = int.from_bytes(self._buffer[:4])
            if size > MAX_RESPONSE:
                raise ValueError("a response that is too long")
            if len(self._buffer) < size + 4:
                return
            answer = self._answers.pop(int.from_bytes(self._buffer[4:8]), None)
            if answer is not None and not answer.done():
                answer.set_result(bytes(self._buffer[8 : size + 4]))
            del self._buffer[: size + 4]
