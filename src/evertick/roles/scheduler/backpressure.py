"""Keeps due timers back whose queue is full, or whose tenant has as many ready attempts as it may have.

The timers stay in the table. Here they are parked by queue, the oldest first, and nothing looks at them until a reading
of the queues shows room.

1. `admit`: of the timers that are about to fire, those of a queue without room are parked. While a queue has parked
   timers, the oldest of all of them fire: what falls due later does not overtake.
2. `step`: once a second, or more often while timers are parked, the queues are read. As many parked timers as there is
   room for go back among the due ones, where tenants take turns.

Parked timers stay among the pending ones, so the limits of loading hold for them: while those of a stream are parked,
no more of it is read (`backlog`), and other streams are.

Crash, or a lost partition: nothing is lost, because nothing is only here. A timer that was edited or moved since it was
parked is not fired: `PendingTimers` has another one in its place, or none.
"""

import heapq
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count

from evertick.domain.backpressure import FullQueue, ReadyRoom, releases
from evertick.domain.schedule.instants import to_us
from evertick.roles.scheduler.pending_timers import PendingTimer, Together
from evertick.roles.scheduler.state import State
from evertick.store.engine import ready
from evertick.store.engine.lanes import queue_of

logger = logging.getLogger("evertick.scheduler")

READ_SECONDS = 1.0
PARKED_READ_SECONDS = 0.1
"""While timers are parked: a queue gets at most what it has room for between two readings."""
SHARE_OF_READING = 20
"""A reading that took a second is good for so many: reading must not become the load."""
MIN_STALE = 1_000
"""Parked timers that were replaced since, at least, before all are searched for them."""
QUIET_SECONDS = 30.0
"""A queue that was not full for so long is logged as such: it may be full and not full every second."""


class _Parked:
    """The parked timers of one queue, by due time."""

    __slots__ = ("heap", "tenant_id")

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id
        self.heap: list[tuple[int, int, PendingTimer]] = []


