"""The target of all brokers: publishes attempts over the connections of their tenants, and says how each ended.

Duty: make the message, find the publisher, wait for the broker's acknowledgement, decide what it means. No database.

Attempts come in batches. What they need from a connection is looked up once for a batch: its circuit, its rate limit,
its publisher. Those of a host that is not simply open are delivered one by one (`deliver`), each in a task, because the
claim of a probe and a token of a rate limit have to be waited for. A message has no task and no timer of its own: it is
an object that the publisher ends, and one sweep for all ends those over their time. What brokers have stored in one
turn of the event loop ends together.

Invariants: one deadline spans connecting and publishing; a sweep finds it at most SWEEP_SECONDS late. Nothing connects
but through the guard. A broker that hangs holds the slots that its connection may have, and nothing else of its tenant.
Neither secrets nor payloads are in any text.
"""

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from evertick.contract.broker_targets import BrokerAddress
from evertick.contract.events import SOURCE
from evertick.domain.attempt import Attempt, AttemptOutcome, Failed, HandedOver, NotStarted, Succeeded
from evertick.domain.breaker import TenantHost
from evertick.domain.errors import InvalidInput
from evertick.domain.states import Outcome
from evertick.runtime.logs import tenant_fields
from evertick.targets.brokers.message import Addressed, message_of, target_in
from evertick.targets.brokers.publisher import Message, PublishFailed, Sending, fail_all
from evertick.targets.brokers.publishers import ConnectionSettings, NoClient, Publishers, UsedPublisher
from evertick.targets.egress.resolution import MAX_PER_TENANT, TooManyLookups
from evertick.targets.hosts import Hosts

logger = logging.getLogger("evertick.dispatcher")

PER_CONNECTION = 128
"""Messages at once that one connection may wait for."""
LONGEST_SECONDS = 30.0
"""A broker that has not acknowledged by then does not work, whatever the job's timeout."""
WORTH_SENDING = 32
"""While more wait than have a slot, so many are sent at once: a write, an answer and its handling cost about as much
for one as for many."""
GATHER_SECONDS = 0.002
"""For so long at most fewer than that wait for others to get a slot."""
SWEEP_SECONDS = 0.1
EXCERPT_CHARACTERS, ERROR_CHARACTERS = 1024, 4096
"""Of what is kept of an answer: a payload may name a stream, and a broker may say anything."""
UNREADABLE = "the broker sent what cannot be read"
NO_SLOT = "deferred: no free slot for its connection"
UNREADABLE_TARGET = Failed("not sent: the job's target cannot be read", retryable=False)


class ConnectionUnusable(Exception):  # noqa: N818 - says what happened
    """A connection cannot be used here for now."""


class Connections(Protocol):
    """The connections of tenants."""

    def known(self, tenant_id: int, name: str) -> ConnectionSettings | None:
        """A connection that was used lately. Asked for each delivery."""

    async def find(self, tenant_id: int, name: str) -> ConnectionSettings | None:
        """A connection that is not known. None: there is none. ConnectionUnusable: it cannot be used here."""


class NoConnection(Exception):  # noqa: N818 - says what happened
    """The tenant has no such connection."""


class Call(Protocol):
    """An attempt that is delivered, and what gets its outcome, once. `cancel` is set when it can be cancelled."""

    attempt: Attempt
    cancel: Callable[[], object] | None

    def finish(self, outcome: AttemptOutcome) -> None: ...


