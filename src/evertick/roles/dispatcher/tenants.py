"""What a dispatcher knows of the tenants that have HTTP jobs: their queues, their secrets, and how long a delivery may
take. It is there before an attempt is leased: delivering never waits for it, and a tenant whose secrets cannot be read
keeps its attempts in their lanes.

From their queues as much is leased as each tenant has room for.
"""

import logging
import math
from collections.abc import Awaitable, Callable

from evertick.contract.target import HTTP_QUEUE
from evertick.domain.fairness import FairSlots, TenantCounts
from evertick.roles.dispatcher.slots import Progress, SlotQueue
from evertick.store import secrets, tenants
from evertick.store.database import Pool
from evertick.store.sealing import CannotUnseal, Seal
from evertick.store.secrets import Sealed
from evertick.store.statements import Connection
from evertick.targets.http.signing import Secret

logger = logging.getLogger("evertick.dispatcher")

HTTP_TIMEOUT_MAX_SECONDS = 300
"""As long as a tenant's own setting is not known."""
LOOK_SECONDS = 1.0
"""A new tenant's first delivery waits at most this long, and so does a change of secrets or limits."""
_NO_TENANT = 0
"""The id of no tenant."""


class Keyring:
    """What the deliveries of each tenant are signed with, and where its attempts are.

    `queues`: of tenants whose deliveries can be signed, from queue to tenant. `tenants`: how many there are, with HTTP
    jobs or without.
    """

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._sealed: dict[int, Sealed] = {}
        self._secrets: dict[int, tuple[Secret, ...]] = {}
        self._timeouts: dict[int, int] = {}
        self.unreadable: dict[int, CannotUnseal] = {}
        self.queues: dict[int, int] = {}
        self.tenants = 1

    async def refresh(self, connection: Connection) -> None:
        """Look for new tenants, rotated secrets and changed limits."""
        queues = await tenants.of_queue(connection, HTTP_QUEUE)
        self.tenants = await tenants.count(connection)
        self._timeouts = {queue.tenant_id: queue.http_timeout_max_seconds for queue in queues}
        found = await secrets.ensure(connection, self._seal, self._timeouts, lambda: Secret.generate().key)
        for sealed in found.values():
            if self._sealed.get(sealed.tenant_id) != sealed:
                self._read(sealed)
        self.queues = {queue.queue_id: queue.tenant_id for queue in queues if queue.tenant_id not in self.unreadable}

    def sharing(self) -> TenantCounts:
        """Among how many tenants slots are shared."""
        return TenantCounts(len(self._timeouts), max(self.tenants - len(self._timeouts), 0))

    def secrets_of(self, tenant_id: int) -> tuple[Secret, ...] | None:
        """The secrets of a tenant. None: they are not here."""
        return self._secrets.get(tenant_id)

    def timeout_max(self, tenant_id: int) -> int:
        """How many seconds a delivery of the tenant may take, whatever its job says."""
        return self._timeouts.get(tenant_id, HTTP_TIMEOUT_MAX_SECONDS)

    def _read(self, sealed: Sealed) -> None:
        self._sealed[sealed.tenant_id] = sealed
        try:
            self._secrets[sealed.tenant_id] = tuple(Secret(key) for key in sealed.open(self._seal))
        except CannotUnseal as error:
            self.unreadable[sealed.tenant_id] = error
            logger.error("webhooks of tenant %d wait: %s", sealed.tenant_id, error)  # noqa: TRY400 - it says it all
        else:
            self.unreadable.pop(sealed.tenant_id, None)


class TenantQueues:
    """A `QueueSelection` that asks no queue whose tenant has no slot free. `look` refreshes the keyring.

    Attempts of a tenant at its limit stay in their lanes: nothing is leased to be put back, and what is leased belongs
    to tenants that can use it.
    """

    tenant_id: int | None = None

    def __init__(
        self,
        keyring: Keyring,
        slots: FairSlots,
        queue: SlotQueue,
        progress: Progress,
        look: Callable[[Pool], Awaitable[None]],
    ) -> None:
        self.ids: frozenset[int] = frozenset()
        self._keyring = keyring
        self._slots = slots
        self._queue = queue
        self._progress = progress
        self._look = look
        self._looked = -math.inf

    async def refresh(self, pool: Pool, now: float) -> None:
        if now - self._looked >= LOOK_SECONDS:
            await self._look(pool)
            self.ids = frozenset(self._keyring.queues)
            self._looked = now

    def refresh_soon(self) -> None:
        """Queues are looked for each second as it is."""

    def rooms(self, size: int, held: int) -> dict[int, int]:
        """Of each tenant, to have half of what it does in a second, or else each free slot.

        It may have waiting here what it does until the next lease has come, by what it did last; but only while little
        waits in all.
        """
        unused = self._slots.most(_NO_TENANT)
        may_wait = size - self._slots.total if held <= size else 0
        rooms = {}
        for queue_id, tenant_id in self._keyring.queues.items():
            here = self._slots.held(tenant_id) + self._queue.waiting(tenant_id)
            did = self._progress.recent(tenant_id)
            most = self._slots.most(tenant_id) if here else unused
            tenant_size = most + min(did, may_wait)
            room = tenant_size - here if here <= tenant_size // 2 else most - here
            if room > 0:
                rooms[queue_id] = room
        return rooms

    def can_start(self) -> int:
        return self._slots.free

    def name_of(self, queue_id: int) -> str:  # noqa: ARG002 - all have this one
        return HTTP_QUEUE
