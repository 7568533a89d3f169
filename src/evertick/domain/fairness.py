"""How tenants share what all of them need.

Due work leaves by deficit round robin and weight, on time before late, and within a tenant by priority. What an item
is, and how many may leave, is the caller's to say.

Slots cannot be taken back once they are in use: a webhook whose target hangs keeps its slot until its time-out. Being
fair on average is therefore not enough: at every moment a slot must be left for each tenant that has fewer than its
part.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from evertick.domain.errors import InvalidInput

Item = TypeVar("Item")

QUANTUM = 8  # items per turn and weight: many times cheaper per item than turns of one, and still a fine grain
HIGH, NORMAL, LOW = range(3)
PRIORITY_SHARES = (16, 4, 1)
"""Of a tenant's items, while all priorities wait: high, normal, low. Every priority goes on, however much is due."""
LATE_DIVISOR = 8
"""What is late keeps one place in so many, beside any amount of on-time work; so does catch-up."""
BORROWING_FACTOR = 2
"""A tenant may have borrowed this many times the slots that are left to borrow."""
NEWCOMERS_DIVISOR = 32
"""One slot in so many is kept for tenants that are not known yet."""


class _Line(Generic[Item]):
    """What one tenant has waiting in one priority: those in `items` from `cursor` on; if `is_sorted`, a heap of all."""

    __slots__ = ("cursor", "is_sorted", "items")

    def __init__(self, *, is_sorted: bool) -> None:
        self.items: list[Item] = []
        self.cursor = 0
        self.is_sorted = is_sorted

    def __len__(self) -> int:
        return len(self.items) - self.cursor

    def add(self, items: Iterable[Item]) -> None:
        if self.is_sorted:
            heap: list[Any] = self.items  # of what can be compared
            for item in items:
                heapq.heappush(heap, item)
        else:
            self.items.extend(items)

    def advance(self, count: int) -> list[Item]:
        if self.is_sorted:
            heap: list[Any] = self.items
            return [heapq.heappop(heap) for _ in range(count)]
        end = self.cursor + count
        taken = self.items[self.cursor : end]
        # Cut what was served only once it is at least half of the list: each item is then moved O(1) times.
        if 2 * end >= len(self.items):
            del self.items[:end]
            end = 0
        self.cursor = end
        return taken


class PriorityShares:
    """Shares places between priorities that wait, by `PRIORITY_SHARES`.

    `_left`: how many more each priority may get before the shares are given anew. That happens once every priority that
    waits has used its share up, so none is passed over for ever.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = list(PRIORITY_SHARES)

    def runs(self, waiting: Sequence[int], places: int) -> Iterator[tuple[int, int]]:
        """Who gets the next places, of so many that wait in each priority: a priority and how many of it, in turn."""
        left, total = list(waiting), sum(waiting)
        places = min(places, total)
        while places:
            for priority, count in enumerate(left):
                if count == total:  # nothing waits in the others
                    self._left[:] = PRIORITY_SHARES
                    yield priority, places
                    return
                served = min(places, count, self._left[priority])
                if served:
                    self._left[priority] -= served
                    left[priority] -= served
                    total -= served
                    places -= served
                    yield priority, served
                if not places:
                    return
            self._left[:] = PRIORITY_SHARES


class _Backlog(Generic[Item]):
    """What one tenant has waiting, in a line for each priority."""

    __slots__ = ("credit", "lines", "shares", "tenant_id", "waiting", "weight")

    def __init__(self, tenant_id: int, *, is_sorted: bool) -> None:
        self.tenant_id = tenant_id
        self.weight = 1
        self.lines: tuple[_Line[Item], ...] = tuple(_Line(is_sorted=is_sorted) for _ in PRIORITY_SHARES)
        self.shares = PriorityShares()
        self.waiting = 0
        self.credit = 0  # how many more this turn may serve

    def advance(self, count: int) -> list[Item]:
        """The next `count` of those that wait."""
        self.waiting -= count
        taken: list[Item] = []
        for priority, served in self.shares.runs([len(line) for line in self.lines], count):
            taken += self.lines[priority].advance(served)
        return taken


class FairShare(Generic[Item]):
    """Deficit round robin (Shreedhar & Varghese) for items that all cost one.

    1. Tenants with waiting items stand in a rotation; a new one joins at its end. Idle tenants are not in it.
    2. The front tenant's turn gives it `weight * quantum` of credit, and each item served uses one.
    3. Credit used up: it goes to the end. Nothing left to serve: it leaves, and its credit is lost.
    4. When the budget ends in the middle of a turn, that turn goes on at the next call.
    5. Within a tenant high goes before normal before low, by `PRIORITY_SHARES` while several wait.

    Between two tenants that both keep waiting, items served per weight differ by at most `quantum`, over any
    stretch of time. A waiting tenant's next turn is at most one turn of each other tenant away.

    Items of one tenant and priority leave in the order they came; if `is_sorted`, the smallest first.
    """

    def __init__(self, quantum: int = QUANTUM, *, is_sorted: bool = False) -> None:
        if quantum < 1:
            raise InvalidInput("quantum", f"must be at least 1, not {quantum}")
        self._quantum = quantum
        self._is_sorted = is_sorted
        self._backlogs: dict[int, _Backlog[Item]] = {}
        self._rotation: deque[_Backlog[Item]] = deque()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, tenant_id: int, items: Iterable[Item], weight: int = 1, priority: int = NORMAL) -> None:
        """Queue items behind the tenant's others. Its weight from its next turn on is `weight`."""
        if weight < 1:
            raise InvalidInput("weight", f"must be at least 1, not {weight}")
        backlog = self._backlogs.get(tenant_id) or _Backlog(tenant_id, is_sorted=self._is_sorted)
        line = backlog.lines[priority]
        before, was_waiting = len(line), backlog.waiting
        line.add(items)
        added = len(line) - before
        backlog.weight = weight
        backlog.waiting += added
        self._waiting += added
        if not was_waiting and added:
            self._backlogs[tenant_id] = backlog
            self._rotation.append(backlog)

    def take(self, budget: int) -> list[Item]:
        """Remove and return as many items as wait, up to `budget`."""
        taken: list[Item] = []
        left = min(budget, self._waiting)
        while left > 0:
            backlog = self._rotation[0]
            if not backlog.credit:
                backlog.credit = backlog.weight * self._quantum
            count = min(backlog.credit, backlog.waiting, left)
            taken += backlog.advance(count)
            backlog.credit -= count
            left -= count
            self._pass_turn(backlog)
        self._waiting -= len(taken)
        return taken

    def take_few(self, budget: int, *, are_others: bool = False) -> list[Item]:
        """Remove and return the items of tenants that have no more than one turn of them.

        Unless all tenants here are like that, and there are no others.
        """
        few = [each for each in self._rotation if each.waiting <= each.weight * self._quantum]
        if len(few) == len(self._rotation) and not are_others:
            return []
        taken: list[Item] = []
        for backlog in few:
            if len(taken) + backlog.waiting > budget:
                break
            taken += backlog.advance(backlog.waiting)
            del self._backlogs[backlog.tenant_id]
        self._rotation = deque(each for each in self._rotation if each.waiting)
        self._waiting -= len(taken)
        return taken

    def _pass_turn(self, backlog: _Backlog[Item]) -> None:
        if not backlog.waiting:
            self._rotation.popleft()
            del self._backlogs[backlog.tenant_id]
        elif not backlog.credit:
            self._rotation.rotate(-1)


