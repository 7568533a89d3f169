"""The timers that this node has loaded and not fired: those to come in the wheel, due ones in fair order.

A copy of a part of the timers table, and only a hint: the next poll finds what is missing here, and the statement that
fires refuses what is stale.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

from evertick.domain.fairness import DueWork
from evertick.domain.ids import PARTITIONS, partition_of
from evertick.domain.schedule.instants import SECOND_US, to_us
from evertick.domain.wheel import Wheel
from evertick.store.engine.timers import Timer, TimerKey

LATE_US = 10 * SECOND_US
"""What is later than this when it leaves the wheel waits behind what is on time."""
INDEPENDENT = frozenset({"manual", "replay", "retry"})
"""Kinds of timers that run whatever else of their job is open, so that one statement may fire any number of them."""


class PendingTimer(NamedTuple):
    """A timer, and its key in `PendingTimers`."""

    key: int
    timer: Timer


class PendingTimers:
    """Holds each timer once: by its job's id if it is a tick's, else by a negative number of its own.

    The table is read while timers are fired. An answer may show a timer as it was before it fired: `add` ignores timers
    that were in flight at any time of the reading. And an answer may show a timer as it is since: what was added while
    the timer was in flight wins over the result of its firing.
    """

    def __init__(self, now_us: int) -> None:
        self._wheel = Wheel(now_us)
        self._due: DueWork[int] = DueWork()
        self._displaced: list[int] = []
        self._is_due: set[int] = set()
        self._timers: dict[int, Timer] = {}
        self._numbers: dict[TimerKey, int] = {}
        self._last_number = 0
        self._counts = [0] * PARTITIONS
        self._in_flight: list[PendingTimer] = []
        self._taken: set[Timer] | None = None  # while the table is read: what was in flight meanwhile

    def __len__(self) -> int:
        return len(self._timers)

    def __iter__(self) -> Iterator[Timer]:
        return iter(self._timers.values())

    @property
    def due(self) -> int:
        """How many wait to be taken."""
        return len(self._due) + len(self._displaced)

    def count(self, partition: int) -> int:
        return self._counts[partition]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Wrap a reading of the table, one at a time, up to the `add` of what it found."""
        self._taken = {timer for _, timer in self._in_flight}
        try:
            yield
        finally:
            self._taken = None

    def add(self, timers: Iterable[Timer]) -> set[int]:
        """Add timers. One that is here already is replaced: a job's tick may have moved.

        Returns the partitions of those that were new or changed.
        """
        entries: list[tuple[int, int]] = []
        news: set[int] = set()
        taken = self._taken or ()
        for timer in timers:
            if taken and timer in taken:
                continue
            key = self._key(timer)
            known = self._timers.get(key)
            if known == timer:
                continue
            news.add(partition_of(timer.job_id))
            if known is None:
                self._counts[partition_of(timer.job_id)] += 1
            self._timers[key] = timer
            if key not in self._is_due:
                entries.append((key, to_us(timer.due_at)))
        self._wheel.add_many(entries)
        return news

    def collect(self, now_us: int, weights: Mapping[int, int], most: int | None = None) -> None:
        """Move what is due by now, or so much of it, from the wheel to the due timers in fair order."""
        on_time: dict[tuple[int, int], list[int]] = {}
        late: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for entry in self._wheel.advance(now_us, most):
            due_us, key = entry
            timer = self._timers[key]
            stream = timer.tenant_id, timer.priority
            if now_us - due_us > LATE_US:
                late.setdefault(stream, []).append(entry)
            else:
                on_time.setdefault(stream, []).append(key)
            self._is_due.add(key)
        for (tenant_id, priority), keys in on_time.items():
            self._due.on_time.add(tenant_id, keys, weights.get(tenant_id, 1), priority)
        for (tenant_id, priority), entries in late.items():
            self._due.late.add(tenant_id, entries, weights.get(tenant_id, 1), priority)

    def take(self, most: int, now_us: int) -> list[PendingTimer]:
        """The next due timers in fair order: of each job one, or any number that are independent of each other.

        They stay here until `move` or `forget`, and are in flight until `release`.
        """
        taken: list[PendingTimer] = []
        runs: dict[int, set[datetime] | None] = {}  # of each job; None: one that has to be alone
        first, self._displaced = self._displaced[:most], self._displaced[most:]
        for key in [*first, *self._due.take(most - len(first))]:
            timer = self._timers.get(key)
            if timer is None or to_us(timer.due_at) > now_us:  # dropped or moved meanwhile
                self._is_due.discard(key)
                if timer is not None:
                    self._wheel.add(key, to_us(timer.due_at))
            elif _fits(timer, runs):
                self._is_due.discard(key)
                taken.append(PendingTimer(key, timer))
            else:
                # One by one, so that overlap sees both. First in the next round: new ones must not keep it out.
                self._displaced.append(key)
        self._in_flight = taken
        if self._taken is not None:
            self._taken |= {timer for _, timer in self._in_flight}
        return self._in_flight

    def release(self) -> None:
        """What was taken is not in flight any more: the table shows the result."""
        self._in_flight = []

    def is_current(self, entry: PendingTimer) -> bool:
        """Whether the timer was not replaced since it was taken."""
        return self._timers.get(entry.key) is entry.timer

    def move(self, entry: PendingTimer, timer: Timer) -> None:
        """Replace a fired timer by where it moved, which is within the horizon."""
        if self.is_current(entry):
            self._timers[entry.key] = timer
            self._wheel.add(entry.key, to_us(timer.due_at))

    def retry_at(self, entry: PendingTimer, at_us: int) -> None:
        """Let a timer that did not fire be due again at this time, unless it was replaced or its partition is lost."""
        if self.is_current(entry):
            self._wheel.add(entry.key, at_us)

    def forget(self, entry: PendingTimer) -> None:
        """Drop a timer that is gone, or of a lost partition."""
        if self.is_current(entry):
            self._drop(entry.key)

    def keep_only(self, partitions: Iterable[int]) -> None:
        """Drop the timers of all other partitions."""
        kept = set(partitions)
        for key in [key for key, timer in self._timers.items() if partition_of(timer.job_id) not in kept]:
            self._drop(key)

    def next_due_us(self) -> int | None:
        """When to collect next."""
        return self._wheel.next_due()

    def _drop(self, key: int) -> None:
        timer = self._timers.pop(key)
        self._wheel.cancel(key)
        self._counts[partition_of(timer.job_id)] -= 1
        if key < 0:
            del self._numbers[_identity(timer)]

    def _key(self, timer: Timer) -> int:
        if timer.kind == "tick":
            return timer.job_id
        identity = _identity(timer)
        if identity not in self._numbers:
            self._last_number -= 1
            self._numbers[identity] = self._last_number
        return self._numbers[identity]


def _fits(timer: Timer, runs: dict[int, set[datetime] | None]) -> bool:
    """Whether a timer may fire beside those of its job that were taken; if so, it counts as taken."""
    if timer.kind not in INDEPENDENT:
        if timer.job_id in runs:
            return False
        runs[timer.job_id] = None
        return True
    fire_ats = runs.setdefault(timer.job_id, set())
    if fire_ats is None or timer.fire_at in fire_ats:
        return False
    fire_ats.add(timer.fire_at)
    return True


def _identity(timer: Timer) -> TimerKey:
    return timer.job_id, timer.kind, timer.fire_at
