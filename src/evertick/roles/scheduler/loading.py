"""Brings timers from the table into memory (`pending_timers`): ahead of time, when woken, and what a lost wake-up hid.

Firing goes on meanwhile; only while an answer is decoded nothing fires. So the size of answers is limited.

Each firing leaves a dead entry in the index at the timer's old due time, for as long as some session keeps an old
snapshot. So a poll begins where the last one found that nothing earlier is left in the table, and each poll looks at a
few of the partitions from the beginning. A timer that no wake-up named is found

- within a poll or two if it was committed within `LATE_COMMIT` of its due time, or is due later;
- within `FULL_LOOKS` polls otherwise: a job that got back a timer of long ago, and a queued run behind one that was
  withdrawn.

Where more is due than was read, or than was fired, the partition gets a boundary: what is due before it is its backlog,
which is read by streams (`backlog`). Reading by due time goes on from the boundary, so that no backlog keeps what falls
due now out of memory. A partition that was just taken gets one where an outage ended, if
that left anything: a backlog of its own, which fires at a limited rate and does not keep the other one waiting.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.domain.ids import PARTITIONS, partition_of
from evertick.domain.schedule.instants import from_us
from evertick.roles.scheduler.backlog import BEGINNING_AT, LATE_COMMIT, Backlog
from evertick.roles.scheduler.catching_up import CatchUp
from evertick.roles.scheduler.state import State
from evertick.store.engine import timers
from evertick.store.engine.timers import Timer

POLL_SECONDS = 1.0
POLL_AHEAD = timedelta(seconds=2)
"""Each poll reaches past the next one, so that what it finds fires at its time; unless `POLL_LIMIT` known timers of its
partition come before it. Then it is found when they have fired, up to a poll later; or once they are `BEHIND`."""
POLL_LIMIT = 16
"""Timers of one partition in a poll. Nearly all of them are known; where one is new, more may follow it."""
FULL_LOOKS = 60
"""In so many polls each partition is read from the beginning once."""
AHEAD_SECONDS = 5.0
"""How often the far end of the horizon is read: a little at a time, because reading competes with firing."""
WEIGHTS_SECONDS = 60.0
ANSWER = 2_000
"""The aim for the timers of an answer: as many partitions are read at once as had that many in the last one."""
MAX_ANSWER = 8 * ANSWER
"""The limit for the timers of an answer. Partitions that have more than their part are read again, fewer at once."""
FIRST_PARTITIONS = 16
"""Partitions in the first answer, before it is known how many timers they have."""
MAX_PER_PARTITION = 4_000
"""Timers of one partition in one answer. A partition that has more is read on when half of them have fired, so that
memory is bounded however much is due."""
REFILL = MAX_PER_PARTITION // 2
REFILL_AHEAD = timedelta(seconds=3 * AHEAD_SECONDS)
"""Or when so little time is left until the first that was not read: jobs that fire repeatedly stay in memory."""
BEHIND = timedelta(seconds=5)
"""A partition whose first timers are known and have been due for so long is looked at by streams as well: what no
wake-up named is found behind any number of other tenants' timers."""
MIN_BACKLOG = 500
"""Due timers of a partition in an answer, at least, for the rest to be a backlog."""
FULL = 2 * MAX_PER_PARTITION
"""With so many timers of a partition in memory, apart from those of its backlogs, none are read by due time: what falls
due meanwhile is its backlog."""
OVERFULL = 2 * FULL
"""With so many, wake-ups bring only what fires at once: timers of a full queue stay in memory for any time."""
MAX_COUNTED = 1_000
"""Timers of a partition that are counted when it was taken."""

_NEXT = timedelta(microseconds=1)


class _Found(NamedTuple):
    """What an answer held.

    `firsts`: the earliest due time of each partition that had any. `truncated`: partitions that may have more, with the
    last due time that was read.
    """

    timers: int
    firsts: dict[int, datetime]
    truncated: dict[int, datetime]
    news: set[int]