class DueWork(Generic[Item]):
    """Due items in three classes, each fair by itself: on time, late, and the catch-up after an outage.

    On-time items go first. While others wait, each class of them keeps one place in `LATE_DIVISOR`, so that they go on
    in a system that has as much to do on time as it can. Late items and those of catch-up leave smallest first: oldest
    first, if they begin with their due times.
    """

    def __init__(self) -> None:
        self.on_time: FairShare[Item] = FairShare()
        self.late: FairShare[Item] = FairShare(is_sorted=True)
        self.catch_up: FairShare[Item] = FairShare(is_sorted=True)

    def __len__(self) -> int:
        return len(self.on_time) + len(self.late) + len(self.catch_up)

    def take(self, budget: int, most_catch_up: int | None = None) -> list[Item]:
        """Remove and return up to `budget` items, of catch-up up to `most_catch_up`."""
        wanted = len(self.catch_up) if most_catch_up is None else min(most_catch_up, len(self.catch_up))
        kept = budget // LATE_DIVISOR
        kept_catch_up = min(kept, wanted)
        taken = self.on_time.take(budget - min(kept, len(self.late)) - kept_catch_up)
        taken += self.late.take(budget - len(taken) - kept_catch_up)
        return taken + self.catch_up.take(min(wanted, budget - len(taken)))

    def take_few(self, budget: int) -> list[Item]:
        """Remove and return on-time items of tenants that have few of them, while much else waits."""
        return self.on_time.take_few(budget, are_others=len(self.late) + len(self.catch_up) > QUANTUM)


def first_priority(turn: int) -> int:
    """Which priority comes first in one of many turns, so that each is first as often as its share says.

    After it come the others, high before low.
    """
    place = turn % sum(PRIORITY_SHARES)
    if place == sum(PRIORITY_SHARES) - 1:
        return LOW
    return NORMAL if place % (PRIORITY_SHARES[NORMAL] + PRIORITY_SHARES[LOW]) == PRIORITY_SHARES[NORMAL] else HIGH


class TenantCounts(NamedTuple):
    """How many tenants there are: those that use slots, and those that never did but may at any time.

    `weights` tells how many of the active ones have which weight; without it, each has a weight of 1.
    """

    active: int
    idle: int = 0
    weights: Mapping[int, int] | None = None


ALONE = TenantCounts(1)


