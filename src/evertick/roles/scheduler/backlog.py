"""Reads backlogs: what is due in partitions that have more due than was read. By streams, so that none hides another.

By due time a tenant with a million late timers would hide another tenant's one timer behind them, and what is not in
memory gets no fair turn. A stream is the timers of one tenant and priority in one partition. A partition with a backlog
has a boundary: what is due from there on is read by due time (`loading`), what is due before it is read here.

1. Each second the streams of a partition are looked up, from stream to stream in the index, with the first timer of
   each. A stream that is not in memory, or whose first timer is not, is read: its earliest timers, up to its share.
2. A stream that has more than its share is read again when half of the share has fired. Nothing is kept about how far
   it was read: what was fired has moved, so the earliest are those to be read.
3. When all streams were looked up and none had a timer before the boundary, the partition has no backlog any more.

Memory: `CAPACITY` timers, in equal parts for the partitions with a backlog and within them for their streams. It is
passed for a while if the parts were larger when they were read. If a partition has more streams than its part has
places, some streams are in memory at a time, in rotation.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from evertick.domain.schedule.instants import from_us
from evertick.roles.scheduler.pending_timers import Load, StreamShare
from evertick.roles.scheduler.state import State
from evertick.store.engine import timers
from evertick.store.engine.timers import FirstOfStream, Stream, Stretch, Timer

CAPACITY = 64_000
"""Timers of all backlogs in memory: many batches, and few enough to leave the wheel at once, before any is fired."""
MAX_SHARE = 4_000
LOOK_SECONDS = 1.0
"""In this time each partition with a backlog is looked at once, unless that takes longer than usual."""
LOOK_PAUSE = 4
"""A look is followed by a pause of so many times what it took."""
LOOK_ROWS = 2_000
"""The aim for the streams in an answer: as many partitions are looked at as had so many in the last one."""
MAX_LOOK = 32
"""Partitions in one look."""
MAX_STREAMS = 1_000
"""Streams that a look passes in one partition. The next look goes on from there."""
FULL_LOOKS = 60
"""In so many rotations a partition is read from the beginning of time once. Otherwise from where nothing was left, past
the dead index entries of what has fired."""
MAX_ANSWER = 4_000
"""Timers in one answer, which is decoded while nothing fires."""

BEGINNING_AT = datetime(1, 1, 2, tzinfo=UTC)
_START = 2**63 - 1, 0
_END_AT = datetime(9999, 1, 1, tzinfo=UTC)

Item = TypeVar("Item")


class _Partition:
    """A partition with a backlog, and its current rotation through the streams.

    `after`: the last stream that was looked at. `streams`: how many have a backlog, as far as known. `is_cut`: memory
    was full before the rotation was at its end. `is_complete`: what is due before the boundary was in memory when that
    was set, so that only what no wake-up named is missing.
    """

    def __init__(self, number: int, before_at: datetime, *, is_complete: bool) -> None:
        self.number = number
        self.before_at = before_at
        self.is_complete = is_complete
        self.load = Load()
        self.shares: dict[Stream, StreamShare] = {}
        self.floor_at = BEGINNING_AT
        self.streams = 1
        self.rotations = 0
        self._begin_rotation()

    def raise_to(self, before_at: datetime, *, is_complete: bool) -> None:
        self.before_at = before_at
        if not is_complete:
            self.is_complete = False
            self.shares = {}  # all are read again: each may have more now
        self._begin_rotation()

    def _begin_rotation(self) -> None:
        self.after = Stream(self.number, *_START)
        self.is_cut = False
        self.seen = 0
        self._first_at = _END_AT

    @property
    def stretch(self) -> Stretch:
        return Stretch(self.floor_at, self.before_at)

    def note_first(self, stream: Stream, due_at: datetime | None) -> None:
        self.after = stream
        if due_at is not None:
            self.seen += 1
            self._first_at = min(self._first_at, due_at)

    def end_rotation(self) -> bool:
        """The last stream was passed. Returns whether none of them had a timer before the boundary."""
        self.rotations += 1
        self.floor_at = BEGINNING_AT if self.rotations % FULL_LOOKS == 0 else min(self._first_at, self.before_at)
        self.streams = max(1, self.seen)
        self.shares = {stream: share for stream, share in self.shares.items() if share.count or share.refill_below}
        is_over = not self.seen
        self._begin_rotation()
        return is_over


class Backlog:
    """The partitions with a backlog. `add` takes what was read into memory; `between` runs between two statements."""

    def __init__(
        self,
        state: State,
        *,
        add: Callable[[Sequence[Timer]], Awaitable[object]],
        between: Callable[[], Awaitable[None]],
        ended: Callable[[int], None],
    ) -> None:
        self._state = state
        self._add = add
        self._between = between
        self._ended = ended
        self._partitions: dict[int, _Partition] = {}  # in the order in which they are looked at
        self._new: set[int] = set()
        self._streams_each = LOOK_ROWS / MAX_LOOK  # of a partition in the last look
        self._look_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def before_at(self, partition: int) -> datetime | None:
        """The boundary of a partition; None: it has no backlog."""
        known = self._partitions.get(partition)
        return None if known is None else known.before_at

    def has_before(self, before_us: Sequence[int]) -> bool:
        """Whether a partition may have a backlog from before an instant of its own."""
        return any(each.floor_at < from_us(before_us[number]) for number, each in self._partitions.items())

    def raise_to(self, partition: int, before_at: datetime, *, is_complete: bool = False) -> None:
        """Set a partition's boundary, or move it up to a later time."""
        known = self._partitions.get(partition)
        if known is None:
            self._partitions[partition] = _Partition(partition, before_at, is_complete=is_complete)
        elif known.before_at < before_at:
            known.raise_to(before_at, is_complete=is_complete)
        else:
            return
        self._new.add(partition)

    def drop(self, partitions: Iterable[int]) -> None:
        """Forget partitions. A reading of them that is under way does not count."""
        for partition in partitions:
            self._partitions.pop(partition, None)
            self._new.discard(partition)

    @property
    def is_urgent(self) -> bool:
        """Whether there is something to read before the next look is due."""
        return bool(self._partitions) and (bool(self._state.pending.low) or bool(self._waiting()))

    async def step(self) -> None:
        """Read on in streams that run low, and look at partitions when it is time."""
        if not self._partitions:
            self._state.pending.low.clear()
            return
        low = list(self._state.pending.low)
        self._state.pending.low.clear()
        await self._read(low)
        for numbers in _portions(self._waiting(), self._portion):
            await self._look(numbers)
        if self._partitions and time.monotonic() >= self._look_at:
            await self._look(list(self._partitions)[: self._portion])

    @property
    def _place(self) -> int:
        """Timers of one partition in memory."""
        return max(1, CAPACITY // max(1, len(self._partitions)))

    @property
    def _portion(self) -> int:
        return min(MAX_LOOK, max(1, round(LOOK_ROWS / max(1, self._streams_each))))

    def _waiting(self) -> list[int]:
        """Partitions to look at at once: those that are new, and those that were cut off and have room again."""
        enough = self._place // 2
        return [*self._new, *(n for n, each in self._partitions.items() if each.is_cut and each.load.count <= enough)]

    def _share_size(self, partition: _Partition) -> int:
        return min(max(1, self._place // partition.streams), MAX_SHARE)

    async def _look(self, numbers: Sequence[int]) -> None:
        began = time.monotonic()
        looked_at = {number: self._partitions[number] for number in numbers if number in self._partitions}
        if not looked_at:
            return
        starts = [(each.after, each.stretch) for each in looked_at.values()]
        firsts = await timers.walk_streams(self._state.pool, starts, MAX_STREAMS)
        self._streams_each = len(firsts) / len(looked_at)
        found: dict[int, list[FirstOfStream]] = {number: [] for number in looked_at}
        for first in firsts:
            found[first.partition].append(first)
        wanted: list[StreamShare] = []
        for number, partition in looked_at.items():
            if self._partitions.get(number) is partition:  # not lost meanwhile
                self._partitions[number] = self._partitions.pop(number)  # to the end
                self._new.discard(number)
                wanted += self._note_look(partition, found[number])
        await self._between()
        await self._read(wanted)
        took = time.monotonic() - began
        share = len(looked_at) / max(len(self._partitions), len(looked_at))
        self._look_at = began + max(LOOK_SECONDS * share, LOOK_PAUSE * took)

    def _note_look(self, partition: _Partition, firsts: Sequence[FirstOfStream]) -> list[StreamShare]:
        """Take over what a look found; returns what is to be read."""
        wanted: dict[Stream, StreamShare] = {}
        with_timers = sum(first.due_at is not None for first in firsts)
        partition.streams = max(partition.streams, partition.seen + with_timers)
        size, room = self._share_size(partition), self._place - partition.load.count
        for first in sorted(firsts, key=lambda each: each.stream, reverse=True):
            if first.due_at is not None and self._is_missing(partition, first):
                # A stream that was alone when it was read may have more than its share, and keep it for long because
                # its queue is full. Others get theirs all the same, as long as there is a place for each.
                if room <= 0 and partition.streams > self._place:
                    partition.is_cut = True
                    break
                room -= size
                known = partition.shares.get(first.stream)
                wanted[first.stream] = known or StreamShare(first.stream, partition.load)
            partition.note_first(first.stream, first.due_at)
        else:
            partition.is_cut = False
            if not any(first.is_cut for first in firsts) and partition.end_rotation():
                self.drop([partition.number])
                self._ended(partition.number)
        partition.shares |= wanted
        return list(wanted.values())

    def _is_missing(self, partition: _Partition, first: FirstOfStream) -> bool:
        if not partition.is_complete and first.stream not in partition.shares:
            return True
        return not self._state.pending.has(first.job_id, first.kind, first.fire_at, first.due_at)

    async def _read(self, wanted: Iterable[StreamShare]) -> None:
        """Read the earliest timers of streams, up to their shares."""
        for portion in self._answers(wanted):
            asked = [(share, self._partitions[share.stream.partition]) for share in portion if self._is_current(share)]
            if not asked:
                continue
            sizes = {share: self._share_size(partition) for share, partition in asked}
            with self._state.pending.reading():
                found = await timers.load_streams(
                    self._state.pool, [(share.stream, each.stretch, sizes[share]) for share, each in asked]
                )
                await self._add(found)
                current = {share.stream: share for share in sizes if self._is_current(share)}
                self._state.pending.assign(found, current)
            self._note_read(current, sizes, found)
            await self._between()

    def _answers(self, wanted: Iterable[StreamShare]) -> Iterator[list[StreamShare]]:
        """What to read in one statement each: as many streams as an answer may hold."""
        portion: list[StreamShare] = []
        room = MAX_ANSWER
        for share in wanted:
            if self._is_current(share):
                size = self._share_size(self._partitions[share.stream.partition])
                if portion and size > room:
                    yield portion
                    portion, room = [], MAX_ANSWER
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
            partition, size = self._partitions[stream.partition], sizes[share]
            # Where streams are in memory in rotation, none of them is read on out of turn.
            has_more = counts[stream] >= size and partition.streams <= self._place
            share.refill_below = max(1, size // 2) if has_more else 0
            if share.count < share.refill_below:
                self._state.pending.low.add(share)

    def _is_current(self, share: StreamShare) -> bool:
        partition = self._partitions.get(share.stream.partition)
        return partition is not None and partition.shares.get(share.stream) is share


def _portions(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))
