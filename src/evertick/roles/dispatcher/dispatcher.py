"""The dispatcher: leases the ready attempts of jobs for HTTP and brokers, delivers them, records what their targets
answered.

Duty: each attempt is sent once, within its job's timeout and its tenant's maximum, webhooks signed, and its outcome
recorded soon after; or it is put back. (Once more only where a kept connection broke before an answer: see
`targets.http.delivery`.)

It is an executor on the database source whose handlers are targets; leasing, heartbeats, recording and stopping are the
executor's. A target returns the outcome of each attempt.

Invariants, beside the executor's: no attempt is leased whose delivery could not be signed. Nothing is sent but through
the guard. Secrets, payloads and URLs are in no log. A slow or unreachable host takes up
the slots that a tenant has for it, and many such hosts the tenant's share of the dispatcher's slots
(`domain.fairness`): every other tenant gets its part of the slots at once. An attempt whose delivery was not begun
leaves no outcome and counts as no try.

Steps, beside the executor's:
1. each second: look for new tenants, rotated secrets, changed connections and limits, and whether deliveries may still
   go to this machine; a tenant's first secret is made here.
2. lease: from each tenant as much as it has room for; one that has all the slots it may have is not asked.
3. deliver: tenants take turns for slots. What is leased and gets no slot for a moment is put back, to be leased by a
   dispatcher that has one.
4. decide the outcome: success, failure (for good, or to be retried, at the earliest when the target said), timeout;
   without a free slot of its host or a turn to look its name up the attempt is put back, for 5 seconds at first and up
   to 5 minutes.
   A host that fails is left alone (`circuits`): deliveries to it are put back until a probe finds it well. So are those
   that a host's rate limit does not allow yet (`host_rates`).
5. pause: a job whose target answered 410, unless it was edited since, with an entry in the audit log.
6. send events to the sinks of tenants (`event_sinks`).

Crash: the leases run out and the attempts are retried, with the same idempotency key and a larger fencing token. A
receiver may so see a delivery again whose answer was lost. Slow or lost database, lost lease: as the executor. After
a lost lease the connection is closed, whatever the target did with the request. Stop: deliveries have the grace
to come to their end, those that outlast it are handed back, and what was not begun is put back, without counting as a
try.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from evertick.contract.broker_targets import BrokerType
from evertick.contract.target import HTTP_QUEUE
from evertick.domain.attempt import Attempt, AttemptOutcome, Failed, HandedOver, NotStarted, Succeeded
from evertick.domain.fairness import FairSlots
from evertick.domain.schedule.instants import SECOND_US
from evertick.domain.states import Outcome
from evertick.executor.executor import GRACE, Executor
from evertick.executor.source import AttemptCounters, EndedAttempt
from evertick.executor.sources.database.source import LEASE_TIME, DatabaseSource
from evertick.metrics.catalog import BROKER_MESSAGES, WEBHOOKS
from evertick.roles.dispatcher.circuits import Circuits
from evertick.roles.dispatcher.connections import DispatchedConnections
from evertick.roles.dispatcher.event_sinks import EventSinks
from evertick.roles.dispatcher.host_rates import HostRates
from evertick.roles.dispatcher.pausing import Pausing
from evertick.roles.dispatcher.settings import Egress
from evertick.roles.dispatcher.slots import DeliveryCounts, WaitingForSlots
from evertick.roles.dispatcher.tenants import LOOK_SECONDS, Keyring, TenantQueues
from evertick.runtime import timeouts
from evertick.runtime.clock import Clock, DatabaseClock
from evertick.runtime.logs import run_fields
from evertick.runtime.loop import Loop
from evertick.store.database import open_pool
from evertick.store.engine.lanes import is_gated, queue_of
from evertick.store.location import DatabaseAddress
from evertick.store.statements import Connection
from evertick.store.tenants.secrets import Seal
from evertick.targets.brokers.publishers import Publishers
from evertick.targets.brokers.target import BrokerDelivery
from evertick.targets.egress.guard import EgressPolicy, Guard
from evertick.targets.egress.resolution import Resolve, SystemResolver
from evertick.targets.hosts import Hosts
from evertick.targets.http.delivery import DeliverySettings, HttpDelivery
from evertick.targets.http.webhooks import WebhookTarget

logger = logging.getLogger("evertick.dispatcher")

CONCURRENCY = 256
STARTS_AT_ONCE = 4
"""Deliveries that begin in one turn of the event loop: each step of a lease waits for a turn, so turns are short."""
MESSAGE_COST = 1 / 16
"""What a message to a broker costs, in deliveries by HTTP."""
EVENT_CONNECTIONS = 2
HOST_WAIT_SECONDS = 2.0
BACKSTOP_SECONDS = 30
"""A target ends an attempt at its timeout itself. If it does not, it is stopped so much later."""
NO_HANDLER = ""
"""The handler of attempts that dispatchers put back."""
ACKNOWLEDGED = "acknowledged"
_MADE = (Succeeded, Failed, HandedOver)
"""The outcomes of deliveries that came to an end."""


class _TypedTarget(msgspec.Struct):
    type: str = HTTP_QUEUE


class _TypedSpec(msgspec.Struct):
    target: _TypedTarget


_specs = msgspec.json.Decoder(_TypedSpec)


def type_in(spec: str) -> str:
    """The type of a job's target."""
    try:
        return _specs.decode(spec).target.type
    except msgspec.DecodeError:  # and ValidationError, which is one
        return HTTP_QUEUE  # which says that it cannot be read


