"""Attempts that were leased and wait for a slot, by tenant: each tenant's next starts as soon as it may have one.

An attempt has its slot from when it is taken out of the queue until it ends, or is given up. One that comes back
without having ended, because its start was marked or its lease had to be confirmed, has kept its slot.

Slots are told apart by lease: a process that stood still may lease an attempt again before it knows that the first
lease is lost.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from evertick.domain.attempt import Attempt, Token
from evertick.domain.fairness import FairSlots
from evertick.domain.resting import Resting
from evertick.executor.waiting import Order, Waiting

FEW = 8
"""A tenant with more than so many waiting has much to do."""


class _TenantLine:
    """What waits of one tenant. `since`: when it last got a slot, or began to wait."""

    __slots__ = ("orders", "since")

    def __init__(self, since: float) -> None:
        self.orders: deque[Order] = deque()
        self.since = since


class SlotQueue:
    """A queue that is false while no tenant in it may take a slot. Tenants take turns.

    `delay_of`: how many seconds ago an attempt became ready; None: that says nothing about how busy we are.
    """

    def __init__(
        self,
        slots: FairSlots,
        monotonic: Callable[[], float],
        delay_of: Callable[[Attempt], float | None] = lambda _: None,
    ) -> None:
        self._slots = slots
        self._delay_of = delay_of
        self._resting = Resting()
        self._rests_until = 0.0
        self._waiting = 0
        self._long = 0  # lines with more than a few
        self._is_flood_served = False  # in this turn of the event loop
        self._monotonic = monotonic
        self._with_slot: deque[Order] = deque()
        self._owners: dict[tuple[int, int], int] = {}  # by lease and seq
        self._lines: dict[int, _TenantLine] = {}
        self._turns: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._with_slot) + self._waiting

    def __bool__(self) -> bool:
        """Whether an attempt may start now; its tenant is the next in turn then."""
        if self._with_slot:
            return True
        is_resting = self._rests_until > 0 and self._monotonic() < self._rests_until
        for _ in range(len(self._turns)):
            tenant_id = self._turns[0]
            if self._slots.may_take(tenant_id) and not (is_resting and len(self._lines[tenant_id].orders) > FEW):
                return True
            self._turns.rotate(-1)
        return False

    def rest_after(self, seconds: float) -> float:
        """After a turn that took so long: rest from tenants that have many waiting, if that helps others.

        A turn for the others is followed by no rest: with enough of them a rest would never end.
        """
        if not self._is_flood_served:
            return 0.0
        self._is_flood_served = False
        now = self._monotonic()
        rest = self._resting.after(seconds, now)
        self._rests_until = now + rest if rest else 0.0
        return rest

    def __iter__(self) -> Iterator[Order]:
        yield from self._with_slot
        for line in self._lines.values():
            yield from line.orders

    def extend(self, orders: Iterable[Order]) -> None:
        for tenant_id, group in groupby(orders, _tenant):
            line = self._lines.get(tenant_id)
            if line is None:
                line = self._lines[tenant_id] = _TenantLine(self._monotonic())
                self._turns.append(tenant_id)
            before = len(line.orders)
            line.orders.extend(group)
            self._waiting += len(line.orders) - before
            self._long += before <= FEW < len(line.orders)

    def append(self, order: Order) -> None:
        self.extend((order,))

    def appendleft(self, order: Order) -> None:
        """Take back one that was taken out and has its slot."""
        self._with_slot.appendleft(order)

    def popleft(self) -> Order:
        """The next that may start; only while the queue is true."""
        return self.pop_some(1, math.inf)[0]

    def pop_some(self, most: int, budget: float) -> list[Order]:
        """The next that may start, one at least; only while the queue is true. Up to `most` of one tenant if there is
        no other here, until what their starts cost reaches the budget.
        """
        if self._with_slot:
            return [self._with_slot.popleft()]
        tenant_id = self._turns[0]
        line = self._lines[tenant_id]
        if len(self._turns) > 1 or self._rests_until > 0:
            most = 1
        if most > 1:
            most = min(most, self._slots.most(tenant_id) - self._slots.held(tenant_id), len(line.orders))
        orders = [line.orders.popleft()]
        while len(orders) < most and (budget := budget - orders[-1][1].start_cost) > 0:
            orders.append(line.orders.popleft())
        self._note_taken(tenant_id, line, orders)
        return orders

    def _note_taken(self, tenant_id: int, line: _TenantLine, orders: Sequence[Order]) -> None:
        """Orders of the tenant in turn were taken out of its line: they have slots."""
        left = len(line.orders)
        self._waiting -= len(orders)
        self._is_flood_served |= left + len(orders) > FEW
        self._long -= left <= FEW < left + len(orders)
        if left:
            line.since = self._monotonic()
            self._turns.rotate(-1)
        else:
            if not self._slots.held(tenant_id) and len(orders) == 1:
                self._note_delay(orders[0][0])
            self._turns.popleft()
            del self._lines[tenant_id]
        self._slots.take(tenant_id, len(orders))
        for attempt, *_ in orders:
            self._owners[attempt.lease_id, attempt.token[1]] = tenant_id

    def _note_delay(self, attempt: Attempt) -> None:
        """An attempt starts that is the only one here of its tenant."""
        if (delay := self._delay_of(attempt)) is not None:
            if self._long:
                self._resting.note_beside(delay, self._monotonic())
            else:
                self._resting.note_alone(delay, self._monotonic())

    def tenants(self) -> set[int]:
        """Those of whose attempts some wait or have a slot."""
        return {*self._lines, *self._owners.values()}

    def waiting(self, tenant_id: int) -> int:
        line = self._lines.get(tenant_id)
        return 0 if line is None else len(line.orders)

    def leave(self, attempt: Attempt) -> None:
        """Give back the attempt's slot, if it has one."""
        self.leave_all((attempt,))

    def leave_all(self, attempts: Iterable[Attempt]) -> None:
        """Give back the slots of attempts, of those that have one."""
        pop = self._owners.pop
        owners = [pop((attempt.lease_id, attempt.token[1]), None) for attempt in attempts]
        for tenant_id, count in Counter(owners).items():
            if tenant_id is not None:
                self._slots.give_back(tenant_id, count)

    def remove(self, is_meant: Callable[[Attempt], bool]) -> None:
        self._with_slot = deque(order for order in self._with_slot if not is_meant(order[0]))
        for line in self._lines.values():
            line.orders = deque(order for order in line.orders if not is_meant(order[0]))
        self._lines = {tenant_id: line for tenant_id, line in self._lines.items() if line.orders}
        self._waiting = sum(len(line.orders) for line in self._lines.values())
        self._long = sum(len(line.orders) > FEW for line in self._lines.values())
        self._turns = deque(tenant_id for tenant_id in self._turns if tenant_id in self._lines)

    def stalled(self, seconds: float) -> Iterable[Order]:
        """What waits of tenants that got no slot for so long."""
        before = self._monotonic() - seconds
        return (order for line in self._lines.values() if line.since <= before for order in line.orders)


