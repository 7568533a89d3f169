"""Keeps due timers back whose queue is full, or whose tenant has as many ready attempts as it may have.

The timers stay in the table. Here they are parked by queue and priority, the oldest first, and nothing looks at them
until a reading of the queues shows room. Those of a catch-up are parked apart, and are kept back while others of their
queue wait for workers: an attempt that is on time does not come after many of a catch-up.

1. `admit`: of the timers that are about to fire, those of a queue without room are parked. While a queue has parked
   timers, the oldest of each priority fire: what falls due later does not overtake. Priorities share the room as they
   share firing.
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

from evertick.domain.backpressure import FullQueue, ParkedLine, ReadyRoom, releases
from evertick.domain.fairness import PRIORITY_SHARES, PriorityShares
from evertick.domain.schedule.instants import to_us
from evertick.roles.scheduler.catching_up import CatchUp
from evertick.roles.scheduler.pending_timers import PendingTimer, Together
from evertick.roles.scheduler.state import State
from evertick.store.database import is_transient, reason_of
from evertick.store.engine import ready
from evertick.store.engine.lanes import queue_of

logger = logging.getLogger("evertick.scheduler")

READ_SECONDS = 1.0
PARKED_READ_SECONDS = 0.1
"""While timers are parked: a queue gets at most what it has room for between two readings."""
SHARE_OF_READING = 20
"""A reading that took a second is good for so many: reading must not become the load."""
MAX_PAUSE = 5.0
"""However long a reading took: timers that are parked wait for the next one."""
STALE_SECONDS = 5.0
"""How often parked timers are searched for those that were replaced or deleted since."""
MIN_STALE = 1_000
"""More of them than this are searched for at once."""
QUIET_SECONDS = 30.0
"""A queue that was not full for so long is logged as such: it may be full and not full every second."""


class _Parked:
    """The parked timers of one line, which has some: in each priority by due time."""

    __slots__ = ("heaps", "shares", "tenant_id")

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id
        self.shares = PriorityShares()
        self.heaps: list[list[tuple[int, int, PendingTimer]]] = [[] for _ in PRIORITY_SHARES]

    def __len__(self) -> int:
        return sum(map(len, self.heaps))

    @property
    def oldest_us(self) -> int:
        return min(heap[0][0] for heap in self.heaps if heap)

    def keep(self, is_kept: Callable[[PendingTimer], bool]) -> None:
        for priority, heap in enumerate(self.heaps):
            self.heaps[priority] = [item for item in heap if is_kept(item[2])]
            heapq.heapify(self.heaps[priority])


class Backpressure:
    """`freed`: parked timers may go on. `short`: a queue had no room, and may have got some since the last reading."""

    def __init__(
        self, state: State, *, freed: Callable[[], None], short: Callable[[], None], catch_up: CatchUp
    ) -> None:
        self._state = state
        self._freed = freed
        self._notify_short = short
        self._catch_up = catch_up
        self._room = ReadyRoom()
        self._parked: dict[ParkedLine, _Parked] = {}
        self._numbers = count()
        self._going: dict[ParkedLine, int] = {}
        self._short: dict[ParkedLine, int] = {}
        self._added: Counter[int] = Counter()
        self._full_at: dict[int, float] = {}  # monotonic: when a queue that was logged as full was last full
        self._names: dict[int, str] = {}
        self._read_at = 0.0  # monotonic: when the queues may be read again
        self._stale_at = 0.0
        self.is_read = False

    @property
    def parked(self) -> int:
        """How many timers are parked. Some of them may have been replaced since."""
        return sum(map(len, self._parked.values()))

    def is_full(self, queue_id: int) -> bool:
        """Whether timers of a queue are parked."""
        return ParkedLine(queue_id) in self._parked or ParkedLine(queue_id, is_catch_up=True) in self._parked

    @property
    def is_going(self) -> bool:
        """Whether parked timers may go on."""
        return bool(self._going)

    async def step_when_due(self) -> float:
        """As `step`, but no more often than while timers are parked, however often it is called."""
        wait = self._read_at - time.monotonic()
        return wait if wait > 0 else await self.step()

    async def step(self) -> float:
        """Read the queues; returns the seconds until the next reading."""
        began = time.monotonic()
        await self.read()
        took = time.monotonic() - began
        self._log(began)
        if began >= self._stale_at:
            self._stale_at = began + STALE_SECONDS
            self.drop_stale()
        if self._going:
            self._freed()
        pause = min(SHARE_OF_READING * took, MAX_PAUSE)
        self._read_at = began + took + max(PARKED_READ_SECONDS, pause)
        return max(PARKED_READ_SECONDS if self._parked else READ_SECONDS, pause)

    async def read_first(self) -> None:
        """Read how full the queues are before anything fires.

        If that fails all have the default limits: without a reading nothing would fire, for as long as it fails.
        """
        self.is_read = True
        try:
            await self.read()
        except Exception as error:
            if not (is_transient(error) or isinstance(error, TimeoutError)):
                raise
            logger.warning("could not read how full queues are (%s): their limits count later", reason_of(error))

    async def read(self) -> None:
        """Read how full the queues are, and decide how many parked timers go on."""
        catching_up = self._room.begin_reading(line.queue_id for line in self._parked if line.is_catch_up)
        depths = await ready.depths(self._state.pool)
        in_lanes = await ready.in_lanes(self._state.pool, catching_up) if catching_up else {}
        self._room.held = len(self._state.ownership.epochs)
        self._room.end_reading(depths, in_lanes)
        self._names = {depth.queue_id: depth.name for depth in depths}
        self.is_read = True
        if self.parked > 2 * len(self._state.pending) + MIN_STALE:
            self.drop_stale()
        lines = self._parked.items()
        full = [FullQueue(line, each.tenant_id, each.oldest_us, len(each)) for line, each in lines]
        self._going = releases(full, self._room)

    def clear(self) -> None:
        """Forget all that is parked: the whole table is read anew."""
        self._parked.clear()
        self._going.clear()

    def drop_stale(self) -> None:
        """Drop what was parked and is not pending any more: replaced, or of a lost partition."""
        for line, parked in list(self._parked.items()):
            parked.keep(self._state.pending.is_current)
            if not parked:
                del self._parked[line]
                self._going.pop(line, None)

    def release(self, most: int) -> None:
        """Let parked timers go on that the last reading found room for, up to so many: an equal part of each line."""
        while self._going and most > 0:
            part = max(1, most // len(self._going))
            for line, going in list(self._going.items())[:most]:
                released = self._pop(line, min(going, part, most))
                for entry in released:
                    self._state.pending.retry_at(entry, to_us(entry.timer.due_at))
                most -= len(released)
                del self._going[line]
                if line in self._parked and going > len(released):
                    self._going[line] = going - len(released)  # behind the others

    def admit(self, entries: list[PendingTimer]) -> list[PendingTimer]:
        """The timers that may fire: these, or older ones of their lines that are parked. The others are parked."""
        self._room.held = len(self._state.ownership.epochs)
        others: dict[int, list[PendingTimer]] = {}
        left: dict[int, list[PendingTimer]] = {}
        for entry in entries:
            by_queue = left if self._catch_up.is_limited(entry.timer) else others
            by_queue.setdefault(entry.timer.queue_id, []).append(entry)
        by_line = {ParkedLine(queue_id): waiting for queue_id, waiting in others.items()}
        by_line |= {ParkedLine(queue_id, is_catch_up=True): waiting for queue_id, waiting in left.items()}
        # What is not catch-up first, then the oldest: queues of one tenant share its room.
        order = sorted(by_line, key=self._precedence) if len(by_line) > 1 and self._parked else list(by_line)
        granted: dict[ParkedLine, int] = {}
        for line in order:
            tenant_id, wanted = by_line[line][0].timer.tenant_id, len(by_line[line])
            granted[line] = self._room.take(line, tenant_id, wanted)
        short = {line for line in order if line in self._parked or granted[line] < len(by_line[line])}
        if not short:
            return entries
        admitted = [entry for line in order if line not in short for entry in by_line[line]]
        together = Together()
        for entry in admitted:
            together.fits(entry.timer)
        for line in short:
            for entry in by_line[line]:
                self._park(line, entry)
        self._short = {line: by_line[line][0].timer.tenant_id for line in short}
        for line in short:
            admitted += self._pop(line, granted[line], together)
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
        for line, tenant_id in self._short.items():
            room = self._room.of_line(line, tenant_id)
            if room and line in self._parked:
                self._going[line] = room
        self._short = {}

    def _park(self, line: ParkedLine, entry: PendingTimer) -> None:
        parked = self._parked.get(line)
        if parked is None:
            parked = self._parked[line] = _Parked(entry.timer.tenant_id)
            self._notify_short()
        heapq.heappush(parked.heaps[entry.timer.priority], (to_us(entry.timer.due_at), next(self._numbers), entry))

    def _pop(self, line: ParkedLine, most: int, together: Together | None = None) -> list[PendingTimer]:
        """The next parked timers of a line, of each priority the oldest, in shares.

        With `together`, those that one statement may fire beside these.
        """
        parked = self._parked.get(line)
        if parked is None:
            return []
        popped: list[PendingTimer] = []
        again: list[tuple[int, int, PendingTimer]] = []
        while parked and len(popped) < most and len(again) <= most:
            for priority, places in parked.shares.runs([len(heap) for heap in parked.heaps], most - len(popped)):
                for _ in range(places):
                    item = heapq.heappop(parked.heaps[priority])
                    entry = item[2]
                    if not self._state.pending.is_current(entry):
                        continue
                    if together is None or together.fits(entry.timer):
                        popped.append(entry)
                    else:
                        again.append(item)
        for item in again:
            heapq.heappush(parked.heaps[item[2].timer.priority], item)
        if not parked:
            del self._parked[line]
        return popped

    def _precedence(self, line: ParkedLine) -> tuple[bool, float]:
        parked = self._parked.get(line)
        return line.is_catch_up, math.inf if parked is None else parked.oldest_us

    def _log(self, now: float) -> None:
        """One line when a queue becomes full, and one when it has not been for a while."""
        for queue_id in [line.queue_id for line in self._parked if not line.is_catch_up]:
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