class Loading:
    """Keeps for each partition up to which due time it was read, so that no round reads a timer again.

    And its floor: the due time before which nothing was left in the table. `is_full` says of which queues timers wait.
    """

    def __init__(
        self,
        state: State,
        *,
        horizon: timedelta,
        loaded: Callable[[], None],
        is_full: Callable[[int], bool],
        catch_up: CatchUp,
    ) -> None:
        self._state = state
        self._is_full = is_full
        self._catch_up = catch_up
        self._horizon = horizon
        self._loaded = loaded
        self._until: dict[int, datetime] = {}
        self._floors: dict[int, datetime] = {}
        self._polls = 0
        self._truncated: set[int] = set()
        self._checked: set[int] = set()
        self._left = self._new_backlog(lambda _: None)  # by an outage
        self._late = self._new_backlog(self._left.before_at)
        self._losses = 0
        self._woken: set[int] = set()
        self._each = ANSWER / FIRST_PARTITIONS  # timers of a partition in the last answer
        self._poll_at = 0.0
        self._ahead_at = 0.0
        self._weights_at = 0.0

    def _new_backlog(self, begins: Callable[[int], datetime | None]) -> Backlog:
        return Backlog(self._state, begins=begins, add=self.add, between=self.load_woken, ended=self._backlog_ended)

    def woken(self, job_ids: frozenset[int] | None) -> None:
        """These jobs have new timers; None: so many that the next poll comes at once instead."""
        if job_ids is None:
            self._poll_at = 0.0
        else:
            held = self._state.ownership.epochs
            self._woken |= {job_id for job_id in job_ids if partition_of(job_id) in held}

    def lost(self, partitions: Iterable[int]) -> None:
        """Forget how far partitions were read: they are lost, or to be read anew. A read under way does not count."""
        self._losses += 1
        partitions = list(partitions)
        self._left.drop(partitions)
        self._late.drop(partitions)
        self._checked.difference_update(partitions)
        for partition in partitions:
            self._until.pop(partition, None)
            self._floors.pop(partition, None)
            self._truncated.discard(partition)

    async def step(self) -> float:
        """Read what is to be read; returns the seconds until the next step."""
        await self.load_woken()
        await self._find_backlogs()
        now = time.monotonic()
        await self._load_ahead(self._to_read(is_round=now >= self._ahead_at))
        if now >= self._ahead_at:
            self._ahead_at = now + min(AHEAD_SECONDS, self._horizon.total_seconds() / 2)
        if now >= self._weights_at:
            await self._state.rule_cache.load_weights(self._state.pool, self._state.rule_cache.weights)
            self._weights_at = now + WEIGHTS_SECONDS
        if now >= self._poll_at:
            self._poll_at = now + POLL_SECONDS  # before the poll: a wake-up meanwhile asks for another one
            await self._poll(POLL_AHEAD)
        await self._read_backlogs()  # after the poll, which finds what is on time
        if not self._left:
            self._catch_up.note_over()
        await self._catch_up.record()
        return 0.01 if self.is_urgent else max(0.01, self._poll_at - time.monotonic())

    @property
    def is_behind(self) -> bool:
        """Whether more may be due than is in memory."""
        return bool(self._late) or bool(self._left)

    @property
    def is_urgent(self) -> bool:
        """Whether there is something to read before the next poll is due."""
        return self._late.is_urgent or self._left.is_urgent or bool(self._used_up())

    async def load_due(self, ahead: timedelta = timedelta(0)) -> None:
        """Read the timers due by now, or a little later, that may be new: a wake-up for them may have been lost."""
        await self._find_backlogs()
        await self._poll(ahead)
        await self._read_backlogs()

    async def _read_backlogs(self) -> None:
        await self._late.step()
        await self._left.step()

    async def _poll(self, ahead: timedelta) -> None:
        now_at = from_us(self._state.clock.now_us() + 1)
        partitions = sorted(self._state.ownership.epochs)
        self._polls += 1
        for partition in partitions:
            if partition % FULL_LOOKS == self._polls % FULL_LOOKS:
                self._floors.pop(partition, None)
        losses = self._losses
        found = await self._load(partitions, [self._start(each) for each in partitions], now_at + ahead, POLL_LIMIT)
        if losses == self._losses:
            complete_at = now_at - LATE_COMMIT
            self._floors |= {each: min(complete_at, found.firsts.get(each, complete_at)) for each in partitions}
        crowded = sorted(found.truncated.keys() & found.news & self._state.ownership.epochs.keys())
        for partition in crowded:
            self._until.pop(partition, None)
        await self._load_ahead(crowded)
        self._watch_late(found, now_at)

    def _watch_late(self, found: _Found, now_at: datetime) -> None:
        """Look by streams at partitions whose first timers have been due for long: they may hide others."""
        for partition in found.truncated.keys() - found.news & self._state.ownership.epochs.keys():
            if found.truncated[partition] <= now_at - BEHIND:
                until_at = self._until.get(partition)
                self._begin_backlog(partition, now_at, is_complete=until_at is not None and until_at >= now_at)

    async def _find_backlogs(self) -> None:
        """Give partitions that were just taken a boundary, if anything fell due long before."""
        held = self._state.ownership
        new = held.epochs.keys() - self._checked
        now_us = self._state.clock.now_us()
        gained = {each: from_us(min(held.outage_us[each], now_us)) for each in new if held.outage_us[each]}
        if not gained:
            self._checked |= new
            return
        losses = self._losses
        counts = await timers.count_due(self._state.pool, gained, MAX_COUNTED)
        if losses != self._losses:
            return  # some may be lost: the next step asks again
        self._checked |= new
        for partition in counts:
            self._left.raise_to(partition, gained[partition])
        self._catch_up.note_found(counts)

    def _begin_backlog(self, partition: int, before_at: datetime, *, is_complete: bool = False) -> bool:
        """What is due before and not in memory is read by streams from now on. Returns whether the boundary moved."""
        if partition in self._until:
            self._until[partition] = max(self._until[partition], before_at)
        return self._late.raise_to(partition, before_at, is_complete=is_complete)

    def _backlog_ended(self, partition: int) -> None:
        self._floors.pop(partition, None)  # polls begin at the beginning again

    def _start(self, partition: int) -> datetime:
        """Where reading by due time begins."""
        before_at = self._late.before_at(partition) or self._left.before_at(partition)
        floor_at = self._floor(partition)
        return floor_at if before_at is None else max(floor_at, before_at)

    def _floor(self, partition: int) -> datetime:
        # After the clock was set back, timers appear before what counted as complete.
        complete_at = from_us(self._state.clock.now_us()) - LATE_COMMIT
        return min(complete_at, self._floors.get(partition, BEGINNING_AT))

    async def load_woken(self) -> None:
        """Read the timers of the jobs that wake-ups named."""
        job_ids, self._woken = self._woken, set()
        if not job_ids:
            return
        try:
            with self._state.pending.reading():
                now_at = from_us(self._state.clock.now_us())
                found = await timers.load_jobs(self._state.pool, job_ids, now_at + self._horizon)
                await self.add([timer for timer in found if self._is_heeded(timer, now_at)])
                self._state.pending.drop_gone(job_ids, found)
        except BaseException:
            self._woken |= job_ids
            raise

    def _is_heeded(self, timer: Timer, now_at: datetime) -> bool:
        """Whether a wake-up brings a timer into memory. Polls find the others when they are due."""
        if self._count(partition_of(timer.job_id)) < OVERFULL or self._state.pending.has_tick(timer.job_id):
            return True
        return timer.due_at < now_at + POLL_AHEAD and not self._is_full(timer.queue_id)

    def _to_read(self, *, is_round: bool) -> list[int]:
        """The partitions to read on: in each round all that were read to their end, and others when it is time."""
        held = self._state.ownership.epochs
        for partition in self._used_up():
            self._until.pop(partition, None)  # from its floor: many may be due at one and the same instant
        unread = held.keys() - self._until.keys()
        if not is_round:
            return sorted(unread)
        soon_at = from_us(self._state.clock.now_us()) + REFILL_AHEAD
        return [each for each in held if each not in self._truncated or each in unread or self._until[each] < soon_at]

    def _used_up(self) -> list[int]:
        """Partitions that have more timers than were read, and few of those left."""
        return [partition for partition in self._truncated if self._count(partition) < REFILL]

    def _count(self, partition: int) -> int:
        """How many timers of a partition are in memory, apart from its backlogs, which have places of their own."""
        return self._state.pending.count(partition) - self._late.count(partition) - self._left.count(partition)

    async def _load_ahead(self, partitions: Iterable[int]) -> None:
        now_at = from_us(self._state.clock.now_us())
        before_at = now_at + self._horizon
        wanted = [partition for partition in partitions if self._has_room(partition, now_at)]
        unread = [partition for partition in wanted if partition not in self._until]
        await self._load_stretch([partition for partition in wanted if partition in self._until], before_at)
        if unread:
            self._each = ANSWER / FIRST_PARTITIONS
            await self._load_stretch(unread, before_at)

    def _has_room(self, partition: int, now_at: datetime) -> bool:
        """Whether to read a partition by due time. If its memory is full, what falls due is its backlog."""
        if self._count(partition) < FULL:
            return True
        if self._until.setdefault(partition, now_at) <= now_at:
            self._begin_backlog(partition, now_at)
        return False

    async def _load_stretch(self, partitions: Sequence[int], before_at: datetime) -> None:
        waiting = list(partitions)
        while waiting:
            size = max(1, round(ANSWER / self._each)) if self._each else PARTITIONS
            portion, waiting = waiting[:size], waiting[size:]
            most = min(MAX_PER_PARTITION, MAX_ANSWER // len(portion))
            losses = self._losses
            from_ats = {partition: self._until.get(partition) or self._start(partition) for partition in portion}
            found = await self._load(portion, list(from_ats.values()), before_at, most)
            self._each = found.timers / len(portion)
            if losses == self._losses:
                again = self._again(found.truncated, most)
                for partition in portion:
                    if partition not in again:
                        self._note_read(partition, from_ats[partition], before_at, found.truncated.get(partition))
                waiting += again
            await self.load_woken()

    def _again(self, truncated: dict[int, datetime], most: int) -> list[int]:
        """The partitions to read again at once: with fewer others, or from the boundary that they get here."""
        again: list[int] = []
        now_at = from_us(self._state.clock.now_us())
        for partition, last_at in truncated.items():
            is_backlog = most >= min(MIN_BACKLOG, MAX_PER_PARTITION) and last_at <= now_at
            # Past what is due now: the clock may stand still, and the boundary has to move.
            if is_backlog and self._begin_backlog(partition, now_at + _NEXT):
                self._until.pop(partition, None)
                self._truncated.discard(partition)
                again.append(partition)
            elif most < MAX_PER_PARTITION:
                again.append(partition)
        return [partition for partition in again if partition in self._state.ownership.epochs]

    def _note_read(self, partition: int, from_at: datetime, before_at: datetime, last_at: datetime | None) -> None:
        """A partition was read to the end of a stretch, or up to what was due at `last_at`."""
        if partition not in self._state.ownership.epochs:
            return  # lost before it was its turn
        if last_at is None:
            if partition not in self._until:
                self._truncated.discard(partition)
            self._until[partition] = before_at
        else:
            # More may be due at the last instant. If that was all there was in the answer, one has to get past it, and
            # the rest is read when these are used up.
            self._until[partition] = last_at if last_at > from_at else last_at + _NEXT
            self._truncated.add(partition)

    async def _load(
        self, partitions: Sequence[int], from_ats: Sequence[datetime], before_at: datetime, most: int
    ) -> _Found:
        with self._state.pending.reading():
            found = await timers.load(self._state.pool, partitions, from_ats, before_at, most)
            # Of each partition in the order of their due times.
            firsts = {partition_of(timer.job_id): timer.due_at for timer in reversed(found)}
            return _Found(len(found), firsts, _truncated(partitions, found, most), await self.add(found))

    async def add(self, found: Sequence[Timer]) -> set[int]:
        """Add what was found, and return the partitions where a timer was new or changed."""
        if not found:
            return set()
        await self._state.rule_cache.load(self._state.pool, {timer.rule_id for timer in found} - {0})
        tenants = {timer.tenant_id for timer in found} - self._state.rule_cache.weights.keys()
        if tenants:
            await self._state.rule_cache.load_weights(self._state.pool, tenants)
        # A partition may have been lost meanwhile. Its timers would be refused, so they are not kept.
        held = self._state.ownership.epochs
        news = self._state.pending.add(timer for timer in found if partition_of(timer.job_id) in held)
        if news or from_us(self._state.clock.now_us()) + POLL_AHEAD >= min(timer.due_at for timer in found):
            self._loaded()
        return news


def _truncated(partitions: Sequence[int], found: Sequence[Timer], most: int) -> dict[int, datetime]:
    """Partitions that had more timers than the answer was to hold, or just as many, with their last due time."""
    if len(found) < most:
        return {}
    counts = dict.fromkeys(partitions, 0)
    lasts: dict[int, datetime] = {}
    for timer in found:  # of each partition in the order of their due times
        partition = partition_of(timer.job_id)
        counts[partition] += 1
        lasts[partition] = timer.due_at
    return {partition: lasts[partition] for partition, count in counts.items() if count >= most}
