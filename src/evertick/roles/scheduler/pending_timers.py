"""The timers that this node has loaded and not fired: those to come in the wheel, due ones in fair order.

A copy of a part of the timers table, and only a hint: the next poll finds what is missing here, and the statement that
fires refuses what is stale.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from evertick.domain.fairness import DueWork
from evertick.domain.ids import PARTITIONS, partition_of
from evertick.domain.schedule.instants import SECOND_US, to_us
from evertick.domain.wheel import Wheel
from evertick.store.engine.timers import Timer, TimerKey

LATE_US = 10 * SECOND_US
"""What is later than this when it leaves the wheel is work of an outage, and waits behind what is on time."""


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
        self._is_due: set[int] = set()
        self._timers: dict[int, Timer] = {}
        self._numbers: dict[TimerKey, int] = {}
        self._last_number = 0
        self._counts = [0] * PARTITIONS
        self._in_flight: list[PendingTimer] = []
        self._taken: set[Timer] | None = None  # while the table is read: what was in flight meanwhile

    def __len__(self) -> int:
        return len(self._timers)

    @property
    def due(self) -> int:
        """How many wait to be taken."""
        return len(self._due)

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
        on_time: dict[int, list[int]] = {}
        late: dict[int, list[int]] = {}
        for due_us, key in self._wheel.advance(now_us, most):
            share = late if now_us - due_us > LATE_US else on_time
            share.setdefault(self._timers[key].tenant_id, []).append(key)
            self._is_due.add(key)
        for tenant_id, keys in on_time.items():
            self._due.on_time.add(tenant_id, keys, weights.get(tenant_id, 1))
        for tenant_id, keys in late.items():
            self._due.catch_up.add(tenant_id, keys, weights.get(tenant_id, 1))

    def take(self, most: int, now_us: int) -> list[PendingTimer]:
        """The next due timers in fair order, at most one of each job.

        They stay here until `move` or `forget`, and are in flight until `release`.
        """
        taken: dict[int, PendingTimer] = {}
        for key in self._due.take(most):
            self._is_due.discard(key)
            timer = self._timers.get(key)
            if timer is None:
                continue
            due_us = to_us(timer.due_at)
            # Moved meanwhile, or its job has another in this round: firing them one by one lets overlap see both.
            if due_us > now_us or timer.job_id in taken:
                self._wheel.add(key, due_us)
            else:
                taken[timer.job_id] = PendingTimer(key, timer)
        return self.put_in_flight(list(taken.values()))

    def put_in_flight(self, entries: list[PendingTimer]) -> list[PendingTimer]:
        """These are in flight instead of what was taken."""
        self._in_flight = entries
        if self._taken is not None:
            self._taken |= {timer for _, timer in entries}
        return entries

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


def _identity(timer: Timer) -> TimerKey:
    return timer.job_id, timer.kind, timer.fire_at
