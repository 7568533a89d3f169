"""Sends the events of tenants to their sinks.

Duty: each event reaches its sink at least once, and the events of a sink come in the order of the stream.

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
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, assert_never

import msgspec

from evertick.contract.events import Event, Sink, WebhookSink
from evertick.contract.target import HttpTarget
from evertick.domain.attempt import AttemptOutcome, HandedOver, Succeeded
from evertick.domain.events import wait_seconds
from evertick.metrics.catalog import EVENTS_SENT
from evertick.roles.dispatcher.tenants import Keyring
from evertick.runtime.events import read_page
from evertick.runtime.logs import tenant_fields
from evertick.runtime.loop import Loop
from evertick.store.database import Pool
from evertick.store.tenants import events
from evertick.store.tenants.events import LeasedSink, Range
from evertick.targets.http.delivery import HttpDelivery
from evertick.targets.http.request import EventBatch

logger = logging.getLogger("evertick.dispatcher")

POLL_SECONDS = 0.5
LEASE_SECONDS = 60.0
TIMEOUT_SECONDS = 15.0
"""Of one batch."""
SPARE_SECONDS = 30.0
"""With less of the lease left no batch is sent: it may wait for a slot of its host, and take its whole time."""
AT_ONCE = 16
"""Sinks that a process sends to at a time."""
PAGE = 500
MAX_BATCH_BYTES = 1_048_576
ERROR_CHARACTERS = 500
STOP_SECONDS = 5.0

_sinks: msgspec.json.Decoder[Sink] = msgspec.json.Decoder(WebhookSink)
_encoder = msgspec.json.Encoder()


class Batch(NamedTuple):
    """Events that are sent together, as JSON."""

    first_id: str
    last_id: str
    events: Sequence[bytes]


Monotonic: TypeAlias = Callable[[], float]


class EventSinks:
    """Sends to all sinks that it can lease."""

    def __init__(
        self, pool: Pool, delivery: HttpDelivery, keyring: Keyring, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._pool = pool
        self._delivery = delivery
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
        cursor, latest = sink.cursor, sink.latest
        while cursor < latest and not self._is_stopping:
            wanted = Range(sink.tenant_id, cursor, latest, sink.types, sink.is_of_all)
            page = await read_page(self._pool, wanted, PAGE)
            for batch in [*_batches(page.events), None]:
                if batch is not None:
                    if self.monotonic() > until - SPARE_SECONDS:
                        return
                    error = _error_of(await self._deliver(sink, batch))
                    EVENTS_SENT.add(len(batch.events), "failed" if error else "accepted")
                    if error is not None:
                        await self._failed(sink, error)
                        return
                cursor = page.cursor if batch is None else max(cursor, int(batch.last_id))
                until = self.monotonic() + LEASE_SECONDS
                reached = await events.advance(self._pool, sink, cursor, LEASE_SECONDS)
                if reached is None:
                    return
                latest = reached
        await events.release(self._pool, sink)

    async def _failed(self, sink: LeasedSink, error: str) -> None:
        wait = wait_seconds(sink.failures + 1)
        await events.release(self._pool, sink, wait, error[:ERROR_CHARACTERS])
        if not sink.failures:
            logger.warning("a sink of events fails: %s", error, extra=tenant_fields(sink.tenant_id))

    async def _deliver(self, leased: LeasedSink, batch: Batch) -> AttemptOutcome | str:
        """Send one batch; a text says why it could not be."""
        sink = _sinks.decode(leased.target)
        match sink:
            case WebhookSink():
                secrets = self._keyring.secrets_of(leased.tenant_id)
                if secrets is None:
                    return "the secrets of the tenant cannot be read here"
                request = EventBatch(
                    tenant_id=leased.tenant_id,
                    target=HttpTarget(sink.url, "POST", sink.headers),
                    body=b"[" + b",".join(batch.events) + b"]",
                    secrets=secrets,
                    batch_id=f"events-{batch.first_id}-{batch.last_id}",
                )
                longest = min(TIMEOUT_SECONDS, self._keyring.timeout_max(leased.tenant_id))
                return await self._delivery.deliver(request, longest)
            case _:
                assert_never(sink)


def _batches(found: Sequence[Event]) -> Iterator[Batch]:
    """The events in order, in batches that are not too large."""
    first, size, texts = 0, 0, list[bytes]()
    for number, event in enumerate(found):
        text = _encoder.encode(event)
        if texts and size + len(text) > MAX_BATCH_BYTES:
            yield Batch(found[first].id, found[number - 1].id, texts)
            first, size, texts = number, 0, []
        texts.append(text)
        size += len(text)
    if texts:
        yield Batch(found[first].id, found[-1].id, texts)


def _error_of(outcome: AttemptOutcome | str) -> str | None:
    if isinstance(outcome, Succeeded | HandedOver):
        return None
    return outcome if isinstance(outcome, str) else outcome.error
