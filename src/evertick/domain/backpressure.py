"""How many attempts may be added to queues that are filling up, and which submissions an overloaded system refuses.

Decides only. Reading how many attempts wait, and keeping back what may not fire yet, is the caller's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from evertick.domain.ids import PARTITIONS
from evertick.domain.policies import Priority

DEFAULT_MAX_READY = 250_000
"""Attempts of a queue that wait for a worker, unless it has another limit. In SQL the column's default."""
DEFAULT_READY_QUOTA = 1_000_000
"""The same for all queues of a tenant."""
DEFAULT_MAX_READY_IN_ALL = 4_000_000
"""The same for all tenants together: from parts of it on submissions are refused."""
MAX_WINDOW = 1_000
"""Attempts of a catch-up that may stand in a queue's lanes, at most, before those that are on time."""
MIN_WINDOW = 1
QUEUE_FACTOR = 3
"""A queue gets more only while it has less than so many times what its tenant has left. So one queue without workers
leaves a quarter of the quota, a second one a quarter of that, and a queue that has none finds room."""
REPORTED_FROM = 4
"""A reading leaves out queues with the default limits, or larger ones, that are less than a quarter full."""

REFUSED_FROM = {Priority.LOW: 0.5, Priority.NORMAL: 0.8, Priority.HIGH: 1.0}
"""From which part of the limit on all waiting attempts on submissions of a priority are refused."""
ADMITTED_BELOW = 0.9
"""And below which part of that number they are admitted again."""


NOTHING: Mapping[int, int] = MappingProxyType({})


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
        """Whether no more is added to it. Of a tenant without a quota nothing fires, and none of its queues is full."""
        if self.ready >= self.max_ready:
            return True
        return self.tenant_ready > 0 and self.ready >= QUEUE_FACTOR * (self.ready_quota - self.tenant_ready)


class ParkedLine(NamedTuple):
    """Timers of a queue that wait for room: those of a catch-up, or the others."""

    queue_id: int
    is_catch_up: bool = False


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
        return self.left(key, limit - ready, held)

    def left(self, key: int, room: int, held: int) -> int:
        """What is left of the node's part of this room."""
        part = -(-max(0, room) * held // PARTITIONS)
        return max(0, part - self.added[key] - self.in_flight[key])

    def used(self, key: int, held: int) -> int:
        """The node's part of what waits, as far as that is known, and what it added itself."""
        _, ready = self.read.get(key, (0, 0))
        return ready * held // PARTITIONS + self.added[key] + self.in_flight[key]

    def add(self, key: int, count: int) -> None:
        self.added[key] += count
        self.since[key] += count


class Window(NamedTuple):
    """How many attempts may wait in the lanes of a queue for more of a catch-up to be added, and how many do."""

    size: int
    ready: int = 0

    def adapt(self, ready: int, *, was_used_up: bool) -> "Window":
        """So many wait now. Workers that took all get twice as much, and those that left most of it get half."""
        if 2 * ready > self.size:
            return Window(max(self.size // 2, MIN_WINDOW), ready)
        return Window(min(2 * self.size, MAX_WINDOW) if was_used_up and not ready else self.size, ready)


class ReadyRoom:
    """How many attempts this node may add to each queue before the next reading.

    A node that holds a part of the partitions takes that part of the room, rounded up. So one node does not pass a
    limit. Several nodes may pass it, by what the others add before they read again, and by one attempt each.

    Of a catch-up no more is added than workers take from one reading to the next: what is on time comes after it in the
    lanes. The window of a queue begins small, and is forgotten when no catch-up waits for it any more.
    """

    def __init__(self) -> None:
        self._windows: dict[int, Window] = {}
        self._asked: set[int] = set()  # queues for which there was a catch-up since the last reading
        self._queues = _Limited(DEFAULT_MAX_READY)
        self._tenants = _Limited(DEFAULT_READY_QUOTA)
        self._tenant_of: dict[int, int] = {}  # of queues with attempts in flight
        self.held = 0
        """How many partitions the node holds."""

    def begin_reading(self, catching_up: Iterable[int] = ()) -> list[int]:
        """A reading begins: what is added from now on may be missing in it.

        A catch-up waits for these queues. Returns those whose lanes are to be counted.
        """
        self._queues.since, self._tenants.since = Counter(), Counter()
        self._asked.update(catching_up)
        return list(self._asked)

    def end_reading(self, depths: Iterable[ReadyDepth], in_lanes: Mapping[int, int] = NOTHING) -> None:
        """`in_lanes`: how many attempts wait there in queues with a catch-up; none in others."""
        queues, tenants = self._queues, self._tenants
        self._windows = {
            queue_id: self._window(queue_id).adapt(
                in_lanes.get(queue_id, 0), was_used_up=not self._of_catch_up(queue_id)
            )
            for queue_id in self._asked
        }
        self._asked = set()
        queues.read, tenants.read = {}, {}
        for depth in depths:
            queues.read[depth.queue_id] = depth.max_ready, depth.ready
            tenants.read[depth.tenant_id] = depth.ready_quota, depth.tenant_ready
        queues.added, tenants.added = queues.since.copy(), tenants.since.copy()

    def of_line(self, line: ParkedLine, tenant_id: int, going: int = 0, tenant_going: int = 0) -> int:
        """How many attempts may be added to a queue, beside those that are going to it, and to all of its tenant."""
        queue_id = line.queue_id
        room = self._of_catch_up(queue_id) if line.is_catch_up else self._queues.room(queue_id, self.held)
        of_tenant = self._tenants.room(tenant_id, self.held) - tenant_going
        # The n-th more is allowed if the queue has less than QUEUE_FACTOR times what is left before it.
        surplus = QUEUE_FACTOR * of_tenant - self._queues.used(queue_id, self.held) - going
        return max(0, min(room - going, of_tenant, -(-surplus // (1 + QUEUE_FACTOR))))

    def _of_catch_up(self, queue_id: int) -> int:
        window = self._window(queue_id)
        left = self._queues.left(queue_id, window.size - window.ready, self.held)
        return min(self._queues.room(queue_id, self.held), left)

    def _window(self, queue_id: int) -> Window:
        return self._windows.get(queue_id, Window(MIN_WINDOW))

    def take(self, line: ParkedLine, tenant_id: int, most: int) -> int:
        """Take room for up to so many attempts that are about to be added, until `settle`."""
        queue_id, is_catch_up = line
        if is_catch_up:
            self._asked.add(queue_id)
        taken = min(most, self.of_line(line, tenant_id))
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

    line: ParkedLine
    tenant_id: int
    oldest_us: int
    timers: int


def releases(queues: Iterable[FullQueue], room: ReadyRoom) -> dict[ParkedLine, int]:
    """How many timers of each queue may go on, given the room now. Of one tenant's queues the oldest goes first.

    A catch-up gets what the others leave. The answer is in the order in which they go.
    """
    going: dict[ParkedLine, int] = {}
    of_queue: Counter[int] = Counter()
    of_tenant: Counter[int] = Counter()
    for queue in sorted(queues, key=lambda each: (each.line.is_catch_up, each.oldest_us)):
        queue_id = queue.line.queue_id
        left = room.of_line(queue.line, queue.tenant_id, of_queue[queue_id], of_tenant[queue.tenant_id])
        count = min(left, queue.timers)
        if count > 0:
            going[queue.line] = count
            of_queue[queue_id] += count
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
