"""The dispatcher: leases the ready attempts of HTTP jobs, delivers them, records what their targets answered.

Duty: each attempt is sent once, signed, within its job's timeout and its tenant's maximum, and its outcome recorded
soon after; or it is put back. (Once more only where a kept connection broke before an answer: see
`targets.http.delivery`.)

It is a worker whose one handler is a delivery; leasing, heartbeats, recording and stopping are the worker's.

Invariants, beside the worker's: no attempt is leased whose delivery could not be signed. Nothing is sent but through
the guard. Secrets, payloads and URLs are in no log. A host that is slow or away holds the slots that a tenant has for
it, a tenant with many such its share of the places (`domain.fair_slots`), and nothing of anybody else: every other
tenant gets its part of the places at once. An attempt whose delivery was not begun leaves no outcome and counts as no
try.

Steps, beside the worker's:
1. each second: look for new tenants, rotated secrets and changed limits, and whether webhooks may still go to this
   machine; a tenant's first secret is made here.
2. lease: from each tenant as much as it has room for; one that has all the places it may have is not asked.
3. deliver: tenants take turns for places. What is leased and gets no place for a moment is put back, to be leased by
   whoever has one.
4. judge: success, failure (for good, or to be retried, at the earliest when the target said), timeout; without a free
   slot of its host or a turn to look its name up the attempt is put back, for 5 seconds at first and up to 5 minutes.
5. pause: a job whose target answered 410, unless it was edited since, with an entry in the audit log.

Crash: the leases run out and the attempts are retried, with the same idempotency key and a larger fencing token. A
receiver may so see a delivery again whose answer was lost. Slow or lost database, lost lease: as the worker. Lost lease
means that the connection is closed, whatever the target has made of the request. Stop: deliveries have the grace to
come to their end, those that outlast it are handed back, and what was not begun is put back, without counting as a try.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from evertick.contract.target import HTTP_QUEUE
from evertick.domain.fair_slots import FairSlots
from evertick.targets.http.webhooks import Deliveries, with_backstop
from evertick.roles.dispatcher.endings import ending_of
from evertick.roles.dispatcher.intake import Rooms
from evertick.roles.dispatcher.tenant_queues import TenantQueues
from evertick.roles.dispatcher.keyring import Keyring
from evertick.roles.dispatcher.pausing import Pausing
from evertick.roles.dispatcher.settings import Egress
from evertick.roles.dispatcher.waiting import Progress
from evertick.roles.dispatcher.slots import WaitingForSlots
from evertick.executor.sources.database.leasing import Leasing
from evertick.executor.waiting import token_of
from evertick.executor.sources.database.source import LEASE_TIME
from evertick.roles.worker import Worker
from evertick.roles.worker.worker import deferral_of
from evertick.runtime.clock import Clock
from evertick.store.database import Pool
from evertick.store.lanes import Leased
from evertick.store.outcomes import Ending
from evertick.store.sealing import Seal
from evertick.targets.http.delivery import DeliverySettings, HttpDelivery
from evertick.targets.http.guard import EgressPolicy, Guard
from evertick.targets.http.resolution import Resolve, SystemResolver
from evertick.targets.http.response import Delivered, Failed
from evertick.domain.attempt import NotStarted

logger = logging.getLogger("evertick.dispatcher")

CONCURRENCY = 256
HOST_WAIT_SECONDS = 2.0
NOBODY = 0
"""The id of no tenant."""
NO_HANDLER = ""
"""What attempts without a handler wait for that were put back."""


class Dispatcher(Worker):
    """One process's dispatcher, for all tenants. `egress`: where webhooks may go, given how many tenants there are."""

    def __init__(  # noqa: PLR0913 - where it works, how much, and what it may reach
        self,
        url: str,
        seal: Seal,
        egress: Callable[[int], Egress],
        *,
        concurrency: int = CONCURRENCY,
        settings: DeliverySettings | None = None,
        lease_time: timedelta = LEASE_TIME,
        resolve: Resolve | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._egress_for = egress
        self._egress: Egress | None = None
        self._resolve = resolve
        self._settings = settings or DeliverySettings(host_wait_seconds=HOST_WAIT_SECONDS, most_open=2 * concurrency)
        self._keyring = Keyring(seal)
        self._deliveries = Deliveries(self._keyring)
        self._places = FairSlots(concurrency)
        self._progress = Progress()
        self._waiting = WaitingForSlots(self._places)
        super().__init__(
            url,
            self._deliveries,
            queues=(HTTP_QUEUE,),
            concurrency=concurrency,
            threads=0,
            lease_time=lease_time,
            waiting=self._waiting,
            clock=clock,
        )

    async def open(self) -> None:
        """Connect. CannotUnseal: a key is missing that stored secrets were sealed with."""
        await super().open()
        await self._look()
        for unreadable in self._keyring.unreadable.values():
            await self.close()
            raise unreadable

    async def start(self) -> None:
        await super().start()
        self._pausing.start()

    async def close(self) -> None:
        await self._pausing.stop()
        await self._deliveries.close()
        await super().close()

    def _assemble(self, pool: Pool) -> None:
        super()._assemble(pool)
        # What is open beyond the public network is known when the tenants are.
        guard = Guard(EgressPolicy(), self._resolve or SystemResolver(), self._keyring.sharing)
        self._delivery = HttpDelivery(guard, self.clock, self._settings, self._keyring.sharing)
        self._deliveries.open(self._delivery)
        self._pausing = Pausing(pool)

    def _make_intake(self, pool: Pool) -> Leasing:
        options = {**self._intake_options(), "handlers": [NO_HANDLER], "look": self._look, "rooms": self._rooms}
        self._tenant_intake = TenantQueues(pool, self.name, self._queues, self._tenant_id, **options)
        return self._tenant_intake

    async def _look(self) -> frozenset[int]:
        """See who has attempts, and what follows from how many tenants there are; returns the queues to lease from."""
        await self._keyring.refresh(self._pool)
        self._places.share(self._keyring.sharing())
        egress = self._egress_for(self._keyring.tenants)
        if egress != self._egress:
            logger.info("%s", egress.words)
            self._egress = egress
            self._delivery.permit(egress.policy)
        return frozenset(self._keyring.queues)

    async def _watch(self) -> float:
        self._progress.turn()
        await self._tenant_intake.look()
        return await super()._watch()

    def _room(self, size: int, under_way: int) -> int:
        """What could start at once is leased however much waits, for that may be another tenant's."""
        if not self._may_lease:
            return 0
        return max(super()._room(size, under_way), self._places.free - under_way)

    def _rooms(self) -> Rooms:
        """How many attempts to lease of each tenant: to have half of what it does in a second, or else each free place.

        It may have waiting here what it does until the next lease has come, by what it did last; but only while little
        waits in all.
        """
        unused = self._places.most(NOBODY)
        may_wait = self._pace.size - self._slots if self._execution.held <= self._pace.size else 0
        rooms = {}
        for queue_id, tenant_id in self._keyring.queues.items():
            held = self._places.held(tenant_id) + self._waiting.queue.waiting(tenant_id)
            did = self._progress.recent(tenant_id)
            most = self._places.most(tenant_id) if held else unused
            size = most + min(did, may_wait)
            room = size - held if held <= size // 2 else most - held
            if room > 0:
                rooms[queue_id] = room
        return rooms

    def _taken(self, attempts: Sequence[Leased]) -> None:
        super()._taken([with_backstop(each, self._keyring.timeout_max(each.tenant_id)) for each in attempts])

    def _sweep(self) -> None:
        super()._sweep()
        stalled = {token_of(order[0]) for order in self._waiting.queue.stalled(self._settings.host_wait_seconds)}
        if stalled:
            for leased in self._execution.take_over(stalled):
                self._put_back(leased)

    def _ended(self, leased: Leased, ending: Ending | None) -> None:
        self._waiting.queue.leave(leased)
        verdict = self._deliveries.take(leased)
        if ending is not None and verdict is not None:
            if not isinstance(verdict, Delivered):
                logger.debug("%s, attempt %d: %s", leased.name, leased.attempt, verdict.error)
            if isinstance(verdict, NotStarted):
                self._put_back(leased, deferral_of(leased), is_deferral=True)
                return
            ending = ending_of(leased, verdict, ending.started_at, ending.finished_at)
            self._progress.count(leased.tenant_id)
            if isinstance(verdict, Failed) and verdict.pauses_job:
                self._pausing.add(leased)
        super()._ended(leased, ending)