class FairSlots:
    """`total` slots, of which each tenant may have `most_each`.

    1. Where there is one tenant, it may have all slots.
    2. A tenant that has none may take any free slot.
    3. Half of the slots are guaranteed: one for each idle tenant, some for newcomers (both together at most a quarter
       of all slots), the rest in parts for the active ones by their weights, at least one for each.
    4. A tenant may fill its part as long as one slot is left for each that has none.
    5. Beyond its part it borrows, as long as slots are left for all that is guaranteed to others. Among those that have
       slots, a tenant of average weight may not have borrowed more than `BORROWING_FACTOR` times what then remains to
       be borrowed, others more or less by their weights.

    So every active tenant gets its part at once, whatever the others do, and every tenant its first slot even if it
    comes when the others have taken all that they may. That holds while the guarantees fit into half of the slots;
    if there are more tenants, half of the slots are kept for those that have none.
    """

    def __init__(
        self,
        total: int,
        most_each: int | None = None,
        tenants: TenantCounts = ALONE,
        weight_of: Callable[[int], int] = lambda _: 1,
    ) -> None:
        self.total = total
        self.free = total
        self.most_each = total if most_each is None else most_each
        self._weight_of = weight_of
        self._held: dict[int, int] = {}
        self._held_weight = 0
        self.share(tenants)

    def __len__(self) -> int:
        """How many tenants have a slot."""
        return len(self._held)

    def share(self, tenants: TenantCounts) -> None:
        """Share the slots among so many tenants, by their weights now; no tenant loses what it has."""
        guaranteed = self.total // 2
        newcomers = max(self.total // NEWCOMERS_DIVISOR, 1)
        self.tenants = tenants
        weights = {1: tenants.active} if tenants.weights is None else tenants.weights
        self._weight = max(sum(weight * count for weight, count in weights.items()), 1)
        self._is_alone = tenants.active + tenants.idle <= 1
        self.spare = min(newcomers + tenants.idle, max(guaranteed // 2, newcomers))
        self._shared = guaranteed - self.spare
        self._held_weight = sum(map(self._weight_of, self._held))
        self._parts: dict[int, int] = {}  # by weight
        promised = sum(count * self._part(weight) for weight, count in weights.items())
        self._untaken = promised - sum(min(held, self.part(each)) for each, held in self._held.items())

    def part(self, tenant_id: int) -> int:
        """How many slots the tenant is guaranteed."""
        return self._part(self._weight_of(tenant_id))

    def _part(self, weight: int) -> int:
        part = self._parts.get(weight)
        if part is None:
            part = min(max(min(self._shared * weight // self._weight, self._shared), 1), self.most_each)
            self._parts[weight] = part
        return part

    def held(self, tenant_id: int) -> int:
        return self._held.get(tenant_id, 0)

    def may_take(self, tenant_id: int) -> bool:
        held = self._held.get(tenant_id, 0)
        if not self.free or held >= self.most_each:
            return False
        if not held or self._is_alone:
            return True
        part = self.part(tenant_id)
        if held < part:
            return self.free > self._kept(len(self._held))
        borrowed, lendable = held - part, self.free - self._owed(self._untaken)
        return borrowed * self._held_weight < self._borrowing(tenant_id, len(self._held)) * lendable

    def most(self, tenant_id: int) -> int:
        """How many slots the tenant would have if it took all that it may now."""
        before = held = self._held.get(tenant_id, 0)
        free, untaken, holders = self.free, self._untaken, len(self._held)
        if self._is_alone:
            return max(min(held + free, self.most_each), held)
        if not held and free:
            held, free, untaken, holders = 1, free - 1, untaken - 1, holders + 1
        part = self.part(tenant_id)
        if 0 < held < part:
            filling = max(min(part - held, free - self._kept(holders)), 0)
            held, free, untaken = held + filling, free - filling, untaken - filling
        if held >= part:
            borrowed, lendable = held - part, free - self._owed(untaken)
            borrowing = self._borrowing(tenant_id, holders)
            weight = self._held_weight if before else self._held_weight + self._weight_of(tenant_id)
            held += max(-(-(borrowing * lendable - weight * borrowed) // (borrowing + weight)), 0)
        return max(min(held, self.most_each), before)

    def take(self, tenant_id: int, count: int = 1) -> None:
        """Take slots that the tenant may take."""
        held = self._held.get(tenant_id, 0)
        self._held[tenant_id] = held + count
        self._held_weight += 0 if held else self._weight_of(tenant_id)
        self.free -= count
        part = self.part(tenant_id)
        self._untaken -= min(held + count, part) - min(held, part)

    def give_back(self, tenant_id: int, count: int = 1) -> None:
        before = self._held[tenant_id]
        held = before - count
        if held:
            self._held[tenant_id] = held
        else:
            del self._held[tenant_id]
            self._held_weight -= self._weight_of(tenant_id)
        self.free += count
        part = self.part(tenant_id)
        self._untaken += min(before, part) - min(held, part)

    def _borrowing(self, tenant_id: int, holders: int) -> int:
        """The tenant's borrowing factor, multiplied by the weights of all that have slots."""
        return BORROWING_FACTOR * self._weight_of(tenant_id) * holders

    def _kept(self, holders: int) -> int:
        """How many free slots are for tenants that have none."""
        return min(max(self.tenants.active - holders, 0) + self.spare, self.total // 2)

    def _owed(self, untaken: int) -> int:
        """How many free slots are for tenants that have fewer than their part."""
        return min(max(untaken, 0) + self.spare, self.total // 2)
