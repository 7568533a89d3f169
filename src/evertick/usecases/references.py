"""Rules, queues and lanes that jobs refer to: they are added before the jobs, and removed by the janitor.

A process does not add again what it has added before. That is only a hint: a fail-over, a restore or the janitor may
have removed what was committed. So no id is cached here. The statement that writes a job looks up all that it refers
to, by digest and by name, and writes nothing if something is missing.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, TypeVar

from evertick.domain.admission import Refused
from evertick.domain.errors import EvertickError
from evertick.domain.limits import QuotaName
from evertick.domain.policies import Priority
from evertick.store.database import Pool
from evertick.store.jobs import references
from evertick.store.jobs.references import LaneKey
from evertick.store.statements import Connection
from evertick.usecases.errors import QuotaReached

_T = TypeVar("_T")
_TRIES = 3
_MAX_CACHED = 100_000
MAX_QUEUES = 500
"""Of one tenant. Each has up to three lanes on each partition of the tenant, and reading its runs goes through all."""
_PRIORITIES = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}


class NotAdded(EvertickError):  # noqa: N818 - says what is wrong
    """A rule, queue or lane was added and is still missing."""


class References(NamedTuple):
    """What jobs of a tenant refer to: the canonical texts of rules by digest, and lanes."""

    tenant_id: int
    canonicals: Mapping[bytes, str]
    lanes: Collection[LaneKey]


def priority_number(priority: Priority) -> int:
    """The number that the database knows a priority by; lower ones are drawn first."""
    return _PRIORITIES[priority]


class ReferenceCache:
    """The rules and lanes that this process has added.

    With a pool of its own, what is missing is committed at once: another transaction that adds the same does not wait
    for the end of this one.
    """

    def __init__(self, pool: Pool | None = None) -> None:
        self._pool = pool
        self.is_committed_apart = pool is not None
        self._digests: set[bytes] = set()
        self._lanes: set[tuple[int, LaneKey]] = set()

    async def write(
        self, connection: Connection, needed: References, statement: Callable[[], Awaitable[_T | None]]
    ) -> _T:
        """Run a statement that refers to these. It returns None, and has done nothing, while one is missing."""
        for _ in range(_TRIES):
            await self._add(self._pool or connection, needed)
            written = await statement()
            if written is not None:
                return written
            self.forget(needed)
        raise NotAdded("a rule, a queue or a lane that a job refers to is missing, though it was added")

    async def add_all(self, connection: Connection, wanted: References) -> None:
        """Add at once what several statements of a transaction will refer to, unless it is committed apart.

        Part by part, two transactions that add the same in another order would wait for each other.
        """
        if self._pool is None:
            self.forget(wanted)  # it may be of a try that was undone
            await self._add(connection, wanted)

    async def _add(self, connection: Connection, needed: References) -> None:
        canonicals = {digest: text for digest, text in needed.canonicals.items() if digest not in self._digests}
        lanes = [lane for lane in needed.lanes if (needed.tenant_id, lane) not in self._lanes]
        if canonicals:
            await references.add_rules(connection, canonicals)
        if lanes:
            await self._check_queues(connection, needed.tenant_id, {lane.queue for lane in lanes})
            await references.add_lanes(connection, needed.tenant_id, lanes)
        if len(self._digests) + len(self._lanes) > _MAX_CACHED:
            self._digests.clear()
            self._lanes.clear()
        self._digests.update(canonicals)
        self._lanes.update((needed.tenant_id, lane) for lane in lanes)

    async def _check_queues(self, connection: Connection, tenant_id: int, names: Collection[str]) -> None:
        if await references.queues_with(connection, tenant_id, names) > MAX_QUEUES:
            raise QuotaReached(Refused(QuotaName.QUEUES, MAX_QUEUES))

    def forget(self, needed: References) -> None:
        """Add these again the next time: a statement did not find all of them."""
        self._digests.difference_update(needed.canonicals)
        self._lanes.difference_update((needed.tenant_id, lane) for lane in needed.lanes)
