"""How many attempts may be added to queues that are filling up, and which submissions an overloaded system refuses.

Decides only. Reading how many attempts wait, and keeping back what may not fire yet, is the caller's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from evertick.domain.ids import PARTITIONS
from evertick.domain.policies import Priority

DEFAULT_MAX_READY = 250_000
"""Attempts of a queue that wait for a worker, unless it has another limit. In SQL the column's default."""
DEFAULT_READY_QUOTA = 1_000_000
"""The same for all queues of a tenant."""
DEFAULT_MAX_READY_IN_ALL = 4_000_000
"""The same for all tenants together: from parts of it on submissions are refused."""
REPORTED_FROM = 4
"""A reading leaves out queues with the default limits, or larger ones, that are less than a quarter full."""

REFUSED_FROM = {Priority.LOW: 0.5, Priority.NORMAL: 0.8, Priority.HIGH: 1.0}
"""From which part of the limit on all waiting attempts on submissions of a priority are refused."""
ADMITTED_BELOW = 0.9
"""And below which part of that number they are admitted again."""


class ReadyDepth(NamedTuple):
    """How many attempts of a queue wait for a worker, and of all queues of its tenant, with both limits."""

    queue_id: int
    tenant_id: int
    ready: int
    max_ready: int
    tenant_ready: int
    ready_quota: int
    name: str = ""

    @property
    def is_full(self) -> bool:
        return self.ready >= self.max_ready or self.tenant_ready >= self.ready_quota


class _Limited:
    """The room of queues, or of tenants. `added` counts from the beginning of the last reading on."""

    def __init__(self, default: int) -> None:
        self._unread = default, (default - 1) // REPORTED_FROM
        self.read: dict[int, tuple[int, int]] = {}
        self.added: Counter[int] = Counter()
        self.since: Counter[int] = Counter()  # the beginning of a reading that has not ended
        self.in_flight: Counter[int] = Counter()

    def room(self, key: int, held: int) -> int:
        limit, ready = self.read.get(key, self._unread)
        part = -(-max(0, limit - ready) * held // PARTITIONS)
        return max(0, part - self.added[key] - self.in_flight[key])

    def add(self, key: int, count: int) -> None:
        self.added[key] += count
        self.since[key] += count


class ReadyRoom:
    """How many attempts this node may add to each queue before the next reading.

    A node that holds a part of the partitions takes that part of the room, rounded up. So one node does not pass a
    limit. Several nodes may pass it, by what the others add before they read again, and by one attempt each.
    """

    def __init__(self) -> None:
        self._queues = _Limited(DEFAULT_MAX_READY)
        self._tenants = _Limited(DEFAULT_READY_QUOTA)
        self._tenant_of: dict[int, int] = {}  # of queues with attempts in flight
        self.held = 0
        """How many partitions the node holds."""

    def begin_reading(self) -> None:
        """A reading begins: what is added from now on may be missing in it."""
        self._queues.since, self._tenants.since = Counter(), Counter()

    def end_reading(self, depths: Iterable[ReadyDepth]) -> None:
        queues, tenants = self._queues, self._tenants
        queues.read, tenants.read = {}, {}
        for depth in depths:
            queues.read[depth.queue_id] = depth.max_ready, depth.ready
            tenants.read[depth.tenant_id] = depth.ready_quota, depth.tenant_ready
        queues.added, tenants.added = queues.since.copy(), tenants.since.copy()

    def of_queue(self, queue_id: int) -> int:
        return self._queues.room(queue_id, self.held)

    def of_tenant(self, tenant_id: int) -> int:
        return self._tenants.room(tenant_id, self.held)

    def take(self, queue_id: int, tenant_id: int, most: int) -> int:
        """Take room for up to so many attempts that are about to be added, until `settle`."""
        taken = min(most, self.of_queue(queue_id), self.of_tenant(tenant_id))
        self._queues.in_flight[queue_id] += taken
        self._tenants.in_flight[tenant_id] += taken
        self._tenant_of[queue_id] = tenant_id
        return taken

    def settle(self, added: Mapping[int, int] | None) -> None:
        """What was taken is over. So many attempts were added to each queue; None: perhaps all."""
        for queue_id, count in (self._queues.in_flight if added is None else added).items():
            self._queues.add(queue_id, count)
            if queue_id in self._tenant_of:
                self._tenants.add(self._tenant_of[queue_id], count)
        self._queues.in_flight.clear()
        self._tenants.in_flight.clear()
        self._tenant_of.clear()


class FullQueue(NamedTuple):
    """A queue with timers that are due and wait for room, the first of them since `oldest_us`."""

    queue_id: int
    tenant_id: int
    oldest_us: int
    timers: int


def releases(queues: Iterable[FullQueue], room: ReadyRoom) -> dict[int, int]:
    """How many timers of each queue may go on, given the room now. Of one tenant's queues the oldest goes first."""
    going: dict[int, int] = {}
    of_tenant: Counter[int] = Counter()
    for queue in sorted(queues, key=lambda each: each.oldest_us):
        left = room.of_tenant(queue.tenant_id) - of_tenant[queue.tenant_id]
        count = min(left, room.of_queue(queue.queue_id), queue.timers)
        if count > 0:
            going[queue.queue_id] = count
            of_tenant[queue.tenant_id] += count
    return going


def refused_priorities(before: frozenset[Priority], ready: int, limit: int) -> frozenset[Priority]:
    """Submissions of which priorities are refused while so many attempts wait in all queues, given what was before."""
    refused = set()
    for priority, part in REFUSED_FROM.items():
        least = part * limit * (ADMITTED_BELOW if priority in before else 1)
        if ready >= least:
            refused.add(priority)
    return frozenset(refused)
