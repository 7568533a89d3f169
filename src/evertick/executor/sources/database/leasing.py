"""Leases attempts: how many, from which lanes, and when to look again."""

import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from evertick.domain.attempt import Token
from evertick.domain.fairness import first_priority
from evertick.executor.source import Consumer
from evertick.executor.sources.database.pace import Batch, CompletionRate, Pace, RoundTrip
from evertick.executor.sources.database.queues import QueueSelection
from evertick.executor.sources.database.reading import Read, Reading, answers_of
from evertick.runtime.queue_rates import QueueRates
from evertick.runtime.wakeups import queue_named
from evertick.store.database import Pool
from evertick.store.engine import lanes
from evertick.store.engine.lanes import Leased, LeasedRange, queue_of
from evertick.store.statements import Connection

logger = logging.getLogger("evertick.worker")

MAX_LANES = 32
ALL_LANES = 256
"""How many are asked at once over a slow line, where a second statement would cost more than they do."""
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 1.0
CONTENDED_PAUSE = 0.02
"""Before a cap is asked for again that another session has just locked."""
FREE_SECONDS = 0.25
"""How often at most to look for attempts that were put back, unless a wake-up says that there are some."""
SPARE_SECONDS = 0.02
"""How often at most to look for what could start at once while enough is here: it may be another tenant's."""
UNREAD_SECONDS = 60.0
"""After this time what cannot be read is left to others."""


class _Extent(NamedTuple):
    """How many lanes to ask, and for how many attempts each."""

    width: int
    depth: int


