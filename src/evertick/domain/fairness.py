"""How due work is shared among tenants: deficit round robin by weight, and on time before catch-up.

Owns the order in which waiting items leave. What an item is, and how many may leave, is the caller's to say.
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from evertick.domain.errors import InvalidInput

Item = TypeVar("Item")

QUANTUM = 8  # items per turn and weight: many times cheaper per item than turns of one, and still a fine grain


class _Backlog(Generic[Item]):
    """What one tenant has waiting: those in `items` from `cursor` on."""

    __slots__ = ("credit", "cursor", "items", "tenant_id", "weight")

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id
        self.weight = 1
        self.items: list[Item] = []
        self.cursor = 0
        self.credit = 0  # how many more this turn may serve

    def __len__(self) -> int:
        return len(self.items) - self.cursor

    def advance(self, count: int) -> list[Item]:
        end = self.cursor + count
        taken = self.items[self.cursor : end]
        # Cut what was served only once it is at least half of the list: each item is then moved O(1) times.
        if 2 * end >= len(self.items):
            del self.items[:end]
            end = 0
        self.cursor = end
        return taken


class FairShare(Generic[Item]):
    """Deficit round robin (Shreedhar & Varghese) for items that all cost one.

    1. Tenants with waiting items stand in a rotation; a new one joins at its end. Idle tenants are not in it.
    2. The front tenant's turn gives it `weight * quantum` of credit, and each item served uses one.
    3. Credit used up: it goes to the end. Nothing left to serve: it leaves, and its credit is lost.
    4. When the budget ends in the middle of a turn, that turn goes on at the next call.

    Between two tenants that both keep waiting, items served per weight differ by at most `quantum`, over any
    stretch of time. A waiting tenant's next turn is at most one turn of each other tenant away.
    """

    def __init__(self, quantum: int = QUANTUM) -> None:
        if quantum < 1:
            raise InvalidInput("quantum", f"must be at least 1, not {quantum}")
        self._quantum = quantum
        self._backlogs: dict[int, _Backlog[Item]] = {}
        self._rotation: deque[_Backlog[Item]] = deque()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, tenant_id: int, items: Iterable[Item], weight: int = 1) -> None:
        """Queue items behind the tenant's others. Its weight from its next turn on is `weight`."""
        if weight < 1:
            raise InvalidInput("weight", f"must be at least 1, not {weight}")
        backlog = self._backlogs.get(tenant_id) or _Backlog(tenant_id)
        before = len(backlog)
        backlog.items.extend(items)
        backlog.weight = weight
        self._waiting += len(backlog) - before
        if not before and backlog.items:
            self._backlogs[tenant_id] = backlog
            self._rotation.append(backlog)

    def take(self, budget: int) -> list[Item]:
        """Remove and return as many items as wait, up to `budget`; each tenant's in the order they came."""
        taken: list[Item] = []
        left = min(budget, self._waiting)
        while left > 0:
            backlog = self._rotation[0]
            if not backlog.credit:
                backlog.credit = backlog.weight * self._quantum
            count = min(backlog.credit, len(backlog), left)
            taken += backlog.advance(count)
            backlog.credit -= count
            left -= count
            self._pass_turn(backlog)
        self._waiting -= len(taken)
        return taken

    def _pass_turn(self, backlog: _Backlog[Item]) -> None:
        if not backlog.items:
            self._rotation.popleft()
            del self._backlogs[backlog.tenant_id]
        elif not backlog.credit:
            self._rotation.rotate(-1)


class DueWork(Generic[Item]):
    """Due items in two classes, each fair by itself: no tenant's catch-up delays anyone's on-time work."""

    def __init__(self) -> None:
        self.on_time: FairShare[Item] = FairShare()
        self.catch_up: FairShare[Item] = FairShare()

    def __len__(self) -> int:
        return len(self.on_time) + len(self.catch_up)

    def take(self, budget: int) -> list[Item]:
        """Remove and return up to `budget` items, on-time ones first."""
        taken = self.on_time.take(budget)
        return taken + self.catch_up.take(budget - len(taken))
