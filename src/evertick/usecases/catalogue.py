"""Ids of rules, queues and lanes: rows that are added once, never change, and are remembered from then on."""

from collections.abc import Iterable, Mapping, Set as AbstractSet
from typing import NamedTuple

from evertick.domain.policies import Priority
from evertick.store import jobs, rules
from evertick.store.database import Pool
from evertick.store.statements import Connection

_MOST_RULES = 100_000
_PRIORITIES = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}


class Place(NamedTuple):
    """Where a job's attempts go."""

    queue: str
    partition: int
    priority: int


class Ids(NamedTuple):
    """The ids of rules by digest, of queues by name, and of lanes."""

    rules: Mapping[bytes, int]
    queues: Mapping[str, int]
    lanes: AbstractSet[int]


def priority_number(priority: Priority) -> int:
    """The number that the database knows a priority by; lower ones are drawn first."""
    return _PRIORITIES[priority]


class Catalogue:
    """What this process knows to be committed.

    With a pool of its own, what is missing is committed there and then: who adds the same in another transaction does
    not wait for this one's end.
    """

    def __init__(self, pool: Pool | None = None) -> None:
        self._pool = pool
        self._rules: dict[bytes, int] = {}
        self._queues: dict[tuple[int, str], int] = {}
        self._lanes: set[int] = set()

    async def add(
        self, connection: Connection, tenant_id: int, canonicals: Mapping[bytes, str], places: Iterable[Place]
    ) -> Ids:
        """The ids of rules (canonical texts by digest), queues and lanes. What is missing is added."""
        places = set(places)
        connection = self._pool or connection
        rule_ids = await self._add_rules(connection, canonicals)
        queue_ids = await self._add_queues(connection, tenant_id, {place.queue for place in places})
        lanes = {queue_ids[place.queue] << 10 | place.partition << 2 | place.priority for place in places}
        if not lanes <= self._lanes:
            await jobs.add_lanes(connection, lanes - self._lanes)
        ids = Ids(rule_ids, queue_ids, lanes)
        if self._pool is not None:
            self.remember(tenant_id, ids)
        return ids

    def remember(self, tenant_id: int, ids: Ids) -> None:
        """Ask no more for these. Only for what is committed: the ids of what is undone would lead nowhere."""
        if len(self._rules) > _MOST_RULES:
            self._rules.clear()
        self._rules.update(ids.rules)
        self._queues.update({(tenant_id, name): queue_id for name, queue_id in ids.queues.items()})
        self._lanes |= ids.lanes

    async def _add_rules(self, connection: Connection, canonicals: Mapping[bytes, str]) -> dict[bytes, int]:
        known = {digest: self._rules[digest] for digest in canonicals if digest in self._rules}
        missing = {digest: text for digest, text in canonicals.items() if digest not in known}
        return known | await jobs.add_rules(connection, missing) if missing else known

    async def _add_queues(self, connection: Connection, tenant_id: int, names: Iterable[str]) -> dict[str, int]:
        known = {name: self._queues[tenant_id, name] for name in names if (tenant_id, name) in self._queues}
        missing = set(names) - known.keys()
        if not missing:
            return known
        await jobs.add_queues(connection, tenant_id, missing)
        found = await rules.queues(connection, missing, tenant_id)
        return known | {queue.name: queue.queue_id for queue in found}
