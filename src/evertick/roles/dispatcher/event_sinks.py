"""Sends the events of tenants to their sinks.

Duty: each event reaches its sink at least once. A webhook gets the events in the order of the stream, a broker those
of each job (`event_messages`).

Invariants: one process at a time sends to a sink: it holds a lease, which an epoch fences. A batch is sent when the one
before it was accepted and its position stored. No batch is sent when the lease may have run out, by the monotonic
clock. A sink that fails is tried again, less and less often, for as long as its events are kept; others do not wait for
it.

Steps: twice a second it leases sinks that have events which they did not get, as many as it has room for. To each it
sends batch after batch until there are no more, stores the position after each, and gives the lease back. A sink whose
next events are not kept any more gets an event that says so.

Crash: the lease runs out, and another dispatcher sends on from the last position that was stored: the sink may get one
batch again, with the same ids. Slow database: as a slow sink. Stop: the batch under way has a moment to end.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from evertick.contract.broker_targets import BrokerAddress
from evertick.contract.events import Event, Sink
from evertick.contract.target import HttpTarget
from evertick.domain.attempt import AttemptOutcome, HandedOver, Succeeded
from evertick.domain.events import wait_seconds
from evertick.metrics.catalog import EVENTS_SENT
from evertick.roles.dispatcher.event_messages import MAX_OF_KEY, key_of, publish_batch
from evertick.roles.dispatcher.tenants import Keyring
from evertick.runtime.events import read_page
from evertick.runtime.logs import tenant_fields
from evertick.runtime.loop import Loop
from evertick.store.database import Pool
from evertick.store.tenants import events
from evertick.store.tenants.events import LeasedSink, Range
from evertick.targets.brokers.target import BrokerDelivery
from evertick.targets.http.delivery import HttpDelivery
from evertick.targets.http.request import EventBatch

logger = logging.getLogger("evertick.dispatcher")

POLL_SECONDS = 0.5
LEASE_SECONDS = 60.0
TIMEOUT_SECONDS = 15.0
"""Of one batch to a webhook."""
SPARE_SECONDS = 30.0
"""With less of the lease left no batch is sent: it may wait for a slot of its host, and take its whole time."""
AT_ONCE = 16
"""Sinks that a process sends to at a time."""
PAGE = 500
MAX_BATCH_BYTES = 1_048_576
ERROR_CHARACTERS = 500
STOP_SECONDS = 5.0

_sinks: msgspec.json.Decoder[Sink] = msgspec.json.Decoder(Sink)
_encoder = msgspec.json.Encoder()


class Batch(NamedTuple):
    """Events that are sent together, and each as JSON: whole for a webhook, its data for a broker."""

    events: Sequence[Event]
    bodies: Sequence[bytes]


Monotonic: TypeAlias = Callable[[], float]


class EventSinks:
    """Sends to all sinks that it can lease."""

    def __init__(
        self,
        pool: Pool,
        delivery: HttpDelivery,
        brokers: BrokerDelivery,
        keyring: Keyring,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._pool = pool
        self._delivery = delivery
        self._brokers = brokers
        self._keyring = keyring
        self.monotonic = monotonic
        self._sending: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._loop = Loop("event sinks", self._step)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        """Let batches under way come to their end, for a moment."""
        self._is_stopping = True
        await self._loop.stop()
        if self._sending:
            await asyncio.wait(self._sending, timeout=STOP_SECONDS)
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _step(self) -> float:
        leased, until = await self.lease()
        for sink in leased:
            task = asyncio.create_task(self._send_logged(sink, until))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        return POLL_SECONDS

    async def lease(self) -> tuple[list[LeasedSink], float]:
        """Sinks to send to, until when by the monotonic clock; and the secrets of their tenants."""
        until = self.monotonic() + LEASE_SECONDS
        room = AT_ONCE - len(self._sending)
        if not room:
            return [], until
        leased = await events.lease_sinks(self._pool, LEASE_SECONDS, room)
        await self._keyring.learn(self._pool, {sink.tenant_id for sink in leased})
        return leased, until

    async def _send_logged(self, sink: LeasedSink, until: float) -> None:
        try:
            await self.send(sink, until)
        except Exception:
            # The lease runs out by itself.
            logger.exception("sending events failed", extra=tenant_fields(sink.tenant_id))

    async def send(self, sink: LeasedSink, until: float) -> None:
        """Send what there is, until there is no more, the sink fails, or another has the lease."""
        try:
            target = _sinks.decode(sink.target)
        except msgspec.ValidationError as unknown:  # a newer version has stored it
            await self._failed(sink, f"this version cannot send to it: {unknown}")
            return
        cursor, latest = sink.cursor, sink.latest
        while cursor < latest and not self._is_stopping:
            wanted = Range(sink.tenant_id, cursor, latest, sink.types, sink.is_of_all)
            page = await read_page(self._pool, wanted, PAGE)
            for batch in [*_batches(page.events, target), None]:
                if batch is not None:
                    if self.monotonic() > until - SPARE_SECONDS:
                        return
                    error = await self._deliver(sink, target, batch)
                    EVENTS_SENT.add(len(batch.events), "failed" if error else "accepted")
                    if error is not None:
                        await self._failed(sink, error)
                        return
                cursor = page.cursor if batch is None else max(cursor, int(batch.events[-1].id))
                until = self.monotonic() + LEASE_SECONDS
                reached = await events.advance(self._pool, sink, cursor, LEASE_SECONDS)
                if reached is None:
                    return
                latest, sink = reached, sink._replace(failures=0)
        await events.release(self._pool, sink)

    async def _failed(self, sink: LeasedSink, error: str) -> None:
        wait = wait_seconds(sink.failures + 1)
        await events.release(self._pool, sink, wait, error[:ERROR_CHARACTERS])
        if not sink.failures:
            logger.warning("a sink of events fails: %s", error, extra=tenant_fields(sink.tenant_id))

    async def _deliver(self, leased: LeasedSink, sink: Sink, batch: Batch) -> str | None:
        """Send one batch; a text says why it was not accepted."""
        if isinstance(sink, BrokerAddress):
            return await publish_batch(self._brokers, leased.tenant_id, sink, batch.events, batch.bodies)
        secrets = self._keyring.secrets_of(leased.tenant_id)
        if secrets is None:
            return "the secrets of the tenant cannot be read here"
        request = EventBatch(
            tenant_id=leased.tenant_id,
            target=HttpTarget(sink.url, "POST", sink.headers),
            body=b"[" + b",".join(batch.bodies) + b"]",
            secrets=secrets,
            batch_id=f"events-{batch.events[0].id}-{batch.events[-1].id}",
        )
        longest = min(TIMEOUT_SECONDS, self._keyring.timeout_max(leased.tenant_id))
        return _error_of(await self._delivery.deliver(request, longest))


def _batches(found: Sequence[Event], sink: Sink) -> Iterator[Batch]:
    """The events in order, in batches that are not too large, for a broker also not too many of one key."""
    first, size, bodies = 0, 0, list[bytes]()
    keys: Counter[str] = Counter()
    for number, event in enumerate(found):
        key = key_of(sink, event) if isinstance(sink, BrokerAddress) else event.id
        body = _encoder.encode(event.data if isinstance(sink, BrokerAddress) else event)
        if bodies and (size + len(body) > MAX_BATCH_BYTES or keys[key] == MAX_OF_KEY):
            yield Batch(found[first:number], bodies)
            first, size, bodies = number, 0, []
            keys.clear()
        bodies.append(body)
        keys[key] += 1
        size += len(body)
    if bodies:
        yield Batch(found[first:], bodies)


def _error_of(outcome: AttemptOutcome) -> str | None:
    return None if isinstance(outcome, Succeeded | HandedOver) else outcome.error
