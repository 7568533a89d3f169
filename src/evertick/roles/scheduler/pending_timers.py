"""The timers that this node has loaded and not fired: those to come in the wheel, due ones in fair order.

A copy of a part of the timers table, and only a hint: the next poll finds what is missing here, and the statement that
fires refuses what is stale.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

from evertick.domain.fairness import DueWork
from evertick.domain.ids import PARTITIONS, partition_of
from evertick.domain.schedule.instants import SECOND_US, to_us
from evertick.domain.wheel import Due, Wheel
from evertick.store.engine.timers import FirstOfStream, Stream, Timer, TimerKey

LATE_US = 10 * SECOND_US
"""What is later than this when it leaves the wheel waits behind what is on time."""
INDEPENDENT = frozenset({"manual", "replay", "retry"})
"""Kinds of timers that run whatever else of their job is open, so that one statement may fire any number of them."""


_NO_OUTAGE = (0,) * PARTITIONS


class PendingTimer(NamedTuple):
    """A timer, and its key in `PendingTimers`."""

    key: int
    timer: Timer


class Load:
    """How many timers of a partition's backlog are in memory, and of how many tenants.

    `low`: of which streams more is to be read.
    """

    __slots__ = ("count", "low", "tenants")

    def __init__(self, low: "set[StreamShare]") -> None:
        self.count = 0
        self.tenants = 0
        self.low = low


class TenantLoad:
    """How many of them are one tenant's."""

    __slots__ = ("count", "partition")

    def __init__(self, partition: Load) -> None:
        self.count = 0
        self.partition = partition

    def add(self, timers: int) -> None:
        had_any = self.count > 0
        self.count += timers
        self.partition.count += timers
        self.partition.tenants += (self.count > 0) - had_any


class StreamShare:
    """The timers of a stream's backlog that are in memory. With fewer than `refill_below` more are to be read."""

    __slots__ = ("count", "refill_below", "stream", "tenant")

    def __init__(self, stream: Stream, tenant: TenantLoad) -> None:
        self.stream = stream
        self.tenant = tenant
        self.count = 0
        self.refill_below = 0

    def add(self, timers: int) -> None:
        self.count += timers
        self.tenant.add(timers)

    def refill(self, below: int) -> None:
        """Have more of the stream read once fewer than this are in memory; 0: there is no more."""
        self.refill_below = below
        self.check()

    def check(self) -> None:
        if self.count < self.refill_below:
            self.tenant.partition.low.add(self)


class Together:
    """The timers that one statement fires: of each job one, or any number that are independent of each other."""

    def __init__(self) -> None:
        self._runs: dict[int, set[datetime] | None] = {}  # of each job; None: one that has to be alone

    def fits(self, timer: Timer) -> bool:
        """Whether a timer may fire beside those that fitted before; if so, it is one of them from now on."""
        if timer.kind not in INDEPENDENT:
            if timer.job_id in self._runs:
                return False
            self._runs[timer.job_id] = None
            return True
        fire_ats = self._runs.setdefault(timer.job_id, set())
        if fire_ats is None or timer.fire_at in fire_ats:
            return False
        fire_ats.add(timer.fire_at)
        return True


