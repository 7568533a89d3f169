"""Reads partitions that have more due timers than fit into memory: a little of each stream at a time.

By due time a tenant with a million late timers would hide another tenant's one timer behind them, and what is not in
memory gets no fair turn. So a crowded partition is read by streams, which are the timers of one tenant and priority:

1. Each second the first timer of every stream is looked up, from stream to stream in the index. Where it is not in
   memory, the stream is read from there on.
2. Streams share the partition's place in memory by the weights of their tenants. A stream is read on when half of its
   share has fired.
3. Once no stream has more due timers than were read, the partition is read by due time again.

Of a partition with very many streams some are looked up each second, in rotation.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from evertick.domain.ids import partition_of
from evertick.roles.scheduler.state import State
from evertick.store.engine import timers
from evertick.store.engine.timers import Stream, Timer

LOOK_SECONDS = 1.0
LOOK_PAUSE = 4
"""A look that took longer than usual is followed by a pause of so many times that."""
MAX_STREAMS = 500
"""Streams of one partition in one look."""
PARTITIONS_AT_ONCE = 16
"""Partitions in one statement of a look."""
MIN_SHARE = 16
"""Timers of a stream that are read at once, however many streams there are."""
CAPACITY = 128_000
"""Timers of all crowded partitions in memory. Several batches, so that each finds its share of every tenant while the
next timers are read; and not so many that what falls due would wait behind them in the wheel."""
MIN_PLACE = 500
"""Timers of one crowded partition in memory, however many are crowded."""
MAX_ANSWER = 8_000
"""Timers in one answer, which is decoded while nothing fires."""

Item = TypeVar("Item")

_NEXT = timedelta(microseconds=1)


class _Position:
    """How far a stream was read: from `floor_at`, before which it has nothing, to `until_at`.

    `share`: so many were asked for. `is_truncated`: it may have more in the stretch that was asked for.
    """

    __slots__ = ("floor_at", "is_truncated", "share", "until_at")

    def __init__(self, floor_at: datetime) -> None:
        self.floor_at = self.until_at = floor_at
        self.share = 0
        self.is_truncated = True  # not read yet

    def note_read(self, from_at: datetime, before_at: datetime, found: Sequence[datetime]) -> None:
        if found and from_at <= self.floor_at:
            self.floor_at = found[0]
        self.is_truncated = len(found) >= self.share
        if self.is_truncated:
            # More may be due at the last instant: it is read again, unless the answer held nothing else.
            self.until_at = found[-1] if found[-1] > from_at else found[-1] + _NEXT
        else:
            self.until_at = before_at


class _Crowd:
    """The streams of a crowded partition. `after`: the stream after which the next look begins."""

    def __init__(self, partition: int) -> None:
        self.start = self.after = Stream(partition, -(2**63), 0)
        self.streams: dict[Stream, _Position] = {}
        self.is_known = False

    def note_look(self, firsts: Sequence[Timer], most: int) -> list[Stream]:
        """Take over the streams that a look found; returns those that are gone."""
        found = {timer.stream for timer in firsts}
        last = firsts[-1].stream if len(firsts) >= most else None
        gone = [
            stream
            for stream in self.streams
            if stream > self.after and (last is None or stream <= last) and stream not in found
        ]
        for stream in gone:
            del self.streams[stream]
        self.is_known = self.is_known or last is None
        self.after = last or self.start
        return gone

    def is_calm(self, now_at: datetime) -> bool:
        """Whether every timer that is due is in memory."""
        return self.is_known and not any(
            each.is_truncated and each.until_at <= now_at for each in self.streams.values()
        )


class CrowdedPartitions:
    """The crowded partitions of this node. `add` takes what was read into memory."""

    def __init__(self, state: State, add: Callable[[Sequence[Timer]], Awaitable[object]]) -> None:
        self._state = state
        self._add = add
        self._crowds: dict[int, _Crowd] = {}
        self._look_at = 0.0

    def __contains__(self, partition: object) -> bool:
        return partition in self._crowds

    def enter(self, partition: int) -> None:
        """Read a partition by streams from now on."""
        if partition not in self._crowds:
            self._crowds[partition] = _Crowd(partition)
            self._look_at = 0.0

    def leave(self, partitions: Iterable[int]) -> None:
        """Forget partitions: they are calm, or lost. A read of them that is under way counts for nothing."""
        for partition in partitions:
            if crowd := self._crowds.pop(partition, None):
                self._forget(crowd.streams)

    @property
    def is_used_up(self) -> bool:
        """Whether a stream has more timers than were read, and half of those have fired."""
        return any(True for _ in self._used_up())

    @property
    def _place(self) -> int:
        """Timers of one crowded partition in memory."""
        return max(MIN_PLACE, CAPACITY // max(1, len(self._crowds)))

    async def read(self, now_at: datetime, before_at: datetime, *, is_round: bool) -> list[int]:
        """Read what is to be read; returns the partitions that are calm now."""
        if not self._crowds:
            return []
        began = time.monotonic()
        if began >= self._look_at:
            await self._look(before_at)
            took = time.monotonic() - began
            self._look_at = began + max(LOOK_SECONDS, LOOK_PAUSE * took)
        await self._read(dict(self._used_up()), before_at)
        if is_round:
            await self._read(dict(self._read_to_their_end(before_at)), before_at)
        return [partition for partition, crowd in self._crowds.items() if crowd.is_calm(now_at)]

    async def _look(self, before_at: datetime) -> None:
        """Look up the first timer of each stream, and read streams whose first is not in memory."""
        for partitions in _portions(list(self._crowds), PARTITIONS_AT_ONCE):
            crowds = [self._crowds[each] for each in partitions if each in self._crowds]
            if not crowds:
                continue
            firsts = await timers.first_of_streams(self._state.pool, [crowd.after for crowd in crowds], MAX_STREAMS)
            if unknown := {timer.tenant_id for timer in firsts} - self._state.rule_cache.weights.keys():
                await self._state.rule_cache.load_weights(self._state.pool, unknown)
            by_partition: dict[int, list[Timer]] = {crowd.start.partition: [] for crowd in crowds}
            for timer in firsts:
                by_partition[partition_of(timer.job_id)].append(timer)
            for crowd in crowds:
                self._forget(crowd.note_look(by_partition[crowd.start.partition], MAX_STREAMS))
            await self._read(dict(self._unknown(firsts, before_at)), before_at)

    def _unknown(self, firsts: Iterable[Timer], before_at: datetime) -> Iterator[tuple[Stream, datetime]]:
        for timer in firsts:
            stream, pending = timer.stream, self._state.pending
            crowd = self._crowds.get(stream.partition)
            # Where thousands of streams fill more than twice the place, those that were not read wait for it.
            if crowd is None or timer.due_at >= before_at or pending.count(stream.partition) > 2 * self._place:
                continue
            if stream not in crowd.streams:
                crowd.streams[stream] = _Position(timer.due_at)
            elif pending.has(timer):
                crowd.streams[stream].floor_at = timer.due_at
                continue
            yield stream, timer.due_at

    def _used_up(self) -> Iterator[tuple[Stream, datetime]]:
        unfired = self._state.pending.unfired
        for crowd in self._crowds.values():
            for stream, position in crowd.streams.items():
                if position.is_truncated and 2 * unfired.get(stream, 0) < position.share:
                    yield stream, position.floor_at  # not where it ended: many may be due at one and the same instant

    def _read_to_their_end(self, before_at: datetime) -> Iterator[tuple[Stream, datetime]]:
        for crowd in self._crowds.values():
            for stream, position in crowd.streams.items():
                if not position.is_truncated and position.until_at < before_at:
                    yield stream, position.until_at

    def _shares(self, streams: Iterable[Stream]) -> dict[Stream, int]:
        """How many timers of each of these streams to have in memory."""
        weights = self._state.rule_cache.weights
        totals: dict[int, int] = {}
        shares: dict[Stream, int] = {}
        for stream in streams:
            partition = stream.partition
            if partition not in totals:
                totals[partition] = sum(weights.get(each.tenant_id, 1) for each in self._crowds[partition].streams)
            share = self._place * weights.get(stream.tenant_id, 1) // max(1, totals[partition])
            shares[stream] = min(max(share, MIN_SHARE), MAX_ANSWER)
        return shares

    async def _read(self, from_ats: dict[Stream, datetime], before_at: datetime) -> None:
        for wanted in self._answers(from_ats):
            crowds = dict(self._crowds)
            with self._state.pending.reading():
                found = await timers.load_streams(self._state.pool, wanted, before_at)
                await self._add(found)
            self._note_read(crowds, wanted, before_at, found)

    def _answers(self, from_ats: dict[Stream, datetime]) -> Iterator[dict[Stream, tuple[datetime, int]]]:
        """What to read in one statement each: as many streams as an answer may hold."""
        wanted: dict[Stream, tuple[datetime, int]] = {}
        room = MAX_ANSWER
        for stream, share in self._shares(from_ats).items():
            if share > room and wanted:
                yield wanted
                wanted, room = {}, MAX_ANSWER
            if stream.partition in self:  # not lost meanwhile
                wanted[stream] = from_ats[stream], share
                room -= share
        if wanted:
            yield wanted

    def _note_read(
        self,
        crowds: dict[int, _Crowd],
        wanted: dict[Stream, tuple[datetime, int]],
        before_at: datetime,
        found: Sequence[Timer],
    ) -> None:
        due_ats: dict[Stream, list[datetime]] = {}
        for timer in found:
            due_ats.setdefault(timer.stream, []).append(timer.due_at)
        for stream, (from_at, share) in wanted.items():
            crowd = crowds[stream.partition]
            if self._crowds.get(stream.partition) is not crowd or stream not in crowd.streams:
                continue  # lost meanwhile
            position = crowd.streams[stream]
            position.share = share
            position.note_read(from_at, before_at, due_ats.get(stream, ()))
            self._state.pending.unfired[stream] = len(due_ats.get(stream, ()))

    def _forget(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            self._state.pending.unfired.pop(stream, None)


def _portions(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))
