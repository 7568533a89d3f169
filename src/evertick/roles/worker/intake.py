"""Leases attempts: how many, from which lanes, and when to look again."""

import asyncio
import logging
import math
import random
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from time import monotonic

from evertick.roles.worker.holdings import Holdings
from evertick.roles.worker.pace import Batch, Pace
from evertick.store import lanes, rules
from evertick.store.database import Pool
from evertick.store.lanes import Leased, Range, queue_of

logger = logging.getLogger("evertick.worker")

MOST_LANES = 32
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 1.0
SLOW_SECONDS = 0.003
SLOW_EACH_SECONDS = 0.0001
"""Who reads for longer than the one, and so much for each attempt, waits for the disk."""
READERS = 4
"""So many connections read what was leased then."""
QUEUES_SECONDS = 1.0
"""How often to look for queues that are not there yet; one comes to be with its first job."""


class Intake:
    """`room` says how many may come, given the pace; `taken` gets them."""

    def __init__(  # noqa: PLR0913 - from where, how much and for whom
        self,
        pool: Pool,
        worker: str,
        queues: Sequence[str],
        tenant_id: int | None,
        *,
        lease_time: timedelta,
        holdings: Holdings,
        pace: Pace,
        room: Callable[[int], int],
        taken: Callable[[Sequence[Leased]], None],
    ) -> None:
        self._pool = pool
        self._worker = worker
        self._queues = queues
        self._tenant_id = tenant_id
        self._lease_time = lease_time
        self._holdings = holdings
        self._pace = pace
        self._room = room
        self._taken = taken
        self._queue_ids: frozenset[int] = frozenset()
        self._looked = -math.inf
        self._named: set[int] = set()
        self._clear_until = -math.inf  # until then no lane but those that are named has any work, as far as is known
        self._is_cut = False
        self._readers = 1
        self._pause = FIRST_PAUSE
        self._lanes = MOST_LANES
        self._rotation = random.randrange(256)  # noqa: S311 - so that workers begin at different lanes

    def hear(self, lane_ids: frozenset[int] | None) -> bool:
        """These lanes, or none knows which, have ready work: note it, and say whether it may be ours."""
        if lane_ids is None or not self._queue_ids:
            self._clear_until = -math.inf
            return True
        ours = {lane_id for lane_id in lane_ids if queue_of(lane_id) in self._queue_ids}
        self._named |= ours
        return bool(ours)

    def look_again(self) -> None:
        """Do not wait for a queue that was not there at the last look."""
        if len(self._queue_ids) < len(self._queues):
            self._looked = -math.inf

    async def step(self) -> float:
        most = self._room(self._pace.size)
        if most <= 0:
            return LONGEST_PAUSE  # woken before, as soon as there is room
        named, self._named = self._named, set()
        if 0 < len(named) <= MOST_LANES and monotonic() < self._clear_until:
            # If no lane had more, that was all: whatever nobody named, the next look at all lanes finds.
            return 0 if await self.lease(most, named) and self._is_cut else FIRST_PAUSE
        self._clear_until = -math.inf
        asked = monotonic()
        if await self.lease(most):
            self._pause = FIRST_PAUSE
            return 0
        self._clear_until = asked + LONGEST_PAUSE
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause

    async def lease(self, most: int, named: Collection[int] | None = None) -> int:
        """Lease about so many attempts, from all lanes or from those named, and say how many there were."""
        await self._find_queues()
        if not self._queue_ids:
            return 0
        # About as many lanes as had work the last time, and deep into each; twice as many, to find out about more.
        likely = self._lanes if named is None else len(named)
        width = min(MOST_LANES, most, 2 * likely)
        depth = math.ceil(most / min(width, likely))
        asked = monotonic()
        ranges = await lanes.lease(
            self._pool,
            list(self._queue_ids),
            self._worker,
            lanes=width,
            most_per_lane=depth,
            rotation=self._rotation,
            lease_time=self._lease_time,
            tenant_id=self._tenant_id,
            only=named,
        )
        attempts = await self._read(ranges)
        self._rotation = (self._rotation + width) % 256
        if named is None:
            self._lanes = len({attempt.lease_id for attempt in attempts}) or MOST_LANES
        if attempts:
            leases = self._holdings.add(attempts, asked)
            self._is_cut = max(lease.open for lease in leases) >= depth
            batch = Batch(self._pace, len(leases), is_cut=self._is_cut)
            for lease in leases:
                lease.done = batch.lease_done
            self._taken(attempts)
        return len(attempts)

    async def _read(self, ranges: Sequence[Range]) -> list[Leased]:
        """What is in ranges that were leased, by several readers while each would wait for the disk."""
        size = max(1, math.ceil(len(ranges) / self._readers))
        parts = [ranges[start : start + size] for start in range(0, len(ranges), size)]
        began = monotonic()
        found = await asyncio.gather(*(lanes.read(self._pool, part) for part in parts), return_exceptions=True)
        attempts = [attempt for part in found if isinstance(part, list) for attempt in part]
        failed = [part for part in found if isinstance(part, BaseException)]
        for error in failed:
            if not attempts:
                raise error
            logger.warning("%s: some of what was leased comes back when its lease runs out", error)
        if attempts:
            alone = (monotonic() - began - SLOW_SECONDS) * len(parts)  # what one reader would have taken, about
            self._readers = READERS if alone > SLOW_EACH_SECONDS * len(attempts) else 1
        return attempts

    async def _find_queues(self) -> None:
        """Queues are never removed; those of other tenants under the same name may come."""
        now = monotonic()
        are_missing = len(self._queue_ids) < len(self._queues)
        if now - self._looked < (QUEUES_SECONDS if are_missing else 10 * QUEUES_SECONDS):
            return
        found = await rules.queues(self._pool, self._queues, self._tenant_id)
        self._queue_ids = frozenset(queue.queue_id for queue in found)
        self._looked = now
