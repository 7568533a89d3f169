"""The timers that this node knows of and has not fired: those to come in the wheel, due ones in fair order.

A copy of a part of the timers table, and only a hint: what is missing here is found by the next poll, and what is stale
is refused by the statement that fires.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from evertick.domain.fairness import DueWork
from evertick.domain.ids import PARTITIONS, partition_of
from evertick.domain.schedule.instants import SECOND_US, to_us
from evertick.domain.wheel import Wheel
from evertick.store.timers import Timer, TimerKey

LATE_US = 10 * SECOND_US
"""What is later than this when it leaves the wheel is work of an outage, and waits behind what is on time."""


class Entry(NamedTuple):
    """A due timer, and the number by which the agenda knows it."""

    key: int
    timer: Timer


class Agenda:
    """Knows each timer once: by its job's id if it is a tick's, else by a negative number of its own.

    The table is read while timers are fired. So an answer may show a timer as it was before it fired: about what was in
    hand at any time of a reading, the firing knows better. And it may show one as it is since: about what was learned
    while a timer was in hand, the reading does.
    """

    def __init__(self, now_us: int) -> None:
        self._wheel = Wheel(now_us)
        self._due: DueWork[int] = DueWork()
        self._is_due: set[int] = set()
        self._timers: dict[int, Timer] = {}
        self._numbers: dict[TimerKey, int] = {}
        self._last_number = 0
        self._counts = [0] * PARTITIONS
        self._in_hand: list[Entry] = []
        self._taken: set[Timer] | None = None  # while the table is read: what was in hand meanwhile

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
        """Around a look at the table, one at a time, up to the `add` of what it found."""
        self._taken = {timer for _, timer in self._in_hand}
        try:
            yield
        finally:
            self._taken = None

    def add(self, timers: Iterable[Timer]) -> set[int]:
        """Learn of timers. One that is known already is replaced: a job's tick may have moved.

        Returns the partitions of those that were news.
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
        """Move what is due by now, or so much of it, from the wheel to those who wait for their turn."""
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

    def take(self, most: int, now_us: int) -> list[Entry]:
        """The next due timers in fair order, at most one of each job.

        They stay known until `settle` or `forget`, and are in hand until `let_go`.
        """
        taken: dict[int, Entry] = {}
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
                taken[timer.job_id] = Entry(key, timer)
        self._in_hand = list(taken.values())
        if self._taken is not None:
            self._taken |= {timer for _, timer in self._in_hand}
        return self._in_hand

    def let_go(self) -> None:
        """What was taken has been fired, or not: the table says by now what became of it."""
        self._in_hand = []

    def stands(self, entry: Entry) -> bool:
        """Whether nothing else was learned of the timer since it was taken."""
        return self._timers.get(entry.key) is entry.timer

    def settle(self, entry: Entry, timer: Timer) -> None:
        """What was in hand has moved on, and is due again soon enough to stay."""
        if self.stands(entry):
            self._timers[entry.key] = timer
            self._wheel.add(entry.key, to_us(timer.due_at))

    def again(self, entry: Entry, at_us: int) -> None:
        """What was taken is as it was: try it again at this time, unless its partition is gone."""
        if self.stands(entry):
            self._wheel.add(entry.key, at_us)

    def forget(self, entry: Entry) -> None:
        """What was in hand is gone, or not ours to fire."""
        if self.stands(entry):
            self._drop(entry.key)

    def keep_only(self, partitions: Iterable[int]) -> None:
        """Forget the timers of all other partitions."""
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
