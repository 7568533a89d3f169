"""The brokers of a Kafka cluster: which of them leads which partition, the connections to them, and what their errors
mean.
"""

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from evertick.contract.connections import KafkaConnection
from evertick.targets.brokers import kafka_protocol as protocol
from evertick.targets.brokers.publisher import Dial, PublishFailed
from evertick.targets.brokers.stream import (
    CONNECT_SECONDS,
    Connection,
    Shared,
    broker_down,
    host_and_port,
    open_stream,
    reason_of_all,
    tls_context,
)

DEFAULT_PORT = 9092
MAX_RESPONSE = 1_048_576
"""Of a topic with 20,000 partitions. What is longer would take too long to read."""
MAX_CONNECTIONS = 128
"""Of one publisher. A broker may name as many others as it likes."""
LANES = 5
"""Connections to one broker for batches. It takes the next request of a connection when it has answered the one before,
and answers a batch when the replicas have it: those of other partitions must not wait for that."""
MAX_ASKED = 32
"""Brokers that only other brokers have named, and that are asked for metadata if no other answers."""
HEDGE_SECONDS = 1.0
"""A broker that has not told the metadata by then may hang: the next one is asked, too."""
CHECK_SECONDS = 5.0
"""So long a broker may take to answer when all are asked."""
METADATA_SECONDS = 60.0
"""How old the list of a topic's partitions may be."""
BACKOFFS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Between the tries of one batch, and of a topic without a leader."""

OK, TOO_LARGE, UNKNOWN_TOPIC = 0, 10, 3
NEW_PRODUCER = {45: "out of order", 47: "old epoch", 59: "unknown producer"}
TRANSIENT = {
    3: "the partition does not exist on its leader",
    5: "the partition has no leader",
    6: "the leader of the partition has changed",
    7: "the replicas did not answer in time",
    9: "a replica is not available",
    13: "the broker lost its connection",
    14: "the broker is still starting, or the cluster has no controller",
    15: "the broker is still starting, or the cluster has no controller",
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
OF_RECORDS = {TOO_LARGE, 18, 44, 87}
"""What Kafka says of a whole batch, though one record of it may be the reason."""
_LOG_IN = {33: "the broker does not have the SASL mechanism", 34: "SASL is not expected", 58: "wrong credentials"}


def failure_of(error: int, topic: str) -> PublishFailed:
    if error == TOO_LARGE:
        reason = f"the message is larger than topic {topic} takes (max.message.bytes)"
        return PublishFailed(reason, retryable=False, is_broker_down=False)
    if error in _PERMANENT:
        return PublishFailed(f"topic {topic}: {_PERMANENT[error]}", retryable=False, is_broker_down=False)
    reason = TRANSIENT.get(error) or NEW_PRODUCER.get(error) or f"Kafka's error {error}"
    return PublishFailed(f"topic {topic}: {reason}", retryable=True, is_broker_down=error in TRANSIENT)


Address: TypeAlias = tuple[str, int]
Lane: TypeAlias = tuple[str, int, int]
"""A connection to an address; number 0 is for metadata."""


class Cluster:
    """Which broker leads which partition, and the connections to brokers."""

    def __init__(self, settings: KafkaConnection, secrets: Mapping[str, str], dial: Dial) -> None:
        self._settings, self._secrets, self._dial = settings, secrets, dial
        self._brokers: Mapping[int, Address] = {}
        self._topics: dict[str, tuple[float, tuple[int, ...]]] = {}
        self._lookups: dict[str, asyncio.Task[tuple[int, ...]]] = {}
        self._told_by: Address | None = None
        self._doubted: Address | None = None
        self._connections: dict[Lane, Shared[KafkaStream]] = {}  # the last used is the last
        self._under_way: Counter[Lane] = Counter()
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

    @property
    def is_reachable(self) -> bool:
        """Whether some broker answered when the last lookup ended."""
        return self._told_by is not None

    def forget(self, topic: str) -> None:
        """Its leaders may have changed. Who told them may be cut off from the others, and is asked last."""
        self._topics.pop(topic, None)
        self._doubted = self._told_by

    async def ask_node(self, number: int, api: int, body: bytes) -> bytes:
        address = self._brokers.get(number)
        if address is None:
            raise broker_down("the partition has no leader")
        lanes = [(*address, lane) for lane in range(1, LANES + 1)]
        return await self._ask(min(lanes, key=self._under_way.__getitem__), api, body)

    async def ask(self, *topics: str) -> protocol.Metadata:
        """Ask some broker: one that is connected, one that was named, or one that was known."""
        live = [(host, port) for (host, port, lane), shared in self._connections.items() if not lane and shared.is_live]
        known = itertools.islice(self._brokers.values(), MAX_ASKED)
        addresses = list(dict.fromkeys([*live, *self._named(), *known]))
        addresses.sort(key=lambda address: address == self._doubted)
        asked: dict[asyncio.Task[protocol.Metadata], Address] = {}
        try:
            return await self._first_answer(addresses, asked, topics)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _first_answer(
        self, addresses: Sequence[Address], asked: dict[asyncio.Task[protocol.Metadata], Address], topics: Sequence[str]
    ) -> protocol.Metadata:
        failures: list[PublishFailed] = []
        waiting: set[asyncio.Task[protocol.Metadata]] = set()
        left = deque(addresses)
        while left or waiting:
            if left:
                task = asyncio.create_task(self._metadata_of(left[0], topics))
                asked[task] = left.popleft()
                waiting.add(task)
            seconds = HEDGE_SECONDS if left else None
            done, waiting = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None:
                    self._told_by = asked[task]
                    return task.result()
                if not isinstance(error, PublishFailed):
                    raise error
                failures.append(error)
        self._told_by = None
        raise reason_of_all(failures)

    async def ask_all(self) -> tuple[protocol.Metadata, list[PublishFailed]]:
        """Ask the brokers of the settings and those that they name: what one tells, and why others cannot be used.
        What is raised is why none can.
        """
        answers = await self._answers_of(self._named())
        told = next((each for each in answers.values() if isinstance(each, protocol.Metadata)), None)
        if told is not None:
            more = [each for each in told.brokers.values() if each not in answers]
            answers |= await self._answers_of(more[:MAX_ASKED])
        failures = {address: each for address, each in answers.items() if isinstance(each, PublishFailed)}
        if told is None or (told.brokers and failures.keys() >= set(told.brokers.values())):
            raise next(iter(failures.values()))
        return told, list(failures.values())

    async def _answers_of(self, addresses: Sequence[Address]) -> dict[Address, protocol.Metadata | PublishFailed]:
        async def answer(address: Address) -> protocol.Metadata | PublishFailed:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    return await self._metadata_of(address, ())
            except PublishFailed as failure:
                return failure
            except TimeoutError:
                return broker_down(f"{address[0]}:{address[1]} has not answered for {CHECK_SECONDS:g} s")

        answers = await asyncio.gather(*map(answer, addresses))
        return dict(zip(addresses, answers, strict=True))

    def _named(self) -> list[Address]:
        return [host_and_port(server, DEFAULT_PORT) for server in self._settings.bootstrap_servers]

    async def _metadata_of(self, address: Address, topics: Sequence[str]) -> protocol.Metadata:
        data = await self._ask((*address, 0), protocol.METADATA, protocol.metadata_of(*topics))
        return protocol.read_metadata(data)

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
            if found is None or found.error == UNKNOWN_TOPIC:
                raise PublishFailed(f"topic {topic} does not exist", retryable=True, is_broker_down=False)
            if found.error == OK and found.leaders:
                self._topics[topic] = (time.monotonic() + METADATA_SECONDS, found.leaders)
                return found.leaders
            failure = failure_of(found.error, topic)
            if found.error not in TRANSIENT:
                break
        raise failure

    def _looked_up(self, topic: str, lookup: asyncio.Task[tuple[int, ...]]) -> None:
        del self._lookups[topic]
        if not lookup.cancelled():
            lookup.exception()  # all callers may be gone

    async def _ask(self, lane: Lane, api: int, body: bytes) -> bytes:
        self._under_way[lane] += 1
        try:
            return await (await self._connection(lane)).ask(api, body)
        finally:
            self._under_way[lane] -= 1
            if not self._under_way[lane]:
                del self._under_way[lane]

    async def _connection(self, lane: Lane) -> "KafkaStream":
        shared = self._connections.pop(lane, None)
        if shared is None:
            shared = Shared(lambda: self._connect(*lane[:2]))
            if len(self._connections) >= MAX_CONNECTIONS:
                idle = (each for each in self._connections if not self._under_way[each])
                unused = self._connections.pop(next(idle, next(iter(self._connections))))
                closing = asyncio.create_task(unused.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        self._connections[lane] = shared
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
        self._answered_at = 0.0  # the last time, or when it was asked after a rest

    async def ask(self, api: int, body: bytes) -> bytes:
        """Send a request, and return the body of its response."""
        self._correlation_id += 1
        answer: asyncio.Future[bytes] = self._loop.create_future()
        if not self._answers:
            self._answered_at = self._loop.time()
        self.write(protocol.request(api, self._correlation_id, body))
        self._answers[self._correlation_id] = answer
        await self.drain()
        while not answer.done():
            await self.wait_for(answer)
            # Its turn comes after those before it, each of which may take a while.
            if not answer.done() and self.is_overdue(self._answered_at):
                self.lose(self.unanswered())
        return answer.result()

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
            self._answered_at = self._loop.time()
            if answer is not None and not answer.done():
                answer.set_result(bytes(self._buffer[8 : size + 4]))
            del self._buffer[: size + 4]
