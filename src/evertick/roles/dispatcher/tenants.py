"""What a dispatcher knows of the tenants that have work for it: their queues, secrets, and how long a delivery may
take. It is there before an attempt is leased: delivering never waits for it, and a tenant whose secrets cannot be read
keeps its attempts in their lanes. What it costs grows with the tenants that have work, not with all that there are.

Each tenant's queue gives as many attempts as the tenant has room for.
"""

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from evertick.contract.target import DISPATCHED_QUEUES, HTTP_QUEUE
from evertick.domain.fairness import FairSlots, TenantCounts
from evertick.domain.rate_bucket import Rate
from evertick.roles.dispatcher.slots import DeliveryCounts, SlotQueue
from evertick.runtime.logs import tenant_fields
from evertick.store.database import Pool
from evertick.store.engine import lanes
from evertick.store.engine.lanes import QueueWithWork
from evertick.store.statements import Connection
from evertick.store.tenants import secrets, tenants
from evertick.store.tenants.secrets import CannotUnseal, Seal, Sealed
from evertick.store.tenants.tenants import DispatchedQueue, TenantLimits
from evertick.targets.http.signing import Secret

logger = logging.getLogger("evertick.dispatcher")

HTTP_TIMEOUT_MAX_SECONDS = 300
"""Until a tenant's own setting is known."""
LOOK_SECONDS = 1.0
"""A change of secrets or limits takes at most this long."""
LATE_LOOK_SECONDS = 3 * LOOK_SECONDS
LIST_SECONDS = 10.0
"""How often all queues are listed."""
SHARED_DIVISOR = 8
"""How much less of a tenant waits here while others have work, too."""
MAX_QUEUES = 512
"""Queues that one look for work finds at most."""
PAGE = 5_000


class Keyring:
    """What the deliveries of tenants are signed with, and the limits that they keep.

    `look` counts the tenants, and decides where deliveries may go. `tenants`: how many there are. `queues`: of those
    that have jobs for dispatchers, as listed last; what a wake-up says of newer ones the next look for work finds.
    """

    def __init__(self, seal: Seal, look: Callable[[Connection], Awaitable[None]]) -> None:
        self._seal = seal
        self.look = look
        self._met: set[int] = set()
        self._sealed: dict[int, Sealed] = {}
        self._secrets: dict[int, tuple[Secret, ...]] = {}
        self._limits: dict[int, TenantLimits] = {}
        self.unreadable: dict[int, CannotUnseal] = {}
        self.tenants = 1
        self.queues: dict[int, int] = {}  # to tenants
        self._weights: dict[int, int] = {}

    async def count(self, connection: Connection) -> None:
        self.tenants = await tenants.count(connection)

    async def list_queues(self, connection: Connection) -> None:
        found: list[DispatchedQueue] = []
        while page := await tenants.dispatched(connection, after=found[-1].queue_id if found else 0, most=PAGE):
            found += page
        self.queues = {queue.queue_id: queue.tenant_id for queue in found}
        self._weights = {queue.tenant_id: queue.weight for queue in found}

    async def learn_all(self, connection: Connection) -> None:
        """Read the secrets of all tenants once, so that a missing key is noticed at the start."""
        await self.list_queues(connection)
        tenant_ids = sorted(set(self.queues.values()))
        for first in range(0, len(tenant_ids), PAGE):
            await self.learn(connection, tenant_ids[first : first + PAGE])

    async def learn(self, connection: Connection, tenant_ids: Collection[int]) -> None:
        """Read the secrets and limits of tenants; make a tenant's first secret."""
        if not tenant_ids:
            return
        await self._meet(connection, tenant_ids)
        for limits in await tenants.limits(connection, tenant_ids):
            self._limits[limits.tenant_id] = limits
        found = await secrets.ensure(connection, self._seal, tenant_ids, lambda: Secret.generate().key)
        for sealed in found.values():
            self._read(sealed)

    async def learn_from(self, connection: Connection, queues: Sequence[QueueWithWork]) -> None:
        """Learn what a look for work brought along; only a tenant's first work takes further statements."""
        await self._meet(connection, {queue.tenant_id for queue in queues})
        for queue in queues:
            self._limits[queue.tenant_id] = queue.limits
            if (sealed := queue.sealed) is not None:
                self._read(sealed)
        await self.learn(connection, {queue.tenant_id for queue in queues if queue.current is None})

    async def _meet(self, connection: Connection, tenant_ids: Collection[int]) -> None:
        """Look before anything of a new tenant is sent: what is open to a single tenant is closed to a second one."""
        if not self._met.issuperset(tenant_ids):
            await self.look(connection)
            self._met.update(tenant_ids)

    def sharing(self) -> TenantCounts:
        """Among how many tenants slots are shared, in equal parts."""
        served = len(self._weights)
        return TenantCounts(served, max(self.tenants - served, 0))

    def weighted_sharing(self) -> TenantCounts:
        """As `sharing`, in parts by weight. Weights change when all queues are listed: all of them at once."""
        return self.sharing()._replace(weights=Counter(self._weights.values()))

    def weight_of(self, tenant_id: int) -> int:
        return self._weights.get(tenant_id, 1)

    def secrets_of(self, tenant_id: int) -> tuple[Secret, ...] | None:
        """The secrets of a tenant. None: they are not here."""
        return self._secrets.get(tenant_id)

    def timeout_max(self, tenant_id: int) -> int:
        """How many seconds a delivery of the tenant may take, whatever its job says."""
        limits = self._limits.get(tenant_id)
        return HTTP_TIMEOUT_MAX_SECONDS if limits is None else limits.http_timeout_max_seconds

    def _read(self, sealed: Sealed) -> None:
        if self._sealed.get(sealed.tenant_id) == sealed:
            return
        self._sealed[sealed.tenant_id] = sealed
        try:
            self._secrets[sealed.tenant_id] = tuple(Secret(key) for key in sealed.open(self._seal))
        except CannotUnseal as error:
            self.unreadable[sealed.tenant_id] = error
            text = "webhooks of tenant %d wait: %s"
            logger.error(text, sealed.tenant_id, error, extra=tenant_fields(sealed.tenant_id))  # noqa: TRY400 - it says it all
        else:
            self.unreadable.pop(sealed.tenant_id, None)


