"""Selects the HTTP queues of all tenants whose deliveries can be signed, of each as much as it has room for.

Attempts of a tenant at its limit stay in their lanes: nothing is leased to be put back, and what is leased belongs to
tenants that can use it.
"""

import math
from collections.abc import Awaitable, Callable

from evertick.contract.target import HTTP_QUEUE
from evertick.domain.fairness import FairSlots
from evertick.roles.dispatcher.keyring import Keyring
from evertick.roles.dispatcher.slots import Progress, SlotQueue
from evertick.store.database import Pool

LOOK_SECONDS = 1.0
"""A new tenant's first delivery waits at most this long, and so does a change of secrets or limits."""
_NO_TENANT = 0
"""The id of no tenant."""


class TenantQueues:
    """A `QueueSelection` that asks no queue whose tenant has no slot free. `look` refreshes the keyring."""

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