class Leasing:
    """Leases for a consumer, as much as it has room for. Attempts that were put back come along, if their handler is
    here.
    """

    def __init__(  # noqa: PLR0913 - from where, how much and for whom
        self,
        pool: Pool,
        queues: QueueSelection,
        consumer: Consumer,
        *,
        lease_time: timedelta,
        pace: Pace,
        round_trip: RoundTrip,
        rate: CompletionRate,
        queue_rates: QueueRates,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._queues = queues
        self._consumer = consumer
        self._held_leases = consumer.held_leases
        self._lease_time = lease_time
        self._pace = pace
        self._round_trip = round_trip
        self._rate = rate
        self._queue_rates = queue_rates
        self._monotonic = monotonic
        self._reading = Reading(pool, lambda: round_trip.seconds)
        self._unread_since: float | None = None
        self._asked_queues: frozenset[int] = frozenset()
        self._named: set[int] = set()
        self._clear_until = -math.inf  # until then no lane but those that are named has any work, as far as is known
        self._free_from = -math.inf  # from then on to look for attempts that were put back
        self._spare_from = -math.inf  # from then on to look for more than is needed
        self._under_way = 0
        self._is_flowing = False
        self._is_contended = False
        self._is_beside_due = False
        self._beside: set[int] = set()  # queues that are asked beside others now
        self._token_wait: float | None = None  # there is work, and its queue's rate allows it after so long
        self._is_cut = False
        self._pause = FIRST_PAUSE
        self._lanes = MAX_LANES
        self._turn = 0
        self._rotation = random.randrange(256)  # noqa: S311 - so that workers begin at different lanes

    def hear(self, lane_ids: frozenset[int] | None) -> bool:
        """Note what has ready work, as `runtime.wakeups` names it; None: unknown. Says whether it may be ours."""
        if lane_ids is None or not self._queues.ids:
            self._clear_until = self._free_from = -math.inf
            self._note_beside()
            return True
        ours = {number for number in lane_ids if queue_named(number) in self._queues.ids}
        named = {number for number in ours if number > 0}
        self._named |= named
        if len(named) < len(ours):
            self._free_from = -math.inf  # attempts were put back
        if ours:
            self._note_beside()
        return bool(ours)

    def _note_beside(self) -> None:
        """Something may be ready for a tenant that has nothing here, and no lease begins now."""
        if self._under_way or self._monotonic() < self._spare_from:
            self._is_beside_due = True

    def look_again(self) -> None:
        """Do not wait for a queue that was not there at the last look, nor for attempts that were put back."""
        self._free_from = -math.inf
        self._queues.refresh_soon()

    @property
    def is_capped(self) -> bool:
        """Whether a cap limits how much may run, so that what ends makes room only when it is recorded."""
        return bool(self._queues.capped)

    @property
    def has_unread(self) -> bool:
        """Whether anything was leased and could not be read yet."""
        return bool(self._reading.unread)

    async def step(self) -> float:
        self._note_rooms()
        await self.read_again()
        most = self._room()
        if most <= 0:
            # Woken before, as soon as there is room.
            return min(max(self._spare_from - self._monotonic(), 0) or LONGEST_PAUSE, LONGEST_PAUSE)
        self._is_contended, self._token_wait = False, None
        named, self._named = self._named, set()
        if 0 < len(named) <= MAX_LANES and self._monotonic() < self._clear_until:
            # If no lane had more, that was all: the next look at all lanes finds what was not named.
            leased = await self.lease(most, named)
            if self._is_contended or self._token_wait is not None:
                self._named |= named
                return self._soon()
            return 0 if leased and self._is_cut else FIRST_PAUSE
        self._clear_until = -math.inf
        asked = self._monotonic()
        if await self.lease(most):
            self._pause = FIRST_PAUSE
            return 0
        if self._is_contended or self._token_wait is not None:
            return self._soon()
        self._clear_until = asked + LONGEST_PAUSE
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause

    def _soon(self) -> float:
        """When a cap that was locked may be free, or a rate have tokens."""
        if self._is_contended or self._token_wait is None:
            return CONTENDED_PAUSE
        return min(self._token_wait, LONGEST_PAUSE)

    async def step_ahead(self) -> float:
        """Lease while other leases are under way: over a slow line, of lanes that had work, if there is room for it."""
        if not self._round_trip.is_slow or not self._is_flowing or not self._under_way or self._reading.unread:
            return LONGEST_PAUSE
        most = self._room()
        if most <= 0:
            return LONGEST_PAUSE
        return 0 if await self.lease(most) else LONGEST_PAUSE

    async def lease(self, most: int, named: Collection[int] | None = None) -> int:
        """Lease about `most` attempts, from all lanes or from those named; returns how many there were."""
        self._under_way += most
        try:
            await self._queues.refresh(self._pool, self._monotonic())
            if not self._queues.ids:
                return 0
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

    def _room(self) -> int:
        """How many attempts to lease now: up to the lease size if no more than half of it is here, else the free slots.

        What is under way counts as held. Over a slow line what ends before more arrives is added to the size.
        What could start at once is leased however much waits, for that may be another tenant's; but not all the time.
        """
        consumer = self._consumer
        self._rate.look(consumer.ended)
        if not consumer.may_lease:
            return 0
        size, ahead = self._pace.size, self._rate.per_lease
        held = consumer.held + self._under_way
        room = size + ahead if held <= size // 2 + ahead else consumer.slots - consumer.written_off
        spare = self._queues.can_start() - self._under_way
        if room <= held and spare > 0:
            now = self._monotonic()
            if now < self._spare_from:
                return 0
            self._spare_from = now + SPARE_SECONDS
        return max(room - held, spare)

    def _note_rooms(self) -> None:
        rooms = self._queues.rooms(self._pace.size, self._consumer.held)
        if rooms is not None:
            asked = frozenset(rooms)
            if not asked <= self._asked_queues:
                # A tenant has room again: what it has ready was in no lane that was looked at.
                self._clear_until = self._free_from = -math.inf
            self._asked_queues = asked

    async def step_beside(self) -> float:
        """Lease for tenants that have nothing here, after a wake-up that came while others were leased for."""
        if not self._is_beside_due or not self._consumer.may_lease:
            return LONGEST_PAUSE
        self._is_beside_due = False
        await self._queues.refresh(self._pool, self._monotonic())
        rooms = self._queues.rooms(self._pace.size, self._consumer.held) or {}
        idle = self._unlimited(self._queues.idle(rooms))
        free = {queue_id: room for queue_id, room in idle.items() if queue_id not in self._beside}
        if len(free) < len(idle):
            self._is_beside_due = True  # for those that others ask just now, when they have ended
        if not free:
            return LONGEST_PAUSE
        # No more than can start, but something of each.
        most = min(sum(free.values()), max(self._queues.can_start(), len(free)))
        self._beside |= free.keys()
        try:
            await self._lease_from(most, None, free, {}, is_whole=False)
        finally:
            self._beside -= free.keys()
        return 0 if self._is_beside_due else LONGEST_PAUSE

    async def _lease(self, most: int, named: Collection[int] | None) -> int:
        """Tenants that have nothing here come first: they do not wait for what comes for others."""
        rooms = self._queues.rooms(self._pace.size, self._consumer.held)
        idle = {} if rooms is None or named is not None else self._queues.idle(rooms)
        idle = {queue_id: room for queue_id, room in idle.items() if queue_id not in self._beside}
        if rooms is None or not idle or len(idle) == len(rooms):
            return await self._lease_from(most, named, rooms, rooms)
        rest = {queue_id: room for queue_id, room in rooms.items() if queue_id not in idle}
        # A lease that a cap or a rate limits asks for what was put back of its own queues alone.
        is_limited = len(self._unlimited(rest)) < len(rest)
        put_back = self._unlimited(idle) if is_limited else {}
        count = await self._lease_from(most, None, idle, put_back, is_whole=False)
        if count >= most:
            return count
        return count + await self._lease_from(most - count, None, rest, self._unlimited(rooms))

    def _unlimited(self, rooms: Mapping[int, int]) -> dict[int, int]:
        """The queues without a cap or a rate."""
        limited = self._queues.capped | self._queues.rates.keys()
        return {queue_id: room for queue_id, room in rooms.items() if queue_id not in limited}

    async def _lease_from(
        self,
        most: int,
        named: Collection[int] | None,
        rooms: Mapping[int, int] | None,
        put_back: Mapping[int, int] | None,
        *,
        is_whole: bool = True,
    ) -> int:
        """Lease from lanes of these queues, and what was put back of those; None: of all, empty: of none.

        `is_whole`: how many lanes there are with work tells about the next lease.
        """
        if rooms is not None:
            rooms = {queue_id: min(room, most) for queue_id, room in rooms.items()}
            if not rooms:
                return 0
        tokens: dict[int, int] = {}
        if rated := self._queues.rates.keys() & (self._queues.ids if rooms is None else rooms.keys()):
            rooms = await self._rated(dict.fromkeys(self._queues.ids, most) if rooms is None else rooms)
            if not rooms:
                return 0
            tokens = {queue_id: rooms[queue_id] for queue_id in rated if queue_id in rooms}
        extent = self._extent(most, named) if is_whole else _Extent(min(MAX_LANES, most), most)
        asked = self._monotonic()
        asking: list[Coroutine[Any, Any, list[LeasedRange]]]
        if not rated and self._queues.capped.isdisjoint(self._queues.ids if rooms is None else rooms):
            asking = [self._lease_lanes(self._pool, extent, named, most, rooms)]
            if (put_back is None or put_back) and asked >= self._free_from:
                self._free_from = asked + FREE_SECONDS
                asking.append(self._lease_free(self._pool, most, put_back))
        else:
            asking = [self._lease_capped(extent, named, most, rooms)]
        answers = await answers_of(asking)
        ranges = [each for answer in answers if isinstance(answer, list) for each in answer]
        self._held_leases.hold([each.lease_id for each in ranges], asked)
        read = await self._reading.read(ranges)
        if named is None and is_whole:
            self._lanes = len({each.lane_id for each in ranges}) or MAX_LANES
        self._take(read, extent, rooms)
        self._give_back(tokens, read)
        for error in answers:
            if isinstance(error, BaseException):
                raise error
        return len(read.attempts)

    async def _rated(self, rooms: Mapping[int, int]) -> dict[int, int]:
        """Rooms no larger than rates allow, nor than what can run at once here: what waits here starts in bursts."""
        slots = self._consumer.slots
        asked = {
            queue_id: min(room, slots) if queue_id in self._queues.rates else room for queue_id, room in rooms.items()
        }
        rated, wait = await self._queue_rates.take(
            self._pool,
            asked,
            self._queues.rates,
            capped=self._queues.capped,
            handlers=self._consumer.handler_names,
            tenant_id=self._queues.tenant_id,
        )
        if wait is not None:
            self._token_wait = wait if self._token_wait is None else min(wait, self._token_wait)
        return rated

    def _give_back(self, tokens: Mapping[int, int], read: Read) -> None:
        """Give back tokens of attempts that were not leased. What cannot be read yet counts as leased."""
        if tokens and not self._reading.unread:
            leased = Counter(queue_of(attempt.lane_id) for attempt in read.attempts)
            for queue_id, count in tokens.items():
                self._queue_rates.give_back(queue_id, count - leased[queue_id])

    def put_back(self, tokens: Iterable[Token]) -> None:
        """Attempts of these tokens were not started: queues with a rate get theirs back."""
        if rates := self._queues.rates:
            counts = Counter(queue_id for lane_id, _ in tokens if (queue_id := queue_of(lane_id)) in rates)
            for queue_id, count in counts.items():
                self._queue_rates.give_back(queue_id, count)

    def _extent(self, most: int, named: Collection[int] | None) -> _Extent:
        """About as many lanes as had work the last time, and deep into each; twice as many, to find out about more."""
        likely = self._lanes if named is None else len(named)
        width = min(ALL_LANES, most) if self._round_trip.is_slow else min(MAX_LANES, most, 2 * likely)
        return _Extent(width, math.ceil(most / min(width, likely)))

    async def _lease_capped(
        self, extent: _Extent, named: Collection[int] | None, most: int, rooms: Mapping[int, int] | None
    ) -> list[LeasedRange]:
        """Lease no more than caps leave. What is leased counts as running until it ends or is put back."""
        asked = list((dict.fromkeys(self._queues.ids, most) if rooms is None else rooms).items())
        random.shuffle(asked)  # so that a tenant's queues share what its cap leaves
        async with self._pool.acquire() as session, session.transaction():
            left, is_contended = await lanes.lock_rooms(session, dict(asked), self._queues.tenant_id)
            self._is_contended |= is_contended
            if not left:
                return []
            free = await self._lease_free(session, most, left)
            for each in free:
                left[queue_of(each.lane_id)] -= 1
            left = {queue_id: room for queue_id, room in left.items() if room}
            if not left or len(free) >= most:
                return free
            return free + await self._lease_lanes(session, extent, named, most - len(free), left)

    async def _lease_lanes(
        self,
        connection: Connection,
        extent: _Extent,
        named: Collection[int] | None,
        most: int,
        rooms: Mapping[int, int] | None,
    ) -> list[LeasedRange]:
        rotation, self._rotation = self._rotation, (self._rotation + extent.width) % 256
        priority, self._turn = first_priority(self._turn), self._turn + 1
        if rooms is not None:
            return await lanes.lease_by_queue(
                connection,
                rooms,
                self._consumer.name,
                lanes=extent.width,
                most=most,
                most_per_lane=extent.depth,
                rotation=rotation,
                lease_time=self._lease_time,
                only=named,
                first_priority=priority,
            )
        return await lanes.lease(
            connection,
            list(self._queues.ids),
            self._consumer.name,
            lanes=extent.width,
            most_per_lane=extent.depth,
            rotation=rotation,
            lease_time=self._lease_time,
            tenant_id=self._queues.tenant_id,
            only=named,
            first_priority=priority,
        )

    async def _lease_free(
        self, connection: Connection, most: int, rooms: Mapping[int, int] | None
    ) -> list[LeasedRange]:
        """Attempts that were put back, for which there is a handler here."""
        ranges = await lanes.lease_free(
            connection,
            list(self._queues.ids if rooms is None else rooms),
            self._consumer.handler_names,
            self._consumer.name,
            most=most,
            lease_time=self._lease_time,
            tenant_id=self._queues.tenant_id,
            rooms=None if rooms is None else list(rooms.values()),
        )
        if len(ranges) >= most:
            self._free_from = -math.inf  # there are more
        return ranges

    def _take(self, read: Read, extent: _Extent | None = None, rooms: Mapping[int, int] | None = None) -> None:
        """Hand on what was read, but for what was lost meanwhile."""
        held = {each.lease_id for each in read.ranges if self._held_leases.find(each.lease_id) is not None}
        attempts = read.attempts
        if len(held) < len(read.ranges):
            attempts = [attempt for attempt in attempts if attempt.lease_id in held]
        if attempts:
            leases = self._held_leases.add(attempts, self._monotonic())
            if extent is not None:
                is_deep = max(lease.open for lease in leases) > extent.depth  # one more while it is being read
                self._is_cut = is_deep or len(leases) >= extent.width or _is_full(attempts, rooms)
            batch = Batch(self._pace, len(leases), is_cut=self._is_cut)
            for lease in leases:
                lease.done = batch.lease_done
            self._hand_over(attempts)
        for lease_id in held:
            if self._held_leases.end(lease_id) is not None:
                self._consumer.release(lease_id)

    def _hand_over(self, attempts: Sequence[Leased]) -> None:
        over = [attempt for attempt in attempts if attempt.is_over]
        for attempt in over:
            self._consumer.drop(attempt)
        self._consumer.take([attempt for attempt in attempts if not attempt.is_over] if over else attempts)

    def _give_up_unread(self) -> None:
        unread, self._reading.unread, self._unread_since = self._reading.unread, [], None
        if unread:
            logger.error("%d ranges could not be read for long: they come back when their leases run out", len(unread))
            self._held_leases.forget(each.lease_id for each in unread)


def _is_full(attempts: Sequence[Leased], rooms: Mapping[int, int] | None) -> bool:
    """Whether a queue gave as much as it was asked for."""
    if rooms is None:
        return False
    counts = Counter(queue_of(leased.lane_id) for leased in attempts)
    return any(count >= rooms.get(queue_id, count) for queue_id, count in counts.items())
