"""Leases attempts: how many, from which lanes, and when to look again."""

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from evertick.roles.worker.holdings import Holdings
from evertick.roles.worker.pace import Batch, Pace
from evertick.roles.worker.reading import Read, Reading
from evertick.roles.worker.round_trip import RoundTrip
from evertick.runtime.wakeups import queue_named
from evertick.store import lanes, references as rules
from evertick.store.database import Pool
from evertick.store.lanes import Leased, Range, queue_of

logger = logging.getLogger("evertick.worker")

MAX_LANES = 32
ALL_LANES = 256
"""So many are asked at once over a slow line, where each further statement would cost more than they do."""
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 1.0
FREE_SECONDS = 0.25
"""How often at most to look for attempts that were put back, unless a wake-up says that there are some."""
QUEUES_SECONDS = 1.0
"""How often to look for queues that are not there yet; one comes to be with its first job."""
UNREAD_SECONDS = 60.0
"""What cannot be read for so long is left to others."""


class _Extent(NamedTuple):
    """How many lanes to ask, and for how many attempts each."""

    width: int
    depth: int


class Intake:
    """`room` says how many may come, given the pace and what is under way; `taken` gets them, `released` leases that
    turned out to be empty. `handlers` are the names of those that are here: attempts that were put back wait for one.
    """

    def __init__(  # noqa: PLR0913 - from where, how much and for whom
        self,
        pool: Pool,
        worker: str,
        queues: Sequence[str],
        tenant_id: int | None,
        *,
        handlers: Sequence[str],
        lease_time: timedelta,
        holdings: Holdings,
        pace: Pace,
        round_trip: RoundTrip,
        room: Callable[[int, int], int],
        taken: Callable[[Sequence[Leased]], None],
        released: Callable[[int], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._worker = worker
        self._queues = queues
        self._tenant_id = tenant_id
        self._handlers = handlers
        self._lease_time = lease_time
        self._holdings = holdings
        self._pace = pace
        self._round_trip = round_trip
        self._room = room
        self._taken = taken
        self._released = released
        self._monotonic = monotonic
        self._reading = Reading(pool, lambda: round_trip.seconds)
        self._unread_since: float | None = None
        self._queue_ids: frozenset[int] = frozenset()
        self._queue_names: dict[int, str] = {}
        self._looked = -math.inf
        self._named: set[int] = set()
        self._clear_until = -math.inf  # until then no lane but those that are named has any work, as far as is known
        self._free_from = -math.inf  # from then on to look for attempts that were put back
        self._under_way = 0
        self._is_flowing = False
        self._is_cut = False
        self._pause = FIRST_PAUSE
        self._lanes = MAX_LANES
        self._rotation = random.randrange(256)  # noqa: S311 - so that workers begin at different lanes

    def hear(self, lane_ids: frozenset[int] | None) -> bool:
        """Note what has ready work, as `runtime.wakeups` names it; None: unknown. Says whether it may be ours."""
        if lane_ids is None or not self._queue_ids:
            self._clear_until = self._free_from = -math.inf
            return True
        ours = {number for number in lane_ids if queue_named(number) in self._queue_ids}
        named = {number for number in ours if number > 0}
        self._named |= named
        if len(named) < len(ours):
            self._free_from = -math.inf  # attempts were put back
        return bool(ours)

    def look_again(self) -> None:
        """Do not wait for a queue that was not there at the last look, nor for attempts that were put back."""
        self._free_from = -math.inf
        if len(self._queue_ids) < len(self._queues):
            self._looked = -math.inf

    def queue_name(self, lane_id: int) -> str:
        return self._queue_names.get(queue_of(lane_id), ", ".join(self._queues))

    @property
    def has_unread(self) -> bool:
        """Whether anything was leased and could not be read yet."""
        return bool(self._reading.unread)

    async def step(self) -> float:
        await self.read_again()
        most = self._room(self._pace.size, self._under_way)
        if most <= 0:
            return LONGEST_PAUSE  # woken before, as soon as there is room
        named, self._named = self._named, set()
        if 0 < len(named) <= MAX_LANES and self._monotonic() < self._clear_until:
            # If no lane had more, that was all: whatever nobody named, the next look at all lanes finds.
            return 0 if await self.lease(most, named) and self._is_cut else FIRST_PAUSE
        self._clear_until = -math.inf
        asked = self._monotonic()
        if await self.lease(most):
            self._pause = FIRST_PAUSE
            return 0
        self._clear_until = asked + LONGEST_PAUSE
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause

    async def step_ahead(self) -> float:
        """Lease while other leases are under way: over a slow line, of lanes that had work, if there is room for it."""
        if not self._round_trip.is_slow or not self._is_flowing or not self._under_way or self._reading.unread:
            return LONGEST_PAUSE
        most = self._room(self._pace.size, self._under_way)
        if most <= 0:
            return LONGEST_PAUSE
        return 0 if await self.lease(most) else LONGEST_PAUSE

    async def lease(self, most: int, named: Collection[int] | None = None) -> int:
        """Lease about so many attempts, from all lanes or from those named, and say how many there were."""
        await self._find_queues()
        if not self._queue_ids:
            return 0
        self._under_way += most
        try:
            count = await self._lease(most, named)
        finally:
            self._under_way -= most
        self._is_flowing = count > 0
        return count

    async def read_again(self) -> None:
        """Read what was leased and could not be read; if that goes on for long, leave it to others."""
        if not self._reading.unread:
            return
        if self._unread_since is None:
            self._unread_since = self._monotonic()
        try:
            read = await self._reading.read_again()
        finally:
            if self._monotonic() - self._unread_since > UNREAD_SECONDS:
                self._give_up_unread()
            elif not self._reading.unread:
                self._unread_since = None
        self._take(read)

    async def _lease(self, most: int, named: Collection[int] | None) -> int:
        rooms = self._rooms(most)
        if rooms is not None and not rooms:
            return 0
        extent = self._extent(most, named)
        asked = self._monotonic()
        asking = [self._lease_lanes(extent, named, most, rooms)]
        if asked >= self._free_from:
            self._free_from = asked + FREE_SECONDS
            asking.append(self._lease_free(most, rooms))
        answers = await asyncio.gather(*asking, return_exceptions=True)
        ranges = [each for answer in answers if isinstance(answer, list) for each in answer]
        self._holdings.hold(ranges, asked)
        read = await self._reading.read(ranges)
        if named is None:
            self._lanes = len({each.lane_id for each in ranges}) or MAX_LANES
        self._take(read, extent, rooms)
        for error in answers:
            if isinstance(error, BaseException):
                raise error
        return len(read.attempts)

    def _extent(self, most: int, named: Collection[int] | None) -> _Extent:
        """About as many lanes as had work the last time, and deep into each; twice as many, to find out about more."""
        likely = self._lanes if named is None else len(named)
        width = min(ALL_LANES, most) if self._round_trip.is_slow else min(MAX_LANES, most, 2 * likely)
        return _Extent(width, math.ceil(most / min(width, likely)))

    def _rooms(self, most: int) -> Mapping[int, int] | None:  # noqa: ARG002 - subclasses share it out
        """How many attempts each queue may give; one that is not there is not asked. None: all, as they come."""
        return None

    async def _lease_lanes(
        self, extent: _Extent, named: Collection[int] | None, most: int, rooms: Mapping[int, int] | None
    ) -> list[Range]:
        rotation, self._rotation = self._rotation, (self._rotation + extent.width) % 256
        if rooms is not None:
            return await lanes.lease_by_queue(
                self._pool,
                rooms,
                self._worker,
                lanes=extent.width,
                most=most,
                most_per_lane=extent.depth,
                rotation=rotation,
                lease_time=self._lease_time,
                only=named,
            )
        return await lanes.lease(
            self._pool,
            list(self._queue_ids),
            self._worker,
            lanes=extent.width,
            most_per_lane=extent.depth,
            rotation=rotation,
            lease_time=self._lease_time,
            tenant_id=self._tenant_id,
            only=named,
        )

    async def _lease_free(self, most: int, rooms: Mapping[int, int] | None) -> list[Range]:
        """Attempts that were put back, for which there is a handler here."""
        ranges = await lanes.lease_free(
            self._pool,
            list(self._queue_ids if rooms is None else rooms),
            self._handlers,
            self._worker,
            most=most,
            lease_time=self._lease_time,
            tenant_id=self._tenant_id,
            rooms=None if rooms is None else list(rooms.values()),
        )
        if len(ranges) >= most:
            self._free_from = -math.inf  # there are more
        return ranges

    def _take(self, read: Read, extent: _Extent | None = None, rooms: Mapping[int, int] | None = None) -> None:
        """Hand on what was read, but for what was lost meanwhile."""
        held = {each.lease_id for each in read.ranges if self._holdings.find(each.lease_id) is not None}
        attempts = read.attempts
        if len(held) < len(read.ranges):
            attempts = [attempt for attempt in attempts if attempt.lease_id in held]
        if attempts:
            leases = self._holdings.add(attempts, self._monotonic())
            if extent is not None:
                is_deep = max(lease.open for lease in leases) > extent.depth  # one more while it is being read
                self._is_cut = is_deep or len(leases) >= extent.width or _is_full(attempts, rooms)
            batch = Batch(self._pace, len(leases), is_cut=self._is_cut)
            for lease in leases:
                lease.done = batch.lease_done
            self._taken(attempts)
        for lease_id in held:
            if self._holdings.end(lease_id) is not None:
                self._released(lease_id)

    def _give_up_unread(self) -> None:
        unread, self._reading.unread, self._unread_since = self._reading.unread, [], None
        if unread:
            logger.error("%d ranges could not be read for long: they come back when their leases run out", len(unread))
            self._holdings.forget(each.lease_id for each in unread)

    async def _find_queues(self) -> None:
        """Queues come and go: the janitor removes those that nothing refers to."""
        now = self._monotonic()
        are_missing = len(self._queue_ids) < len(self._queues)
        if now - self._looked < (QUEUES_SECONDS if are_missing else 10 * QUEUES_SECONDS):
            return
        found = await rules.queues(self._pool, self._queues, self._tenant_id)
        self._queue_ids = frozenset(queue.queue_id for queue in found)
        self._queue_names = {queue.queue_id: queue.name for queue in found}
        self._looked = now


def _is_full(attempts: Sequence[Leased], rooms: Mapping[int, int] | None) -> bool:
    """Whether a queue gave as much as it was asked for."""
    if rooms is None:
        return False
    counts = Counter(queue_of(leased.lane_id) for leased in attempts)
    return any(count >= rooms.get(queue_id, count) for queue_id, count in counts.items())