class _AwaitedCall:
    """One that a coroutine waits for."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.cancel: Callable[[], object] | None = None
        self.outcome: asyncio.Future[AttemptOutcome] = asyncio.get_running_loop().create_future()

    def finish(self, outcome: AttemptOutcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


class _Batch:
    """Messages that were sent together, at `began` by the monotonic clock: they use the publisher until the last of
    them has ended.
    """

    __slots__ = ("began", "left", "line", "used")

    def __init__(self, line: "_Line", size: int, began: float) -> None:
        self.line = line
        self.left = size
        self.began = began
        self.used: UsedPublisher | None = None


class _Line:
    """One connection of a tenant: its messages that wait for a slot, and those under way."""

    __slots__ = ("host", "is_filling", "under_way", "waiting")

    def __init__(self, host: TenantHost) -> None:
        self.host = host
        self.waiting: deque[_Delivery] = deque()
        self.under_way: set[_Delivery] = set()
        self.is_filling = False  # soon

    @property
    def is_worth_filling(self) -> bool:
        """Whether enough of what waits can be sent now."""
        return PER_CONNECTION - len(self.under_way) >= min(len(self.waiting), WORTH_SENDING)


class _Delivery(Sending):
    """The message of one attempt. `is_alone`: its host was asked for it alone, and is told by others how it ended.

    `until` is when its wait for a slot ends, and then when its broker must have acknowledged, by the monotonic clock.
    """

    __slots__ = ("batch", "call", "found", "is_alone", "line", "owner", "seconds", "until")

    def __init__(  # noqa: PLR0913 - plain, because one is made for each message
        self, owner: "BrokerDelivery", line: _Line, call: Call, found: Addressed, message: Message, *, is_alone: bool
    ) -> None:
        self.message = message
        self.is_over = False
        self.owner = owner
        self.line = line
        self.call = call
        self.found = found
        self.is_alone = is_alone
        self.batch: _Batch | None = None
        self.seconds = self.until = 0.0

    def stored(self, receipt: str) -> None:
        if not self.is_over:
            self.is_over = True
            self.owner.stored(self, receipt[:EXCERPT_CHARACTERS])

    def ended(self, receipt: str | None, failure: Exception | None) -> None:  # noqa: ARG002 - `stored` has it
        if failure is not None:
            self.end(_outcome_of(failure, self.found.target.queue_name, self.call.attempt.tenant_id))

    def end(self, outcome: AttemptOutcome) -> None:
        self.owner.ended(self, outcome)
        self.call.finish(outcome)

    def cancel(self) -> None:
        """Nobody waits for it any more. If it was sent, the broker may have it nevertheless."""
        if not self.is_over:
            self.is_over = True
            self.owner.ended(self, None)


class BrokerDelivery:
    """Publishes each attempt once."""

    def __init__(  # noqa: PLR0913 - what it uses, and two limits
        self,
        connections: Connections,
        publishers: Publishers,
        timeout_max: Callable[[int], int],
        hosts: Hosts | None = None,
        *,
        slot_wait_seconds: float = 2.0,
        source: str = SOURCE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self.publishers = publishers
        self._timeout_max = timeout_max
        self._hosts = hosts or Hosts()
        self._slot_wait_seconds = slot_wait_seconds
        self._source = source
        self._monotonic = monotonic
        self._lines: dict[tuple[int, str], _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stored: list[tuple[_Delivery, str | None]] = []  # in this turn of the event loop
        self._sweeping: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.publishers.close()

    def begin(self, calls: Sequence[Call]) -> None:
        """Publish attempts together, those of each connection in one batch."""
        lines: dict[tuple[int, str, bool], _Line | None] = {}
        until = self._monotonic() + self._slot_wait_seconds
        for call in calls:
            attempt = call.attempt
            found = target_in(attempt.spec or "")
            if found is None:
                call.finish(UNREADABLE_TARGET)
                continue
            key = attempt.tenant_id, found.host, found.target.circuit_breaker
            if key not in lines:
                host = TenantHost(attempt.tenant_id, found.host)
                is_open = self._hosts.is_open(host, has_breaker=key[2])
                lines[key] = self._line(host) if is_open else None
            line = lines[key]
            if line is None:
                self._deliver_alone(call)
            else:
                self._add(line, call, found, until)
        for line in lines.values():
            if line is not None and line.is_worth_filling:
                self._fill(line)
            elif line is not None:
                self._fill_soon(line)

    async def deliver(self, attempt: Attempt) -> AttemptOutcome:
        """Publish one attempt, when its host admits it."""
        found = target_in(attempt.spec or "")
        if found is None:
            return UNREADABLE_TARGET
        host = TenantHost(attempt.tenant_id, found.host)
        return await self._hosts.send(
            host,
            lambda: self._publish(attempt, found, host),
            has_breaker=found.target.circuit_breaker,
            is_new=not attempt.deferrals,
        )

    async def publish(self, tenant_id: int, target: BrokerAddress, message: Message) -> AttemptOutcome:
        """Publish a message over the tenant's connection that a target names."""
        used: UsedPublisher | None = None
        try:
            used = self.publishers.take(await self._connection(tenant_id, target.queue_name, target.connection))
            return Succeeded(await used.publisher.publish(message))
        except Exception as failure:  # noqa: BLE001 - a broker may answer anything
            return _outcome_of(failure, target.queue_name, tenant_id)
        finally:
            if used is not None:
                self.publishers.give_back(used)

    def ended(self, delivery: _Delivery, outcome: AttemptOutcome | None) -> None:
        """Its slot is free. None: it was cancelled."""
        line, batch = delivery.line, delivery.batch
        if batch is not None:
            self._free(batch, [delivery])
        if not delivery.is_alone:
            has_breaker = delivery.found.target.circuit_breaker
            began = 0.0 if batch is None else batch.began
            self._hosts.ended(line.host, outcome, began=began, has_breaker=has_breaker)
        self._fill_soon(line)

    def stored(self, delivery: _Delivery, receipt: str | None) -> None:
        """Its broker has it. Those of one turn of the event loop end together."""
        if not self._stored:
            asyncio.get_running_loop().call_soon(self._end_stored)
        self._stored.append((delivery, receipt))

    def _end_stored(self) -> None:
        stored, self._stored = self._stored, []
        by_batch: defaultdict[_Batch, list[_Delivery]] = defaultdict(list)
        for delivery, _ in stored:
            assert delivery.batch is not None
            by_batch[delivery.batch].append(delivery)
        for batch, deliveries in by_batch.items():
            self._free(batch, deliveries)
            asked = [each.found.target.circuit_breaker for each in deliveries if not each.is_alone]
            self._hosts.answered(batch.line.host, len(asked), began=batch.began, with_breaker=sum(asked))
            self._fill_soon(batch.line)
        for delivery, receipt in stored:
            delivery.call.finish(HandedOver(receipt) if delivery.found.is_reported else Succeeded(receipt))

    def _free(self, batch: _Batch, deliveries: Sequence[_Delivery]) -> None:
        """Slots of a batch are free."""
        batch.line.under_way.difference_update(deliveries)
        batch.left -= len(deliveries)
        if not batch.left and batch.used is not None:
            self.publishers.give_back(batch.used)

    def _deliver_alone(self, call: Call) -> None:
        async def deliver() -> None:
            try:
                outcome = await self.deliver(call.attempt)
            except Exception as error:
                logger.exception("a delivery failed", extra=tenant_fields(call.attempt.tenant_id))
                outcome = Failed(f"not sent: {type(error).__name__}")
            call.finish(outcome)

        call.cancel = self._spawn(deliver()).cancel

    async def _publish(self, attempt: Attempt, found: Addressed, host: TenantHost) -> AttemptOutcome:
        call = _AwaitedCall(attempt)
        line = self._line(host)
        self._add(line, call, found, self._monotonic() + self._slot_wait_seconds, is_alone=True)
        self._fill(line)
        try:
            return await call.outcome
        finally:
            if call.cancel is not None:
                call.cancel()

    def _line(self, host: TenantHost) -> _Line:
        line = self._lines.get(host)
        if line is None:
            line = self._lines[host] = _Line(host)
        return line

    def _forget_if_unused(self, line: _Line) -> None:
        if not line.under_way and not line.waiting and self._lines.get(line.host) is line:
            del self._lines[line.host]

    def _add(self, line: _Line, call: Call, found: Addressed, until: float, *, is_alone: bool = False) -> None:
        """It waits for a slot, until then at most."""
        try:
            message = message_of(call.attempt, found, self._source)
        except InvalidInput as refused:
            call.finish(Failed(f"not sent: the {refused.field} {refused.reason}", retryable=False))
            return
        except Exception as error:
            logger.exception("no message could be made", extra=tenant_fields(call.attempt.tenant_id))
            call.finish(Failed(f"not sent: no message could be made: {type(error).__name__}"))
            return
        delivery = _Delivery(self, line, call, found, message, is_alone=is_alone)
        delivery.until = until
        call.cancel = delivery.cancel
        line.waiting.append(delivery)

    def _fill_soon(self, line: _Line) -> None:
        """Slots may be free for messages that wait: send them in this turn of the event loop, or when more are free."""
        if not line.waiting:
            self._forget_if_unused(line)
        elif not line.is_filling:
            line.is_filling = True
            loop = asyncio.get_running_loop()
            if line.is_worth_filling:
                loop.call_soon(self._fill, line)
            else:
                loop.call_later(GATHER_SECONDS, self._fill, line)

    def _fill(self, line: _Line) -> None:
        """Send as many of the messages that wait as there are slots, but for those that have waited for too long: in a
        process that stood still their leases may be others' by now.
        """
        line.is_filling = False
        now = self._monotonic()
        self._end_overdue(line, now)
        batch: list[_Delivery] = []
        waiting, room = line.waiting, PER_CONNECTION - len(line.under_way)
        while waiting and len(batch) < room:
            delivery = waiting.popleft()
            if not delivery.is_over:
                batch.append(delivery)
        if batch:
            sent = _Batch(line, len(batch), now)
            longest = min(self._timeout_max(line.host.tenant_id), LONGEST_SECONDS)
            for delivery in batch:
                seconds = min(delivery.call.attempt.timeout_seconds, longest)
                delivery.batch, delivery.seconds, delivery.until = sent, seconds, now + seconds
            line.under_way.update(batch)
            self._spawn(self._send(line.host.tenant_id, batch, sent))
        self._forget_if_unused(line)
        if self._sweeping is None and self._lines:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    async def _send(self, tenant_id: int, batch: Sequence[_Delivery], sent: _Batch) -> None:
        target = batch[0].found.target
        try:
            connection = await self._connection(tenant_id, target.queue_name, target.connection)
            used = self.publishers.take(connection)
            if not sent.left:
                self.publishers.give_back(used)
                return
            sent.used = used
            await used.publisher.send(batch)
        except Exception as failure:  # noqa: BLE001 - a broker may answer anything
            fail_all(batch, failure)

    async def _connection(self, tenant_id: int, kind: str, name: str) -> ConnectionSettings:
        connection = self._connections.known(tenant_id, name)
        if connection is None:
            connection = await self._connections.find(tenant_id, name)
        if connection is None or connection.type != kind:
            raise NoConnection(f"not sent: there is no connection {name!r} of type {kind}")
        return connection

    def _sweep(self) -> None:
        """End what is over its time, and what has waited for a slot for too long."""
        loop = asyncio.get_running_loop()
        now = self._monotonic()
        self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep) if self._lines else None
        for line in list(self._lines.values()):
            for delivery in [each for each in line.under_way if each.until <= now]:
                self._end(delivery, Failed(f"no acknowledgement within {delivery.seconds:g} s", Outcome.TIMED_OUT))
            self._end_overdue(line, now)

    def _end_overdue(self, line: _Line, now: float) -> None:
        """Those that wait have the same time to wait, so that the first is over first."""
        while line.waiting and (line.waiting[0].is_over or line.waiting[0].until <= now):
            self._end(line.waiting.popleft(), NotStarted(NO_SLOT, is_host_busy=True))

    @staticmethod
    def _end(delivery: _Delivery, outcome: AttemptOutcome) -> None:
        if not delivery.is_over:
            delivery.is_over = True
            delivery.end(outcome)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _outcome_of(failure: Exception, kind: str, tenant_id: int) -> AttemptOutcome:
    match failure:
        case PublishFailed():
            reason = str(failure)[:ERROR_CHARACTERS]
            return Failed(reason, retryable=failure.retryable, is_host_well=not failure.is_broker_down)
        case NoConnection():
            return Failed(str(failure), retryable=False)
        case ConnectionUnusable() | NoClient():
            return NotStarted(f"deferred: {failure}")
        case TooManyLookups():
            return NotStarted(f"deferred: {MAX_PER_TENANT} names of its tenant's targets are being looked up")
        case _:
            logger.warning("the client for %s failed", kind, exc_info=failure, extra=tenant_fields(tenant_id))
            return Failed(f"{UNREADABLE} ({type(failure).__name__})", is_host_well=False)
