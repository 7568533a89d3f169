"""Attempts that were leased and wait for a place, by tenant: each tenant's next starts as soon as it may have one.

An attempt has its place from when it is taken out of the queue until it ends, or is given up. One that comes back
without having ended, because its start was marked or its lease had to be confirmed, has kept its place.

Places are told apart by lease: who stood still may lease an attempt again before it knows that the first lease is lost.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

from evertick.domain.fair_slots import FairSlots
from evertick.roles.worker.waiting import Order, Waiting
from evertick.store.lanes import Leased


class _Line:
    """What waits of one tenant. `since`: when it last got a place, or began to wait."""

    __slots__ = ("orders", "since")

    def __init__(self, since: float) -> None:
        self.orders: deque[Order] = deque()
        self.since = since


class PlaceQueue:
    """A queue that seems empty while no tenant in it may take a place. Tenants take turns."""

    def __init__(self, places: FairSlots, monotonic: Callable[[], float]) -> None:
        self._places = places
        self._monotonic = monotonic
        self._placed: deque[Order] = deque()
        self._owners: dict[tuple[int, int], int] = {}  # by lease and seq
        self._lines: dict[int, _Line] = {}
        self._turns: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._placed) + sum(len(line.orders) for line in self._lines.values())

    def __bool__(self) -> bool:
        """Whether an attempt may start now; its tenant is the next in turn then."""
        if self._placed:
            return True
        for _ in range(len(self._turns)):
            if self._places.may_take(self._turns[0]):
                return True
            self._turns.rotate(-1)
        return False

    def __iter__(self) -> Iterator[Order]:
        yield from self._placed
        for line in self._lines.values():
            yield from line.orders

    def append(self, order: Order) -> None:
        tenant_id = order[0].tenant_id
        line = self._lines.get(tenant_id)
        if line is None:
            line = self._lines[tenant_id] = _Line(self._monotonic())
            self._turns.append(tenant_id)
        line.orders.append(order)

    def appendleft(self, order: Order) -> None:
        """Take back one that was taken out and has its place."""
        self._placed.appendleft(order)

    def popleft(self) -> Order:
        """The next that may start; only while the queue is true."""
        if self._placed:
            return self._placed.popleft()
        tenant_id = self._turns.popleft()
        line = self._lines[tenant_id]
        order = line.orders.popleft()
        if line.orders:
            line.since = self._monotonic()
            self._turns.append(tenant_id)
        else:
            del self._lines[tenant_id]
        self._places.take(tenant_id)
        self._owners[order[0].lease_id, order[0].seq] = tenant_id
        return order

    def waiting(self, tenant_id: int) -> int:
        line = self._lines.get(tenant_id)
        return 0 if line is None else len(line.orders)

    def tenants(self) -> set[int]:
        """Whose attempts wait."""
        return set(self._lines)

    def leave(self, leased: Leased) -> None:
        """Give back the attempt's place, if it has one."""
        tenant_id = self._owners.pop((leased.lease_id, leased.seq), None)
        if tenant_id is not None:
            self._places.give_back(tenant_id)

    def remove(self, is_meant: Callable[[Leased], bool]) -> None:
        self._placed = deque(order for order in self._placed if not is_meant(order[0]))
        for line in self._lines.values():
            line.orders = deque(order for order in line.orders if not is_meant(order[0]))
        self._lines = {tenant_id: line for tenant_id, line in self._lines.items() if line.orders}
        self._turns = deque(tenant_id for tenant_id in self._turns if tenant_id in self._lines)

    def stalled(self, seconds: float) -> Iterable[Order]:
        """What waits of tenants that got no place for so long."""
        before = self._monotonic() - seconds
        return (order for line in self._lines.values() if line.since <= before for order in line.orders)


class Progress:
    """How many deliveries of each tenant came to an end in this second and the one before."""

    def __init__(self) -> None:
        self._now: Counter[int] = Counter()
        self._before: Counter[int] = Counter()

    def count(self, tenant_id: int) -> None:
        self._now[tenant_id] += 1

    def turn(self) -> None:
        """A second has passed."""
        self._before, self._now = self._now, Counter()

    def recent(self, tenant_id: int) -> int:
        return self._now[tenant_id] + self._before[tenant_id]


class WaitingForPlaces(Waiting):
    """Orders of all tenants, which wait for places of their tenants."""

    def __init__(self, places: FairSlots, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.queue = PlaceQueue(places, monotonic)
        self.for_tasks = self.queue  # type: ignore[assignment] # has all of a deque that is used

    def take(self, is_meant: Callable[[Leased], bool]) -> list[Leased]:
        taken = super().take(is_meant)
        for leased in taken:
            self.queue.leave(leased)
        return taken

    def _remove_from_tasks(self, is_meant: Callable[[Leased], bool]) -> None:
        self.queue.remove(is_meant)