class Backpressure:
    """`freed`: parked timers may go on."""

    def __init__(self, state: State, *, freed: Callable[[], None]) -> None:
        self._state = state
        self._freed = freed
        self._room = ReadyRoom()
        self._parked: dict[int, _Parked] = {}
        self._numbers = count()
        self._going: dict[int, int] = {}
        self._short: dict[int, int] = {}
        self._added: Counter[int] = Counter()
        self._full_at: dict[int, float] = {}  # monotonic: when a queue that was logged as full was last full
        self._names: dict[int, str] = {}
        self.is_read = False

    @property
    def parked(self) -> int:
        """How many timers are parked. Some of them may have been replaced since."""
        return sum(len(each.heap) for each in self._parked.values())

    @property
    def is_going(self) -> bool:
        """Whether parked timers may go on."""
        return bool(self._going)

    async def step(self) -> float:
        """Read the queues; returns the seconds until the next reading."""
        began = time.monotonic()
        await self.read()
        took = time.monotonic() - began
        self._log(began)
        if self._going:
            self._freed()
        return max(PARKED_READ_SECONDS if self._parked else READ_SECONDS, SHARE_OF_READING * took)

    async def read(self) -> None:
        """Read how full the queues are, and decide how many parked timers go on."""
        self._room.begin_reading()
        depths = await ready.depths(self._state.pool)
        self._room.end_reading(depths)
        self._names = {depth.queue_id: depth.name for depth in depths}
        self.is_read = True
        self._room.held = len(self._state.ownership.epochs)
        if self.parked > 2 * len(self._state.pending) + MIN_STALE:
            self.drop_stale()
        queues = self._parked.items()
        full = [FullQueue(queue_id, each.tenant_id, each.heap[0][0], len(each.heap)) for queue_id, each in queues]
        self._going = releases(full, self._room)

    def clear(self) -> None:
        """Forget all that is parked: the whole table is read anew."""
        self._parked.clear()
        self._going.clear()

    def drop_stale(self) -> None:
        """Drop what was parked and is not pending any more: replaced, or of a lost partition."""
        for queue_id, parked in list(self._parked.items()):
            parked.heap = [item for item in parked.heap if self._state.pending.is_current(item[2])]
            heapq.heapify(parked.heap)
            if not parked.heap:
                del self._parked[queue_id]
                self._going.pop(queue_id, None)

    def release(self, most: int) -> None:
        """Let parked timers go on that the last reading found room for, up to so many."""
        while self._going and most > 0:
            queue_id, going = self._going.popitem()
            released = self._pop(queue_id, min(going, most))
            for entry in released:
                self._state.pending.retry_at(entry, to_us(entry.timer.due_at))
            most -= len(released)
            if queue_id in self._parked and going > len(released):
                self._going[queue_id] = going - len(released)

    def admit(self, entries: list[PendingTimer]) -> list[PendingTimer]:
        """The timers that may fire: these, or older ones of their queues that are parked. The others are parked."""
        self._room.held = len(self._state.ownership.epochs)
        wanted: Counter[int] = Counter()
        tenant_of: dict[int, int] = {}
        for _, timer in entries:
            wanted[timer.queue_id] += 1
            tenant_of[timer.queue_id] = timer.tenant_id
        order = list(wanted)
        if len(order) > 1 and self._parked:  # the oldest first: queues of one tenant share its room
            order.sort(key=self._oldest)
        granted = {queue_id: self._room.take(queue_id, tenant_of[queue_id], wanted[queue_id]) for queue_id in order}
        short = {each for each in order if each in self._parked or granted[each] < wanted[each]}
        if not short:
            return entries
        admitted = [entry for entry in entries if entry.timer.queue_id not in short]
        together = Together()
        for entry in admitted:
            together.fits(entry.timer)
        for entry in entries:
            if entry.timer.queue_id in short:
                self._park(entry)
        self._short = {queue_id: tenant_of[queue_id] for queue_id in short}
        for queue_id in short:
            admitted += self._pop(queue_id, granted[queue_id], together)
        return admitted

    def added(self, lane_ids: Iterable[int], lane_runs: Iterable[int]) -> None:
        """So many attempts were added to lanes, of what was admitted."""
        for lane_id, runs in zip(lane_ids, lane_runs, strict=True):
            self._added[queue_of(lane_id)] += runs

    def settle(self, *, is_known: bool) -> None:
        """What was admitted has been fired, or was not. If that is not known, all of it counts as added."""
        self._room.settle(self._added if is_known else None)
        self._added.clear()
        # Timers that left only gaps used no room.
        for queue_id, tenant_id in self._short.items():
            room = min(self._room.of_queue(queue_id), self._room.of_tenant(tenant_id))
            if room and queue_id in self._parked:
                self._going[queue_id] = room
        self._short = {}

    def _park(self, entry: PendingTimer) -> None:
        queue_id = entry.timer.queue_id
        parked = self._parked.get(queue_id)
        if parked is None:
            parked = self._parked[queue_id] = _Parked(entry.timer.tenant_id)
        heapq.heappush(parked.heap, (to_us(entry.timer.due_at), next(self._numbers), entry))

    def _pop(self, queue_id: int, most: int, together: Together | None = None) -> list[PendingTimer]:
        """The oldest parked timers of a queue; with `together`, those that one statement may fire beside these."""
        parked = self._parked.get(queue_id)
        if parked is None:
            return []
        popped: list[PendingTimer] = []
        again: list[tuple[int, int, PendingTimer]] = []
        while parked.heap and len(popped) < most and len(again) <= most:
            item = heapq.heappop(parked.heap)
            entry = item[2]
            if not self._state.pending.is_current(entry):
                continue
            if together is None or together.fits(entry.timer):
                popped.append(entry)
            else:
                again.append(item)
        for item in again:
            heapq.heappush(parked.heap, item)
        if not parked.heap:
            del self._parked[queue_id]
        return popped

    def _oldest(self, queue_id: int) -> float:
        parked = self._parked.get(queue_id)
        return math.inf if parked is None else parked.heap[0][0]

    def _log(self, now: float) -> None:
        """One line when a queue becomes full, and one when it has not been for a while."""
        for queue_id in self._parked:
            if queue_id not in self._full_at:
                name = self._names.get(queue_id, "")
                logger.warning(
                    "queue %r (%d) is full: its timers wait until workers lease from it",
                    name,
                    queue_id,
                    extra={"queue": name},
                )
            self._full_at[queue_id] = now
        for queue_id in [each for each, full_at in self._full_at.items() if now - full_at > QUIET_SECONDS]:
            del self._full_at[queue_id]
            logger.info("queue %d has room again", queue_id)
