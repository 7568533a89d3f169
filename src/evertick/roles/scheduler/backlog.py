"""Reads backlogs: what is due in partitions that have more due than was read. By streams, so that none hides another.

By due time a tenant with a million late timers would hide another tenant's one timer behind them, and what is not in
memory gets no fair turn. A stream is the timers of one tenant, priority and queue in one partition: the timers of a
full queue stay in memory for any time, and the tenant's other queues must not wait behind them. A partition with a
backlog has a boundary: what is due from there on is read by due time (`loading`), what is due before it is read here.

1. Each second streams of a partition are looked up, from stream to stream in the index, with the first timer of each. A
   stream that is not in memory, or whose first timer is not, is read: its earliest timers, up to its share. A partition
   that has more streams than a look passes is looked up in rotation, at first without a pause.
2. A stream that has more than its share is read again when half of the share has fired. Nothing is kept about how far
   it was read: what was fired has moved, so the earliest are those to be read.
3. When all streams were looked up since the boundary was set and none had a timer before it, the partition has no
   backlog any more.

What an outage left is one backlog, and what is late for other reasons another: the first waits for its rate, and must
not take places of the second. Memory for each: `CAPACITY` timers, in equal parts for the partitions with a backlog,
within them for tenants, and then for the streams of a tenant. It is passed for a while if the parts were larger when
they were read, and a partition may have twice its part, so that each stream has a place. If there are more streams than
places, a tenant that has more than its part of the places has some streams in memory at a time, in rotation; if there
are even more tenants than places, so have all.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from evertick.domain.schedule.instants import from_us
from evertick.roles.scheduler.pending_timers import Load, StreamShare, TenantLoad
from evertick.roles.scheduler.state import State
from evertick.store.database import was_too_slow
from evertick.store.engine import timers
from evertick.store.engine.timers import FirstOfStream, Stream, Stretch, Timer

CAPACITY = 64_000
"""Timers in memory: many batches, and few enough to leave the wheel at once, before any is fired."""
MAX_SHARE = 4_000
LOOK_SECONDS = 1.0
"""In this time each partition with a backlog is looked at once, unless that takes longer than usual."""
LOOK_PAUSE = 4
"""A look is followed by a pause of so many times what it took."""
LOOK_ROWS = 2_000
"""The aim for the streams that a look passes: as many partitions are looked at as had so many in the last one."""
MAX_LOOK = 32
"""Partitions in one look."""
MAX_STREAMS = 1_000
"""Streams that a look passes in one partition. The next look goes on from there."""
MIN_STREAMS = 16
"""However little memory is left for their timers."""
FULL_LOOKS = 60
"""In so many rotations a partition is read from the beginning of time once. Otherwise from where nothing was left, past
the dead index entries of what has fired."""
MAX_ANSWER = 4_000
"""Timers in one answer, which is decoded while nothing fires."""
SLOWEST = 64
"""Looks and answers shrink to one part in so many, if they take too long for the time that a statement has."""
LATE_COMMIT = timedelta(seconds=5)
"""A timer that appears so much later than its due time, because its transaction took long, is still found at once."""

BEGINNING_AT = datetime(1, 1, 2, tzinfo=UTC)
_START = 2**63 - 1, 0, 0
_END_AT = datetime(9999, 1, 1, tzinfo=UTC)

Item = TypeVar("Item")


class _Tenant:
    """A tenant in a partition with a backlog. `streams`: how many of its streams have one, as far as known.

    `turn`: the first stream that found no place in the last rotation, if there was one. Those before it had theirs.
    """

    __slots__ = ("load", "next_turn", "seen", "streams", "turn")

    def __init__(self, load: Load) -> None:
        self.load = TenantLoad(load)
        self.streams = 0
        self.seen = 0
        self.turn: Stream | None = None
        self.next_turn: Stream | None = None

    def end_rotation(self) -> None:
        self.streams, self.seen = self.seen, 0
        self.turn, self.next_turn = self.next_turn, None


class _Partition:
    """A partition with a backlog, and its current rotation through the streams.

    `after`: the last stream that was looked at. `streams`: how many have a backlog, as far as known. `is_cut`: memory
    was full before all streams were in it. `has_turns`: some streams that have more wait for their turn. `is_complete`:
    what is due before the boundary was in memory when that was set, so that only what no wake-up named is missing.
    """

    def __init__(self, number: int, before_at: datetime, now_at: datetime, load: Load, *, is_complete: bool) -> None:
        self.number = number
        self.before_at = before_at
        self.is_complete = is_complete
        self.load = load
        self.shares: dict[Stream, StreamShare] = {}
        self.tenants: dict[int, _Tenant] = {}
        self.floor_at = BEGINNING_AT
        self.streams = 1
        self.rotations = 0
        self.has_turns = False
        self._begin_rotation(now_at)

    def _begin_rotation(self, now_at: datetime) -> None:
        self.after = Stream(self.number, *_START)
        self.is_cut = False
        self.seen = 0
        self.missing = 0
        self._complete_at = min(self.before_at, now_at - LATE_COMMIT)
        self._first_before_at = self.before_at
        self._first_at = _END_AT

    def note_found(self, firsts: Iterable[FirstOfStream]) -> None:
        """A look found these. A tenant or stream that is new counts at once, so that shares become smaller."""
        found = Counter(first.tenant_id for first in firsts if first.due_at is not None)
        self.streams = max(self.streams, self.seen + found.total())
        for tenant_id, streams in found.items():
            tenant = self.tenants.get(tenant_id)
            if tenant is None:
                tenant = self.tenants[tenant_id] = _Tenant(self.load)
            tenant.streams = max(tenant.streams, tenant.seen + streams)

    def share_of(self, stream: Stream) -> StreamShare:
        """The share of a stream that a look found."""
        return self.shares.get(stream) or StreamShare(stream, self.tenants[stream.tenant_id].load)

    def note_first(self, stream: Stream, due_at: datetime | None) -> None:
        self.after = stream
        if due_at is not None:
            self.seen += 1
            self.tenants[stream.tenant_id].seen += 1
            self._first_at = min(self._first_at, due_at)

    def end_rotation(self, now_at: datetime) -> bool:
        """The last stream was passed. Returns whether none of them had a timer before the boundary.

        Streams that were passed before the boundary rose may have some now.
        """
        self.rotations += 1
        self.floor_at = BEGINNING_AT if self.rotations % FULL_LOOKS == 0 else min(self._first_at, self._complete_at)
        self.streams = max(1, self.seen)
        self.shares = {stream: share for stream, share in self.shares.items() if share.count or share.refill_below}
        with_shares = {stream.tenant_id for stream in self.shares}
        for tenant_id, tenant in list(self.tenants.items()):
            tenant.end_rotation()
            if not tenant.streams and tenant_id not in with_shares:
                del self.tenants[tenant_id]
        is_over = not self.seen and self.before_at == self._first_before_at
        self._begin_rotation(now_at)
        return is_over


class Backlog:
    """The partitions with a backlog. `add` takes what was read into memory; `between` runs between two statements.

    `begins` says from which due time on a partition is read here.
    """

    def __init__(
        self,
        state: State,
        *,
        begins: Callable[[int], datetime | None],
        add: Callable[[Sequence[Timer]], Awaitable[object]],
        between: Callable[[], Awaitable[None]],
        ended: Callable[[int], None],
    ) -> None:
        self._state = state
        self._begins = begins
        self._add = add
        self._between = between
        self._ended = ended
        self._partitions: dict[int, _Partition] = {}  # in the order in which they are looked at
        self._raised: set[int] = set()
        self._low: set[StreamShare] = set()
        self._streams_each = LOOK_ROWS / MAX_LOOK  # that the last look passed in a partition
        self._slowness = 1
        self._look_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def before_at(self, partition: int) -> datetime | None:
        """The boundary of a partition; None: it has no backlog."""
        known = self._partitions.get(partition)
        return None if known is None else known.before_at

    def count(self, partition: int) -> int:
        """How many timers of a partition's backlog are in memory."""
        known = self._partitions.get(partition)
        return 0 if known is None else known.load.count

    def raise_to(self, partition: int, before_at: datetime, *, is_complete: bool = False) -> bool:
        """Set a partition's boundary, or move it up to a later time. Returns whether it moved.

        A rotation under way goes on: begun anew each time, it would not get to its last streams.
        """
        known = self._partitions.get(partition)
        if known is None:
            known = _Partition(partition, before_at, self._now_at, Load(self._low), is_complete=is_complete)
            self._partitions[partition] = known
        elif known.before_at >= before_at:
            return False
        known.before_at = before_at
        self._raised.add(partition)
        if not is_complete:
            known.is_complete = False
            self._refill(known)
        return True

    def _refill(self, partition: _Partition) -> None:
        """Have streams read on: each may have more now."""
        for share in partition.shares.values():
            share.refill(self._refill_below(partition, share.stream))

    def drop(self, partitions: Iterable[int]) -> None:
        """Forget partitions. A reading of them that is under way does not count."""
        for partition in partitions:
            self._partitions.pop(partition, None)
            self._raised.discard(partition)

    @property
    def is_urgent(self) -> bool:
        """Whether there is something to read before the next look is due."""
        return bool(self._partitions) and (bool(self._low) or bool(self._waiting()))

    async def step(self) -> None:
        """Read on in streams that run low, and look at partitions when it is time."""
        low = list(self._low)
        self._low.clear()
        try:
            await self._read(low)
        except BaseException:
            self._low.update(low)
            raise
        for numbers in _portions(self._waiting(), self._portion):
            await self._look(numbers)
        if self._partitions and time.monotonic() >= self._look_at:
            await self._look(list(self._partitions)[: self._portion])

    @property
    def _now_at(self) -> datetime:
        return from_us(self._state.clock.now_us())

    @property
    def _place(self) -> int:
        """Timers of one partition in memory."""
        return max(1, CAPACITY // max(1, len(self._partitions)))

    @property
    def _portion(self) -> int:
        return min(MAX_LOOK, max(1, round(LOOK_ROWS / self._slowness / max(1, self._streams_each))))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Wrap a statement: half as much at once after a time-out, twice as much when it went well."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, TimeoutError) or was_too_slow(error):
                self._slowness = min(2 * self._slowness, SLOWEST)
            raise
        self._slowness = max(1, self._slowness // 2)

    def _waiting(self) -> list[int]:
        """Partitions to look at at once: those whose first rotation goes on or whose boundary rose, while they have
        room, and those that were cut off and have room again.
        """
        enough = self._place // 2
        return [
            number
            for number, each in self._partitions.items()
            if (self._used(each) <= enough if each.is_cut else not each.rotations or number in self._raised)
        ]

    def _stretch(self, partition: _Partition) -> Stretch:
        begin_at = self._begins(partition.number)
        from_at = partition.floor_at if begin_at is None else max(partition.floor_at, begin_at)
        return Stretch(from_at, partition.before_at)

    def _is_crowded(self, partition: _Partition) -> bool:
        """Whether there are more tenants than places, so that they take turns in memory."""
        return len(partition.tenants) > self._place

    def _used(self, partition: _Partition) -> int:
        """Places that are in use. If tenants take turns each has one, though it may have kept more from before."""
        return partition.load.tenants if self._is_crowded(partition) else partition.load.count

    def _part(self, partition: _Partition) -> int:
        """Places of each tenant."""
        return max(1, self._place // max(1, len(partition.tenants)))

    def _is_rotating(self, partition: _Partition, tenant: _Tenant) -> bool:
        """Whether streams of a tenant take turns in memory."""
        if partition.streams <= self._place:
            return False  # each has a place
        return tenant.streams > self._part(partition) or self._is_crowded(partition)

    def _share_size(self, partition: _Partition, stream: Stream) -> int:
        share = self._part(partition) // max(1, partition.tenants[stream.tenant_id].streams)
        return min(max(1, share), MAX_SHARE, MAX_ANSWER // self._slowness)

    def _refill_below(self, partition: _Partition, stream: Stream) -> int:
        # A stream that takes turns with others is not read on out of turn.
        if self._is_rotating(partition, partition.tenants[stream.tenant_id]):
            return 0
        return max(1, self._share_size(partition, stream) // 2)

    def _most_streams(self, partition: _Partition) -> int:
        """How many streams to pass: not many more than there is room for, if tenants take turns."""
        most = min(MAX_STREAMS, max(MIN_STREAMS, LOOK_ROWS // self._slowness))
        if not self._is_crowded(partition):
            return most
        return min(most, max(MIN_STREAMS, self._place - self._used(partition)))

    async def _look(self, numbers: Sequence[int]) -> None:
        began = time.monotonic()
        looked_at = {number: self._partitions[number] for number in numbers if number in self._partitions}
        if not looked_at:
            return
        now_at = self._now_at
        starts = [(each.after, self._stretch(each), self._most_streams(each)) for each in looked_at.values()]
        self._raised.difference_update(looked_at)
        with self._timed():
            firsts = await timers.walk_streams(self._state.pool, starts)
        found: dict[int, list[FirstOfStream]] = {number: [] for number in looked_at}
        for first in firsts:
            found[first.partition].append(first)
        passed = sum(max((first.number for first in each), default=0) for each in found.values())
        self._streams_each = passed / len(looked_at)
        wanted: list[StreamShare] = []
        for number, partition in looked_at.items():
            if self._partitions.get(number) is partition:  # not lost meanwhile
                self._partitions[number] = self._partitions.pop(number)  # to the end
                wanted += self._note_look(partition, found[number], now_at)
        await self._between()
        await self._read(wanted)
        took = time.monotonic() - began
        share = len(looked_at) / max(len(self._partitions), len(looked_at))
        self._look_at = began + max(LOOK_SECONDS * share, LOOK_PAUSE * took)

    def _note_look(self, partition: _Partition, firsts: Sequence[FirstOfStream], now_at: datetime) -> list[StreamShare]:
        """Take over what a look found; returns what is to be read."""
        wanted: dict[Stream, StreamShare] = {}
        promised: Counter[int] = Counter()
        partition.note_found(firsts)
        is_crowded, room = self._is_crowded(partition), self._place - self._used(partition)
        for first in sorted(firsts, key=lambda each: each.stream, reverse=True):
            stream = first.stream
            if first.due_at is not None and self._is_missing(partition, first):
                # A stream that was alone when it was read may have more than its share, and keep it for long because
                # its queue is full. Others get theirs all the same, as long as there is a place for each.
                if room <= 0 and is_crowded:
                    partition.is_cut = True
                    break
                if self._has_turn(partition, stream, promised[stream.tenant_id]):
                    size = self._share_size(partition, stream)
                    room -= size
                    promised[stream.tenant_id] += size
                    partition.missing += 1
                    wanted[stream] = partition.share_of(stream)
            partition.note_first(stream, first.due_at)
        else:
            is_walk_cut = any(first.is_cut for first in firsts)
            partition.is_cut = is_walk_cut and is_crowded and room <= 0
            if not is_walk_cut:
                self._end_rotation(partition, now_at)
        partition.shares |= wanted
        return list(wanted.values())

    def _has_turn(self, partition: _Partition, stream: Stream, promised: int) -> bool:
        """Whether a stream may be read: one of a tenant that has more of them than places waits until it is next."""
        tenant = partition.tenants[stream.tenant_id]
        if not self._is_rotating(partition, tenant):
            return True
        if tenant.turn is not None and stream > tenant.turn:
            return False  # it was read in the last rotation
        has_place = tenant.load.count + promised < self._part(partition)
        if not has_place and tenant.next_turn is None:
            tenant.next_turn = stream
        return has_place

    def _end_rotation(self, partition: _Partition, now_at: datetime) -> None:
        is_rotating, has_read = partition.streams > self._place, partition.missing > 0
        if partition.end_rotation(now_at):
            self.drop([partition.number])
            self._ended(partition.number)
        # Streams that have their turns in memory are read on by the next rotation only: when there is room again.
        partition.is_cut = is_rotating and (has_read or self._used(partition) > self._place // 2)
        if partition.has_turns and not partition.is_cut:
            partition.has_turns = False
            self._refill(partition)

    def _is_missing(self, partition: _Partition, first: FirstOfStream) -> bool:
        if not partition.is_complete and first.stream not in partition.shares:
            return True
        return not self._state.pending.has(first)

    async def _read(self, wanted: Iterable[StreamShare]) -> None:
        """Read the earliest timers of streams, up to their shares."""
        for portion in self._answers(wanted):
            asked = [(share, self._partitions[share.stream.partition]) for share in portion if self._is_current(share)]
            if not asked:
                continue
            sizes = {share: self._share_size(partition, share.stream) for share, partition in asked}
            stretches = [(share.stream, self._stretch(each), sizes[share]) for share, each in asked]
            with self._state.pending.reading():
                with self._timed():
                    found = await timers.load_streams(self._state.pool, stretches)
                await self._add(found)
                current = {share.stream: share for share in sizes if self._is_current(share)}
                self._state.pending.assign(found, current)
            self._note_read(current, sizes, found)
            await self._between()

    def _answers(self, wanted: Iterable[StreamShare]) -> Iterator[list[StreamShare]]:
        """What to read in one statement each: as many streams as an answer may hold."""
        portion: list[StreamShare] = []
        room = most = MAX_ANSWER // self._slowness
        for share in wanted:
            if self._is_current(share):
                size = self._share_size(self._partitions[share.stream.partition], share.stream)
                if portion and size > room:
                    yield portion
                    portion, room = [], most
                portion.append(share)
                room -= size
        if portion:
            yield portion

    def _note_read(
        self, current: dict[Stream, StreamShare], sizes: dict[StreamShare, int], found: Sequence[Timer]
    ) -> None:
        counts = dict.fromkeys(current, 0)
        for timer in found:
            if timer.stream in counts:
                counts[timer.stream] += 1
        for stream, share in current.items():
            partition = self._partitions[stream.partition]
            has_more = counts[stream] >= sizes[share]
            share.refill(self._refill_below(partition, stream) if has_more else 0)
            partition.has_turns |= has_more and not share.refill_below

    def _is_current(self, share: StreamShare) -> bool:
        partition = self._partitions.get(share.stream.partition)
        return partition is not None and partition.shares.get(share.stream) is share


def _portions(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))
