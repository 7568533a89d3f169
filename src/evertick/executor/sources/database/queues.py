"""Which queues a database source leases from, and how much of each."""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from evertick.domain.rate_bucket import Rate
from evertick.store.database import Pool
from evertick.store.jobs import references

LOOK_SECONDS = 1.0
"""How often to look for queues that are not there yet; a queue is created with its first job."""
LOOK_AGAIN_SECONDS = 3.0
"""How often to look whether the queues that were found are still there, and what limits them."""


class QueueSelection(Protocol):
    """`names` are the queues to serve, `ids` those that there are, of one tenant, or of any if `tenant_id` is None.
    `has_handlers`: their attempts name handlers.

    `capped` are those of which a cap limits how many attempts run at once; `rates` limit how many start per second.
    """

    names: Sequence[str]
    has_handlers: bool
    ids: frozenset[int]
    capped: frozenset[int]
    rates: Mapping[int, Rate]
    tenant_id: int | None

    async def refresh(self, pool: Pool, now: float) -> None:
        """Look for the queues, unless that was done just now."""

    def refresh_soon(self) -> None:
        """Do not wait for a queue that was not there at the last look."""

    def rooms(self, size: int, held: int) -> Mapping[int, int] | None:
        """How many attempts each queue may give, at a lease size of `size` and with `held` attempts here already.

        A queue that is left out is not asked. None: any may give all there is room for.
        """

    def idle(self, rooms: Mapping[int, int]) -> dict[int, int]:
        """Those of these queues whose tenants have nothing here, while others have: they are leased from first."""

    def can_start(self) -> int:
        """How many attempts could start at once, however many wait here."""

    def name_of(self, queue_id: int) -> str: ...


class NamedQueues:
    """Queues by name, of one tenant or of all."""

    has_handlers = True

    def __init__(self, names: Sequence[str], tenant_id: int | None) -> None:
        self.ids: frozenset[int] = frozenset()
        self.capped: frozenset[int] = frozenset()
        self.rates: Mapping[int, Rate] = {}
        self.tenant_id = tenant_id
        self.names = names
        self._names_by_id: dict[int, str] = {}
        self._looked = -math.inf

    async def refresh(self, pool: Pool, now: float) -> None:
        """Queues come and go: the janitor removes those that nothing refers to."""
        are_missing = len(self.ids) < len(self.names)
        if now - self._looked < (LOOK_SECONDS if are_missing else LOOK_AGAIN_SECONDS):
            return
        found = await references.queues(pool, self.names, self.tenant_id)
        self.ids = frozenset(queue.queue_id for queue in found)
        self.capped = frozenset(queue.queue_id for queue in found if queue.is_capped)
        self.rates = {queue.queue_id: rate for queue in found if (rate := queue.rate) is not None}
        self._names_by_id = {queue.queue_id: queue.name for queue in found}
        self._looked = now

    def refresh_soon(self) -> None:
        if len(self.ids) < len(self.names):
            self._looked = -math.inf

    def rooms(self, size: int, held: int) -> None:  # noqa: ARG002 - any queue may give all
        return None

    def idle(self, rooms: Mapping[int, int]) -> dict[int, int]:  # noqa: ARG002 - tenants do not matter
        return {}

    def can_start(self) -> int:
        return 0

    def name_of(self, queue_id: int) -> str:
        return self._names_by_id.get(queue_id, ", ".join(self.names))