def _tenant(order: Order) -> int:
    return order[0].tenant_id


class DeliveryCounts:
    """How many deliveries of each tenant came to an end in this second and the one before."""

    def __init__(self) -> None:
        self._now: Counter[int] = Counter()
        self._before: Counter[int] = Counter()

    def add(self, tenant_ids: Iterable[int]) -> None:
        """Of these tenants one delivery each."""
        self._now.update(tenant_ids)

    def turn(self) -> None:
        """A second has passed."""
        self._before, self._now = self._now, Counter()

    def recent(self, tenant_id: int) -> int:
        return self._now[tenant_id] + self._before[tenant_id]


class WaitingForSlots(Waiting):
    """Orders of all tenants, which wait for slots of their tenants. What gets none for `longest_seconds` is stalled."""

    def __init__(
        self,
        slots: FairSlots,
        longest_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
        delay_of: Callable[[Attempt], float | None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._longest_seconds = longest_seconds
        self.queue = SlotQueue(slots, monotonic, delay_of)
        self.for_tasks = self.queue  # type: ignore[assignment] # has all of a deque that is used

    def take(self, is_meant: Callable[[Attempt], bool]) -> list[Attempt]:
        taken = super().take(is_meant)
        for attempt in taken:
            self.queue.leave(attempt)
        return taken

    def add_all(self, orders: Sequence[Order]) -> None:
        self.queue.extend(orders)

    def next_tasks(self, most: int, budget: float) -> list[Order]:
        found: list[Order] = []
        while len(found) < most and budget > 0 and self.queue:
            some = self.queue.pop_some(most - len(found), budget)
            budget -= sum([order[1].start_cost for order in some])
            found += some
        return found

    def rest_after(self, seconds: float) -> float:
        return self.queue.rest_after(seconds)

    def stalled(self) -> set[Token]:
        return {order[0].token for order in self.queue.stalled(self._longest_seconds)}

    def _remove_from_tasks(self, is_meant: Callable[[Attempt], bool]) -> None:
        self.queue.remove(is_meant)
