"""How attempts wait for slots of a connection, with a broker that acknowledges when it is told to."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from engine import PATIENCE_SECONDS
from evertick.domain.attempt import Attempt, AttemptOutcome, Failed, NotStarted, Succeeded
from evertick.domain.breaker import TenantHost
from evertick.executor.sources.http.source import RemoteAttempt
from evertick.targets.brokers.publisher import Publisher, PublishFailed, Sending
from evertick.targets.brokers.publishers import ConnectionSettings, Publishers
from evertick.targets.brokers.target import (
    ERROR_CHARACTERS,
    EXCERPT_CHARACTERS,
    PER_CONNECTION,
    WORTH_SENDING,
    BrokerDelivery,
)
from evertick.targets.hosts import Hosts, NoCircuits

SPEC = '{"target": {"type": "redis_stream", "connection": "orders", "stream": "invoices"}}'
SETTINGS = ConnectionSettings(1, "orders", "redis_stream", "1", {}, {})


class Connections:
    def known(self, tenant_id: int, name: str) -> ConnectionSettings | None:
        return SETTINGS

    async def find(self, tenant_id: int, name: str) -> ConnectionSettings | None:
        raise AssertionError(f"{name} of {tenant_id} is known")


class PatientPublisher(Publisher):
    """Takes all that it gets."""

    def __init__(self) -> None:
        self.taken: list[Sending] = []
        self._sent = asyncio.Event()

    async def send(self, batch: Sequence[Sending]) -> None:
        self.taken += batch
        self._sent.set()

    async def until_taken(self, count: int) -> None:
        while len(self.taken) < count:
            self._sent.clear()
            await self._sent.wait()

    async def check(self) -> str:
        return ""

    async def close(self) -> None:
        pass


class Call:
    def __init__(self, number: int) -> None:
        self.attempt: Attempt = RemoteAttempt(
            token=(1, number),
            lease_id=1,
            job_id=number,
            name="nightly",
            fire_at=datetime(2026, 1, 1, tzinfo=UTC),
            reason="tick",
            attempt=1,
            deferrals=0,
            handler=None,
            payload=None,
            timeout_seconds=300,
            idempotency_key=f"key-{number}",
            tenant_id=1,
            spec=SPEC,
        )
        self.cancel: Callable[[], object] | None = None
        self.outcome: AttemptOutcome | None = None

    def finish(self, outcome: AttemptOutcome) -> None:
        self.outcome = outcome


async def turns(count: int = 3) -> None:
    """Turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


class CountingCircuits(NoCircuits):
    def __init__(self) -> None:
        self.answers: list[tuple[TenantHost, int]] = []

    def answered(self, host: TenantHost, count: int, *, began: float) -> None:
        self.answers.append((host, count))


async def test_what_a_broker_stores_in_one_turn_of_the_event_loop_ends_together() -> None:
    publisher, circuits = PatientPublisher(), CountingCircuits()
    publishers = Publishers(lambda _: publisher, most=2)
    delivery = BrokerDelivery(Connections(), publishers, lambda _: 300, Hosts(circuits))
    calls = [Call(number) for number in range(4)]
    delivery.begin(calls)
    await turns()
    for number, sending in enumerate(publisher.taken[:3]):
        sending.stored(f"entry {number}")
    publisher.taken[0].stored("again")
    assert [call.outcome for call in calls] == [None] * 4
    await turns()
    assert [call.outcome for call in calls] == [*(Succeeded(f"entry {number}") for number in range(3)), None]
    assert circuits.answers == [(TenantHost(1, "redis_stream:orders"), 3)]
    await delivery.close()


async def test_what_is_kept_of_an_answer_is_not_as_long_as_a_payload_or_a_broker_makes_it() -> None:
    publisher = PatientPublisher()
    delivery = BrokerDelivery(Connections(), Publishers(lambda _: publisher, most=2), lambda _: 300)
    stored, failed = calls = [Call(number) for number in range(2)]
    delivery.begin(calls)
    await turns()
    publisher.taken[0].stored("stream " + "s" * 60_000)
    publisher.taken[1].failed(PublishFailed("Redis refused: " + "r" * 60_000, retryable=False, is_broker_down=False))
    await turns()
    assert isinstance(stored.outcome, Succeeded)
    assert stored.outcome.excerpt == "stream " + "s" * (EXCERPT_CHARACTERS - 7)
    assert isinstance(failed.outcome, Failed)
    assert failed.outcome.error == "Redis refused: " + "r" * (ERROR_CHARACTERS - 15)
    await delivery.close()


async def test_while_many_wait_a_few_free_slots_are_not_filled_at_once_but_soon() -> None:
    publisher = PatientPublisher()
    delivery = BrokerDelivery(Connections(), Publishers(lambda _: publisher, most=2), lambda _: 300)
    delivery.begin([Call(number) for number in range(2 * PER_CONNECTION)])
    await turns()
    assert len(publisher.taken) == PER_CONNECTION
    for sending in publisher.taken[:3]:
        sending.stored("")
    await turns()
    assert len(publisher.taken) == PER_CONNECTION
    async with asyncio.timeout(PATIENCE_SECONDS):
        await publisher.until_taken(PER_CONNECTION + 3)
    for sending in publisher.taken[3 : 3 + WORTH_SENDING]:
        sending.stored("")
    await turns()
    assert len(publisher.taken) == PER_CONNECTION + 3 + WORTH_SENDING
    await delivery.close()


async def test_what_waited_for_a_slot_while_the_process_stood_still_is_not_sent() -> None:
    """Its lease may have been taken over meanwhile."""
    now = 1000.0
    publisher = PatientPublisher()
    publishers = Publishers(lambda _: publisher, most=2)
    delivery = BrokerDelivery(Connections(), publishers, lambda _: 300, monotonic=lambda: now)
    calls = [Call(number) for number in range(PER_CONNECTION + 2)]
    delivery.begin(calls)
    await asyncio.sleep(0)
    assert len(publisher.taken) == PER_CONNECTION
    now += 20.0
    publisher.taken[0].stored("")
    publisher.taken[1].stored("")
    late = Call(PER_CONNECTION + 2)
    delivery.begin([late])
    async with asyncio.timeout(PATIENCE_SECONDS):
        await publisher.until_taken(PER_CONNECTION + 1)
    assert [type(call.outcome) for call in calls if call.outcome] == [Succeeded, Succeeded, NotStarted, NotStarted]
    assert publisher.taken[PER_CONNECTION:] == publisher.taken[-1:]
    assert publisher.taken[-1].message.message_id == late.attempt.idempotency_key
    await delivery.close()
