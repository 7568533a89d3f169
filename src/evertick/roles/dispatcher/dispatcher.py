"""The dispatcher: leases the ready attempts of HTTP jobs, delivers them, records what their targets answered.

Duty: each attempt is sent once, signed, within its job's timeout, and its outcome recorded soon after; or it is put
back. (Once more only where a kept connection broke before an answer: see `targets.http.delivery`.)

It is a worker whose one handler is a delivery; leasing, heartbeats, recording and stopping are the worker's.

Invariants, beside the worker's: no attempt is leased whose delivery could not be signed. Nothing is sent but through
the guard. Secrets, payloads and URLs are in no log. A host that is slow or away holds its own slots, a tenant with many
such its share of the places, and for a moment what waits for them; then that, and all else for this host or tenant,
is put back. An attempt whose delivery was not begun leaves no outcome and counts as no try; each time it waits longer.

Steps, beside the worker's:
1. each second: look for queues of new tenants and for rotated secrets; a tenant's first secret is made here.
2. deliver: as many at once as there are places, of these to one host as many as it has slots.
3. judge: success, failure (for good, or to be retried, at the earliest when the target said), timeout; without a free
   slot of its host, a place for its tenant or a turn to look its name up the attempt is put back, for 5 seconds at
   first and up to 5 minutes.
4. pause: a job whose target answered 410, unless it was edited since, with an entry in the audit log.

Crash: the leases run out and the attempts are retried, with the same idempotency key and a larger fencing token. A
receiver may so see a delivery again whose answer was lost. Slow or lost database, lost lease: as the worker. Lost lease
means that the connection is closed, whatever the target has made of the request. Stop: deliveries have the grace to
come to their end, those that outlast it are handed back, and what was not begun is put back, without counting as a try.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta

from evertick.domain.job.target import HTTP_QUEUE
from evertick.roles.dispatcher.deliveries import Deliveries, with_backstop
from evertick.roles.dispatcher.endings import ending_of
from evertick.roles.dispatcher.intake import SignableIntake
from evertick.roles.dispatcher.keyring import Keyring
from evertick.roles.dispatcher.pausing import Pausing
from evertick.roles.worker.intake import Intake
from evertick.roles.worker.worker import LEASE_TIME, Worker, deferral_of
from evertick.runtime.clock import Clock
from evertick.store.database import Pool
from evertick.store.lanes import Leased
from evertick.store.outcomes import Ending
from evertick.store.sealing import Seal
from evertick.targets.http.delivery import DeliverySettings, HttpDelivery
from evertick.targets.http.guard import EgressPolicy, Guard
from evertick.targets.http.resolution import Resolve, SystemResolver
from evertick.targets.http.verdict import Delivered, Failed, NotTried

logger = logging.getLogger("evertick.dispatcher")

CONCURRENCY = 256
HOST_WAIT_SECONDS = 2.0
NO_HANDLER = ""
"""What attempts without a handler wait for that were put back."""


class Dispatcher(Worker):
    """One process's dispatcher, for all tenants."""

    def __init__(  # noqa: PLR0913 - where it works, how much, and what it may reach
        self,
        url: str,
        seal: Seal,
        policy: EgressPolicy,
        *,
        concurrency: int = CONCURRENCY,
        settings: DeliverySettings | None = None,
        lease_time: timedelta = LEASE_TIME,
        resolve: Resolve | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._policy = policy
        self._resolve = resolve
        self._settings = settings or DeliverySettings(host_wait_seconds=HOST_WAIT_SECONDS, most_open=2 * concurrency)
        self._keyring = Keyring(seal)
        self._deliveries = Deliveries(self._keyring, concurrency)
        super().__init__(
            url,
            self._deliveries,
            queues=(HTTP_QUEUE,),
            concurrency=concurrency,
            threads=0,
            lease_time=lease_time,
            clock=clock,
        )

    async def open(self) -> None:
        """Connect. CannotUnseal: a key is missing that stored secrets were sealed with."""
        await super().open()
        await self._keyring.refresh(self._pool)
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
        guard = Guard(self._policy, self._resolve or SystemResolver())
        self._deliveries.open(HttpDelivery(guard, self.clock, self._settings), self._settings.host_wait_seconds)
        self._pausing = Pausing(pool)

    def _make_intake(self, pool: Pool) -> Intake:
        options = {**self._intake_options(), "handlers": [NO_HANDLER], "keyring": self._keyring}
        return SignableIntake(pool, self.name, self._queues, self._tenant_id, **options)

    def _taken(self, attempts: Sequence[Leased]) -> None:
        super()._taken([with_backstop(leased) for leased in attempts])

    def _ended(self, leased: Leased, ending: Ending | None) -> None:
        verdict = self._deliveries.take(leased)
        if ending is not None and verdict is not None:
            if not isinstance(verdict, Delivered):
                logger.debug("%s, attempt %d: %s", leased.name, leased.attempt, verdict.error)
            if isinstance(verdict, NotTried):
                self._put_back(leased, deferral_of(leased), is_deferral=True)
                return
            ending = ending_of(leased, verdict, ending.started_at, ending.finished_at)
            if isinstance(verdict, Failed) and verdict.pauses_job:
                self._pausing.add(leased)
        super()._ended(leased, ending)