class PendingTimers:
    """Holds each timer once: by its job's id if it is a tick's, else by a negative number of its own.

    The table is read while timers are fired. An answer may show a timer as it was before it fired: `add` ignores timers
    that were in flight at any time of the reading. And an answer may show a timer as it is since: what was added while
    the timer was in flight wins over the result of its firing.
    """

    def __init__(self, now_us: int) -> None:
        self._wheel = Wheel(now_us)
        self._due: DueWork[Due] = DueWork()
        self._displaced: list[Due] = []
        self._is_due: dict[int, int] = {}
        """With which due time keys wait to be taken. What waits with another one was replaced since."""
        self._timers: dict[int, Timer] = {}
        self._numbers: dict[TimerKey, int] = {}
        self._last_number = 0
        self._counts = [0] * PARTITIONS
        self._shares: dict[int, StreamShare] = {}
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

    def has(self, first: FirstOfStream) -> bool:
        """Whether the first timer of a stream is here, as one of this stream and with this due time."""
        if first.job_id is None or first.kind is None or first.fire_at is None:
            return False
        is_tick = first.kind == "tick"
        identity = first.job_id, first.kind, first.fire_at
        known = self._timers.get(first.job_id if is_tick else self._numbers.get(identity, 0))
        if known is None or known.stream != first.stream:
            return False
        return (known.fire_at, known.due_at) == (first.fire_at, first.due_at)

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
            else:
                self._leave_share(key)
            self._timers[key] = timer
            due_us = to_us(timer.due_at)
            if self._is_due.get(key) != due_us:
                self._is_due.pop(key, None)
                entries.append((key, due_us))
        self._wheel.add_many(entries)
        return news

    def has_tick(self, job_id: int) -> bool:
        """Whether the timer of a job's next tick is here."""
        return job_id in self._timers

    def drop_gone(self, job_ids: Iterable[int], timers: Iterable[Timer]) -> None:
        """Drop the ticks of jobs of which all timers were read, and these were found: deleted, paused or put off.

        But for those that were in flight meanwhile.
        """
        read = {timer.job_id for timer in (*timers, *(self._taken or ())) if timer.kind == "tick"}
        for job_id in job_ids:
            if job_id in self._timers and job_id not in read:
                self._drop(job_id)

    def assign(self, timers: Iterable[Timer], shares: Mapping[Stream, StreamShare]) -> None:
        """Count those of these timers that are here as parts of the shares of their streams."""
        for timer in timers:
            key = timer.job_id if timer.kind == "tick" else self._numbers.get(_identity(timer), 0)
            share = shares.get(timer.stream)
            if share is None or self._shares.get(key) is share or self._timers.get(key) != timer:
                continue
            self._leave_share(key)
            self._shares[key] = share
            share.add(1)

    @property
    def catch_up(self) -> int:
        """How many of those that wait to be taken are left from an outage."""
        return len(self._due.catch_up)

    def collect(
        self,
        now_us: int,
        weights: Mapping[int, int],
        most: int | None = None,
        outage_us: Sequence[int] = _NO_OUTAGE,
    ) -> None:
        """Move what is due by now, or so much of it, from the wheel to the due timers in fair order.

        `outage_us`: what was due before, in each partition, is left from an outage.
        """
        on_time: dict[tuple[int, int], list[Due]] = {}
        late: dict[tuple[int, int], list[Due]] = {}
        catch_up: dict[tuple[int, int], list[Due]] = {}
        for entry in self._wheel.advance(now_us, most):
            due_us, key = entry
            timer = self._timers[key]
            stream = timer.tenant_id, timer.priority
            if now_us - due_us > LATE_US:
                is_left = due_us < outage_us[partition_of(timer.job_id)]
                (catch_up if is_left else late).setdefault(stream, []).append(entry)
            else:
                on_time.setdefault(stream, []).append(entry)
            self._is_due[key] = due_us
        due = self._due
        for share, streams in ((due.on_time, on_time), (due.late, late), (due.catch_up, catch_up)):
            for (tenant_id, priority), entries in streams.items():
                share.add(tenant_id, entries, weights.get(tenant_id, 1), priority)

    def take(self, most: int, now_us: int, most_catch_up: int | None = None) -> list[PendingTimer]:
        """The next due timers in fair order: of each job one, or any number that are independent of each other.

        They stay here until `move` or `forget`, and are in flight until `release`.
        """
        first, self._displaced = self._displaced[:most], self._displaced[most:]
        return self._take([*first, *self._due.take(most - len(first), most_catch_up)], now_us)

    def take_few(self, most: int, now_us: int) -> list[PendingTimer]:
        """As `take`, of tenants that have few on-time timers, while much else is due."""
        return self._take(self._due.take_few(most), now_us)

    def _take(self, entries: Iterable[Due], now_us: int) -> list[PendingTimer]:
        taken: list[PendingTimer] = []
        together = Together()
        for entry in entries:
            due_us, key = entry
            if self._is_due.get(key) != due_us:
                continue  # dropped or replaced meanwhile
            timer = self._timers[key]
            if due_us > now_us:  # the clock was set back
                del self._is_due[key]
                self._wheel.add(key, due_us)
            elif together.fits(timer):
                del self._is_due[key]
                taken.append(PendingTimer(key, timer))
            else:
                # One by one, so that overlap sees both. First in the next round: new ones must not keep it out.
                self._displaced.append(entry)
        return self.put_in_flight(taken)

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
            self._leave_share(entry.key)
            self._wheel.add(entry.key, to_us(timer.due_at))

    def retry_at(self, entry: PendingTimer, at_us: int) -> None:
        """Let a timer that did not fire be due again at this time, unless it was replaced or its partition is lost."""
        if self.is_current(entry):
            self._wheel.add(entry.key, at_us)

    def retry_first(self, entry: PendingTimer) -> None:
        """Let a timer that did not fire be among the first of the next batch, unless it was replaced."""
        if self.is_current(entry):
            due = to_us(entry.timer.due_at), entry.key
            self._is_due[entry.key] = due[0]
            self._displaced.append(due)

    def forget(self, entry: PendingTimer) -> None:
        """Drop a timer that is gone, or of a lost partition."""
        if self.is_current(entry):
            self._drop(entry.key)

    def keep_only(self, partitions: Iterable[int]) -> None:
        """Drop the timers of all other partitions."""
        kept = set(partitions)
        dropped = [key for key, timer in self._timers.items() if partition_of(timer.job_id) not in kept]
        for key in dropped:
            self._drop(key)
        if dropped:
            self._collect_anew()

    def next_due_us(self) -> int | None:
        """When to collect next."""
        return self._wheel.next_due()

    def _collect_anew(self) -> None:
        """Forget what waits with the due time of a dropped timer: it would use up the rate of a catch-up."""
        self._due, self._displaced = DueWork(), []
        self._wheel.add_many(self._is_due.items())
        self._is_due.clear()

    def _drop(self, key: int) -> None:
        timer = self._timers.pop(key)
        self._wheel.cancel(key)
        self._is_due.pop(key, None)
        self._leave_share(key)
        self._counts[partition_of(timer.job_id)] -= 1
        if key < 0:
            del self._numbers[_identity(timer)]

    def _leave_share(self, key: int) -> None:
        share = self._shares.pop(key, None) if self._shares else None
        if share is not None:
            share.add(-1)
            share.check()

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