class TargetHandler:
    """Delivers attempts to targets of one type. `begin` begins many at once, where a target can do that.

    A target ends an attempt at its timeout itself.
    """

    is_async = True

    def __init__(
        self,
        deliver: Callable[[Attempt], Awaitable[AttemptOutcome]],
        timeout_max: Callable[[int], int],
        begin: Callable[[Sequence[Any]], None] | None = None,
    ) -> None:
        self.begin = begin
        self.start_cost = 1.0 if begin is None else MESSAGE_COST
        self._deliver = deliver
        self._timeout_max = timeout_max

    def call(self, attempt: Attempt, started_at: datetime, call: object) -> Any:  # noqa: ARG002 - a delivery has its own
        return self._deliver(attempt)

    def outcome_of(self, value: AttemptOutcome) -> AttemptOutcome:
        return value

    def deadline_seconds(self, attempt: Attempt) -> float:
        return min(attempt.timeout_seconds, self._timeout_max(attempt.tenant_id)) + BACKSTOP_SECONDS


class TargetHandlers:
    """The handlers of a dispatcher, by the types of targets."""

    names = (NO_HANDLER,)

    def __init__(self, timeout_max: Callable[[int], int]) -> None:
        self._timeout_max = timeout_max
        self._by_type: dict[str, TargetHandler] = {}

    def open(self, webhooks: WebhookTarget, brokers: BrokerDelivery) -> None:
        by_type = {HTTP_QUEUE: TargetHandler(webhooks.deliver, self._timeout_max)}
        for kind in BrokerType:
            by_type[kind] = TargetHandler(brokers.deliver, self._timeout_max, brokers.begin)
        self._by_type = by_type

    def find(self, attempt: Attempt) -> TargetHandler:
        kind = type_in(attempt.spec or "")
        return self._by_type.get(kind) or TargetHandler(_unknown, self._timeout_max)

    def kinds(self) -> set[bool]:
        return {True}


async def _unknown(attempt: Attempt) -> AttemptOutcome:
    return NotStarted(f"deferred: this dispatcher knows no targets of type {type_in(attempt.spec or '')}")


