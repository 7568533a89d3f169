"""Keeps due timers back whose queue is full, or whose tenant has as many ready attempts as it may have.

The timers stay in the table. Here they are parked by queue, the oldest first, and nothing looks at them until a reading
of the queues shows room.

1. `admit`: of the timers that are about to fire, those of a queue without room are parked. While a queue has parked
   timers, the oldest of all of them fire: what falls due later does not overtake.
2. `step`: once a second, or more often while timers are parked, the queues are read. As many parked timers as there is
   room for go back among the due ones, where tenants take turns.
3. A partition parks so many timers. Others are forgotten, and reading the table passes over their queue, so that they
   hide no other queue's timers; so it does for a queue that is full for long. The table is read anew when what was
   parked of the queue has fired and there is room, and now and then before that.

Crash, or a lost partition: nothing is lost, because nothing is only here. A timer that was edited or moved since it was
parked is not fired: `PendingTimers` has another one in its place.
"""

import heapq
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count

from evertick.domain.backpressure import FullQueue, ReadyRoom, releases
from evertick.domain.ids import PARTITIONS, partition_of
from evertick.domain.schedule.instants import to_us
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.roles.scheduler.state import State
from evertick.store.engine import ready
from evertick.store.engine.lanes import queue_of

logger = logging.getLogger("evertick.scheduler")

READ_SECONDS = 1.0
PARKED_READ_SECONDS = 0.1
"""While timers are parked: a queue gets at most what it has room for between two readings."""
SHARE_OF_READING = 20
"""A reading that took a second is good for so many: reading must not become the load."""
PARKED_PER_PARTITION = 1_000
"""Less than what is left of a partition when it is read on, so that parked timers do not keep it from that."""
PASS_OVER_SECONDS = 10.0
"""A queue that has been full for so long is passed over too: its first timers would hide those that polls look for."""
REREAD_SECONDS = 5.0
"""The shortest time between two readings of the whole table for queues that were passed over …"""
LATEST_REREAD_SECONDS = 60.0
"""… and the longest, while such a queue has room: timers that are in the table only may be older than parked ones."""
QUIET_SECONDS = 30.0
"""A queue that was not full for so long is logged as such: it may be full and not full every second."""


class _Parked:
    """The parked timers of one queue, by due time."""

    __slots__ = ("began", "heap", "tenant_id")

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id
        self.heap: list[tuple[int, int, PendingTimer]] = []
        self.began = time.monotonic()


class Backpressure:
    """`unread`: the table has to be read anew. `freed`: parked timers may go on."""

    def __init__(self, state: State, *, unread: Callable[[], None], freed: Callable[[], None]) -> None:
        self._state = state
        self._unread = unread
        self._freed = freed
        self._room = ReadyRoom()
        self._parked: dict[int, _Parked] = {}
        self._parked_in = [0] * PARTITIONS
        self._numbers = count()
        self._going: dict[int, int] = {}
        self._short: dict[int, int] = {}
        self._added: Counter[int] = Counter()
        self._reread_at = 0.0
        self._full_at: dict[int, float] = {}  # monotonic: when a queue that was logged as full was last full
        self._names: dict[int, str] = {}
        self.is_read = False

    @property
    def parked(self) -> int:
        """How many timers are parked. Some of them may have been replaced since."""
        return sum(self._parked_in)

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
        self._pass_over(began)
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
        queues = self._parked.items()
        full = [FullQueue(queue_id, each.tenant_id, each.heap[0][0], len(each.heap)) for queue_id, each in queues]
        self._going = releases(full, self._room)

    def clear(self) -> None:
        """Forget all that is parked: the whole table is read anew."""
        self._parked.clear()
        self._parked_in = [0] * PARTITIONS
        self._going.clear()
        self._state.passed_over.clear()

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
        jobs = {entry.timer.job_id for entry in admitted}
        for entry in entries:
            if entry.timer.queue_id in short:
                self._park(entry)
        self._short = {queue_id: tenant_of[queue_id] for queue_id in short}
        for queue_id in short:
            admitted += self._pop(queue_id, granted[queue_id], jobs)
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
        queue_id, partition = entry.timer.queue_id, partition_of(entry.timer.job_id)
        if self._parked_in[partition] >= PARKED_PER_PARTITION:
            self._state.pending.forget(entry)
            self._state.passed_over[queue_id] = entry.timer.tenant_id
            return
        parked = self._parked.get(queue_id)
        if parked is None:
            parked = self._parked[queue_id] = _Parked(entry.timer.tenant_id)
        heapq.heappush(parked.heap, (to_us(entry.timer.due_at), next(self._numbers), entry))
        self._parked_in[partition] += 1

    def _pop(self, queue_id: int, most: int, jobs: set[int] | None = None) -> list[PendingTimer]:
        """The oldest parked timers of a queue; with `jobs`, one of each job, and none of these."""
        parked = self._parked.get(queue_id)
        if parked is None:
            return []
        popped: list[PendingTimer] = []
        again: list[tuple[int, int, PendingTimer]] = []
        while parked.heap and len(popped) < most and len(again) <= most:
            item = heapq.heappop(parked.heap)
            entry = item[2]
            if jobs is not None and entry.timer.job_id in jobs:
                again.append(item)
                continue
            self._parked_in[partition_of(entry.timer.job_id)] -= 1
            if self._state.pending.is_current(entry):
                popped.append(entry)
                if jobs is not None:
                    jobs.add(entry.timer.job_id)
        for item in again:
            heapq.heappush(parked.heap, item)
        if not parked.heap:
            del self._parked[queue_id]
        return popped

    def _oldest(self, queue_id: int) -> float:
        parked = self._parked.get(queue_id)
        return math.inf if parked is None else parked.heap[0][0]

    def _pass_over(self, now: float) -> None:
        """Pass over queues that have been full for long, and read anew for those that have room again."""
        passed_over = self._state.passed_over
        for queue_id, parked in self._parked.items():
            if now - parked.began > PASS_OVER_SECONDS:
                passed_over[queue_id] = parked.tenant_id
        is_late = now > self._reread_at + LATEST_REREAD_SECONDS
        back = [
            queue_id
            for queue_id, tenant_id in passed_over.items()
            if (is_late or queue_id not in self._parked)
            and min(self._room.of_queue(queue_id), self._room.of_tenant(tenant_id)) > 0
        ]
        if back and now > self._reread_at + REREAD_SECONDS:
            self._reread_at = now
            for queue_id in back:
                del passed_over[queue_id]
                if queue_id in self._parked:
                    self._parked[queue_id].began = now
            self._unread()

    def _log(self, now: float) -> None:
        """One line when a queue becomes full, and one when it has not been for a while."""
        for queue_id in self._parked.keys() | self._state.passed_over.keys():
            if queue_id not in self._full_at:
                name = self._names.get(queue_id, "")
                logger.warning("queue %r (%d) is full: its timers wait until workers lease from it", name, queue_id)
            self._full_at[queue_id] = now
        for queue_id in [each for each, full_at in self._full_at.items() if now - full_at > QUIET_SECONDS]:
            del self._full_at[queue_id]
            logger.info("queue %d has room again", queue_id)