class TenantQueues:
    """A `QueueSelection` of the queues that have work, but for those whose tenant has no slot free.

    Attempts of a tenant at its limit stay in their lanes: nothing is leased to be put back, and what is leased belongs
    to tenants that can use it.
    """

    tenant_id: int | None = None
    has_handlers = False

    def __init__(
        self,
        keyring: Keyring,
        slots: FairSlots,
        queue: SlotQueue,
        delivery_counts: DeliveryCounts,
    ) -> None:
        self.names: Sequence[str] = DISPATCHED_QUEUES
        self.ids: frozenset[int] = frozenset()
        self.capped: frozenset[int] = frozenset()
        self.rates: Mapping[int, Rate] = {}
        self._keyring = keyring
        self._slots = slots
        self._queue = queue
        self._delivery_counts = delivery_counts
        self._looked = self._listed = -math.inf
        self.with_work: dict[int, int] = {}  # from queue to tenant
        self._names: dict[int, str] = {}
        self._after = 0

    async def refresh(self, pool: Pool, now: float) -> None:
        # The dispatcher's own loop does it in time: a lease does not wait for it, unless that loop is late.
        if now - self._looked >= LATE_LOOK_SECONDS:
            await self.refresh_tenants(pool, now)
        await self._find_work(pool)

    async def refresh_tenants(self, pool: Pool, now: float) -> None:
        """Look for new tenants, rotated secrets and changed limits, unless that was done just now."""
        if now - self._listed >= LIST_SECONDS:
            await self._keyring.list_queues(pool)
            self.ids = frozenset(self._keyring.queues) | self.with_work.keys()
            self.capped &= self.ids
            self.rates = {queue_id: rate for queue_id, rate in self.rates.items() if queue_id in self.ids}
            self._listed, self._looked = now, -math.inf
        if now - self._looked >= LOOK_SECONDS:
            await self._keyring.look(pool)
            await self._keyring.learn(pool, self._queue.tenants())
            self._looked = now

    def refresh_soon(self) -> None:
        """Queues with work are looked for before each lease as it is."""

    async def _find_work(self, pool: Pool) -> None:
        """Look which queues have work. Where there are more than one look finds, the next one goes on behind them."""
        found = await lanes.dispatched_queues(pool, after=self._after, most=MAX_QUEUES)
        if self._after and len(found) < MAX_QUEUES:
            found += await lanes.dispatched_queues(pool, after=0, most=MAX_QUEUES - len(found))
        self._after = found[-1].queue_id if len(found) == MAX_QUEUES else 0
        await self._keyring.learn_from(pool, found)
        unreadable = self._keyring.unreadable
        self.with_work = {queue.queue_id: queue.tenant_id for queue in found if queue.tenant_id not in unreadable}
        self._names |= {queue.queue_id: queue.name for queue in found}
        # Limits of queues that this look did not find stay: another lease of those may be about to begin.
        looked = {queue.queue_id for queue in found}
        self.capped = (self.capped - looked) | {queue.queue_id for queue in found if queue.is_capped}
        rates = {queue_id: rate for queue_id, rate in self.rates.items() if queue_id not in looked}
        self.rates = rates | {queue.queue_id: rate for queue in found if (rate := queue.rate) is not None}
        self.ids |= self.with_work.keys()

    def rooms(self, size: int, held: int) -> dict[int, int]:
        """Of each tenant, to have half of what it does in a second, or else each free slot; equal parts of it from
        each of its queues that have work.

        It may have waiting here what it does until the next lease has come, by what it did last; but only while little
        waits in all. While other tenants have work it is less: they wait while a large lease is under way.
        """
        may_wait = size - self._slots.total if held <= size else 0
        divisor = SHARED_DIVISOR if len({*self.with_work.values(), *self._queue.tenants()}) > 1 else 1
        queues = Counter(self.with_work.values())
        rooms = {}
        for queue_id, tenant_id in self.with_work.items():
            here = self._slots.held(tenant_id) + self._queue.waiting(tenant_id)
            did = self._delivery_counts.recent(tenant_id) // divisor
            most = self._slots.most(tenant_id)
            tenant_size = most + min(did, may_wait)
            room = tenant_size - here if here <= tenant_size // 2 else most - here
            if room > 0:
                rooms[queue_id] = -(-room // queues[tenant_id])
        return rooms

    def idle(self, rooms: Mapping[int, int]) -> dict[int, int]:
        here = self._queue.tenants()
        idle = {queue_id: room for queue_id, room in rooms.items() if self.with_work.get(queue_id) not in here}
        return idle if here else {}

    def can_start(self) -> int:
        return self._slots.free

    def name_of(self, queue_id: int) -> str:
        return self._names.get(queue_id, HTTP_QUEUE)