class Dispatcher:
    """One process's dispatcher, for all tenants. `egress`: where webhooks may go, given how many tenants there are."""

    def __init__(  # noqa: PLR0913 - where it works, how much, and what it may reach
        self,
        url: DatabaseAddress,
        seal: Seal,
        egress: Callable[[int], Egress],
        *,
        concurrency: int = CONCURRENCY,
        settings: DeliverySettings | None = None,
        lease_time: timedelta = LEASE_TIME,
        redis_url: str | None = None,
        resolve: Resolve | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._url = url
        self._seal = seal
        self._egress_for = egress
        self._egress: Egress | None = None
        self._resolve = resolve
        self._clock = clock or DatabaseClock()
        self._settings = settings or DeliverySettings(host_wait_seconds=HOST_WAIT_SECONDS, most_open=2 * concurrency)
        self.keyring = Keyring(seal, self._look)
        self.slots = FairSlots(concurrency, weight_of=self.keyring.weight_of)
        self.waiting = WaitingForSlots(self.slots, self._settings.host_wait_seconds, delay_of=self._delay_of)
        self._delivery_counts = DeliveryCounts()
        self._queues = TenantQueues(self.keyring, self.slots, self.waiting.queue, self._delivery_counts)
        self._source = DatabaseSource(url, self._queues, lease_time=lease_time, redis_url=redis_url)
        self._handlers = TargetHandlers(self.keyring.timeout_max)
        self.executor = Executor(
            self._source,
            self._handlers,
            concurrency=concurrency,
            threads=0,
            starts_at_once=STARTS_AT_ONCE,
            waiting=self.waiting,
            on_ended=self._ended,
            on_gone=self.waiting.queue.leave,
            role="dispatcher",
            clock=self._clock,
        )
        self._tenants_loop = Loop("tenants", self._step)

    @property
    def name(self) -> str:
        return self.executor.name

    @property
    def counters(self) -> AttemptCounters:
        return self.executor.counters

    async def open(self) -> None:
        """Connect. CannotUnseal: a key is missing that stored secrets were sealed with."""
        await self.executor.open()
        # What is open beyond the public network is known when the tenants are.
        guard = Guard(EgressPolicy(), self._resolve or SystemResolver(), self.keyring.sharing)
        self._delivery = HttpDelivery(guard, self._clock, self._settings, self.keyring.sharing)
        self.circuits = Circuits(self._source.pool, self._clock)
        self.host_rates = HostRates(self._source.pool, self._source.rate_slices)
        hosts = Hosts(self.circuits, self.host_rates)
        self._webhooks = WebhookTarget(self._delivery, self.keyring.secrets_of, self.keyring.timeout_max, hosts)
        self.connections = DispatchedConnections(self._source.pool, self._seal)
        self.publishers = Publishers.guarded(guard, most=2 * self.slots.total)
        wait, source = self._settings.host_wait_seconds, self._settings.source
        self._brokers = BrokerDelivery(
            self.connections,
            self.publishers,
            self.keyring.timeout_max,
            hosts,
            slot_wait_seconds=wait,
            source=source,
        )
        self._handlers.open(self._webhooks, self._brokers)
        self.pausing = Pausing(self._source.pool)
        # A pool of their own: leasing must not wait for the events of tenants.
        self._events_pool = await open_pool(
            self._url, min_size=0, max_size=EVENT_CONNECTIONS, timeouts=timeouts.API, purpose="events"
        )
        self.event_sinks = EventSinks(self._events_pool, self._delivery, self._brokers, self.keyring)
        await self.circuits.read()
        await self.host_rates.read()
        await self.keyring.learn_all(self._source.pool)
        await self._look(self._source.pool)
        for unreadable in self.keyring.unreadable.values():
            await self.close()
            raise unreadable

    async def close(self) -> None:
        await self.circuits.stop()
        await self.host_rates.stop()
        await self.pausing.stop()
        await self.event_sinks.stop()
        await self._events_pool.close()
        await self._webhooks.close()
        await self._brokers.close()
        await self.executor.close()

    async def start(self) -> None:
        """Deliver until `stop`."""
        await self.open()
        self.executor.run()
        self._tenants_loop.start()
        self.circuits.start()
        self.host_rates.start()
        self.pausing.start()
        self.event_sinks.start()
        logger.info("dispatcher %s started", self.name, extra={"worker": self.name})

    async def stop(self, grace: timedelta = GRACE) -> None:
        await self.executor.drain(grace)
        await self._tenants_loop.stop()
        await self.close()
        logger.info("dispatcher %s stopped", self.name, extra={"worker": self.name})

    async def work_off(self) -> int:
        """Deliver until nothing is ready, without loops; returns how many attempts were leased."""
        return await self.executor.work_off()

    async def _step(self) -> float:
        self._delivery_counts.turn()
        await self._queues.refresh_tenants(self._source.pool, time.monotonic())
        await self.connections.refresh()
        await self.publishers.close_unused()
        return LOOK_SECONDS

    async def _look(self, connection: Connection) -> None:
        """See which tenants have attempts, and what follows from how many there are."""
        await self.keyring.count(connection)
        self.slots.share(self.keyring.weighted_sharing())
        egress = self._egress_for(self.keyring.tenants)
        if egress != self._egress:
            logger.info("%s", egress.words)
            self._egress = egress
            self._delivery.permit(egress.policy)
            self.publishers.renew()

    def _delay_of(self, attempt: Attempt) -> float | None:
        """How many seconds ago an attempt became ready; None: it was put back since, or a limit may have delayed it."""
        lane_id, seq = attempt.token
        if attempt.deferrals or is_gated(lane_id):
            return None
        queue_id = queue_of(lane_id)
        if queue_id in self._queues.capped or queue_id in self._queues.rates:
            return None
        return max(0, self._clock.now_us() - seq) / SECOND_US

    def _ended(self, ended: Sequence[EndedAttempt]) -> None:
        self.waiting.queue.leave_all([each[0] for each in ended])
        made = [each for each in ended if type(each[1]) in _MADE]
        self._delivery_counts.add([each[0].tenant_id for each in made])
        plain = [each[0].token[0] for each in made if type(each[1]) is Succeeded and each[1].code is None]
        for lane_id, count in Counter(plain).items():
            _count(self._queues.name_of(queue_of(lane_id)), ACKNOWLEDGED, count)
        if len(plain) < len(ended):
            self._note_others(ended)

    def _note_others(self, ended: Sequence[EndedAttempt]) -> None:
        """All but what a broker has acknowledged."""
        results: list[tuple[int, str]] = []
        for attempt, outcome, *_ in ended:
            if type(outcome) is Failed or (type(outcome) is Succeeded and outcome.code is not None):
                results.append((queue_of(attempt.token[0]), _result_of(outcome)))
            if type(outcome) is not Succeeded:
                self._note(attempt, outcome)
        for (queue_id, result), count in Counter(results).items():
            _count(self._queues.name_of(queue_id), result, count)

    def _note(self, attempt: Attempt, outcome: AttemptOutcome) -> None:
        """What follows from an end that is no success."""
        match outcome:
            case Failed():
                _log(attempt, outcome.error)
                if outcome.is_target_gone:
                    self.pausing.add(attempt)
            case NotStarted():
                _log(attempt, outcome.error)
            case HandedOver():
                _log(attempt, f"handed over: {outcome.receipt}")


def _log(attempt: Attempt, text: str) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s, attempt %d: %s", attempt.name, attempt.attempt, text, extra=run_fields(attempt))


def _result_of(outcome: Succeeded | Failed) -> str:
    """What the metrics call it: by the code of a response, if there was one."""
    if outcome.code is not None:
        return f"{outcome.code // 100}xx"
    if isinstance(outcome, Succeeded):
        return ACKNOWLEDGED
    return "timeout" if outcome.result is Outcome.TIMED_OUT else "failed"


def _count(queue: str, result: str, count: int) -> None:
    """Count deliveries. The queues of dispatchers have the names of the types of targets."""
    if queue == HTTP_QUEUE:
        WEBHOOKS.add(count, result)
    else:
        BROKER_MESSAGES.add(count, queue, result)
