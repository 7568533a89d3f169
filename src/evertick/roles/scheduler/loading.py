"""Brings timers from the table into the agenda: ahead of time, when woken, and whatever a lost wake-up hid.

Firing goes on meanwhile, so answers are small: each is decoded in one go, during which nothing fires.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from evertick.domain.ids import PARTITIONS, partition_of
from evertick.domain.schedule.instants import from_us, to_us
from evertick.roles.scheduler.state import State
from evertick.store import timers
from evertick.store.timers import Timer

POLL_SECONDS = 1.0
POLL_AHEAD = timedelta(seconds=2)
"""Each poll reaches past the next one, so that what it finds still fires at its time."""
POLL_MOST = 1_000
POLL_FEW = 16
"""Timers of one partition in a poll. Nearly all of them are known; where one was news, there may be more behind it."""
AHEAD_SECONDS = 5.0
"""So often the next seconds at the far end are read: a little at a time, for that competes with firing."""
ANSWER = 2_000
"""Timers that an answer should have: as many partitions are read at once as had that many in the last one."""
ANSWER_MOST = 8 * ANSWER
"""And that it may have. Partitions with more than their share of that are read again, fewer at once."""
GROUP = 16
"""Partitions in the first answer, while nobody knows how many timers they have."""
MOST = 4_000
"""Timers of one partition in one answer. A partition with more is read again when those are nearly used up."""
REFILL = MOST // 2
BUSY = 10_000
"""With so many due there is nothing to poll for: what was hidden is not later than these."""

_BEGINNING_AT = datetime(1, 1, 2, tzinfo=UTC)


class _Found(NamedTuple):
    """What an answer held: how many timers, the partitions that may have more, and those where something was news."""

    timers: int
    truncated: set[int]
    news: set[int]


class Loading:
    """Remembers up to when each partition was read, so that a timer is read once, not each minute."""

    def __init__(self, state: State, *, horizon: timedelta, loaded: Callable[[], None]) -> None:
        self._state = state
        self._horizon = horizon
        self._loaded = loaded
        self._until: dict[int, datetime] = {}
        self._truncated: set[int] = set()
        self._woken: set[int] = set()
        self._each = ANSWER / GROUP  # timers of a partition in the last answer
        self._poll_at = 0.0
        self._ahead_at = 0.0

    def woken(self, job_ids: frozenset[int] | None) -> None:
        """These jobs have new timers; None: so many that the next poll comes at once instead."""
        if job_ids is None:
            self._poll_at = 0.0
        else:
            self._woken |= {job_id for job_id in job_ids if partition_of(job_id) in self._state.holdings.epochs}

    def lost(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._until.pop(partition, None)
            self._truncated.discard(partition)

    async def step(self) -> float:
        """Read what there is to read, and say when to come again."""
        await self._load_woken()
        if (now := time.monotonic()) >= self._ahead_at:
            await self._load_ahead(self._state.holdings.epochs)
            await self._state.rulebook.weigh(self._state.pool, self._state.rulebook.weights)
            self._ahead_at = now + min(AHEAD_SECONDS, self._horizon.total_seconds() / 2)
        else:
            await self._load_ahead(self._state.holdings.epochs.keys() - self._until.keys())
        await self._refill()
        if now >= self._poll_at and self._state.agenda.due < BUSY:
            await self.load_due(POLL_AHEAD)
            self._poll_at = now + POLL_SECONDS
        return max(0.01, self._poll_at - time.monotonic())

    async def load_due(self, ahead: timedelta = timedelta(0)) -> None:
        """Read all that is due by now, or a little later, whatever is known: what a lost wake-up hid."""
        before_at = from_us(self._state.clock.now_us() + 1) + ahead
        held = sorted(self._state.holdings.epochs)
        few = await self._load(held, _BEGINNING_AT, before_at, POLL_FEW)
        if few.truncated & few.news:
            more = await self._load(sorted(few.truncated & few.news), _BEGINNING_AT, before_at, POLL_MOST)
            self._truncated |= more.truncated

    async def _load_woken(self) -> None:
        job_ids, self._woken = self._woken, set()
        if not job_ids:
            return
        try:
            with self._state.agenda.reading():
                before_at = from_us(self._state.clock.now_us()) + self._horizon
                await self._add(await timers.load_jobs(self._state.pool, job_ids, before_at))
        except BaseException:
            self._woken |= job_ids
            raise

    async def _load_ahead(self, partitions: Iterable[int]) -> None:
        before_at = from_us(self._state.clock.now_us()) + self._horizon
        by_start: dict[datetime, list[int]] = {}
        for partition in partitions:
            by_start.setdefault(self._until.get(partition, _BEGINNING_AT), []).append(partition)
        for from_at, group in by_start.items():
            await self._load_stretch(group, from_at, before_at)

    async def _load_stretch(self, partitions: Sequence[int], from_at: datetime, before_at: datetime) -> None:
        waiting = list(partitions)
        while waiting:
            size = max(1, round(ANSWER / self._each)) if self._each else PARTITIONS
            portion, waiting = waiting[:size], waiting[size:]
            most = min(MOST, ANSWER_MOST // len(portion))
            found = await self._load(portion, from_at, before_at, most)
            self._each = found.timers / len(portion)
            if most < MOST:
                waiting += sorted(found.truncated)
                portion = [partition for partition in portion if partition not in found.truncated]
            else:
                self._truncated |= found.truncated
            self._note_read(portion, from_at, before_at)

    def _note_read(self, partitions: Iterable[int], from_at: datetime, before_at: datetime) -> None:
        for partition in partitions:
            # Lost meanwhile, and perhaps ours again: then it has to be read from the beginning.
            if partition in self._state.holdings.epochs and self._until.get(partition, _BEGINNING_AT) == from_at:
                self._until[partition] = before_at

    async def _refill(self) -> None:
        """Read on where a partition had more timers than one answer holds."""
        for partition in [each for each in self._truncated if self._state.agenda.count(each) < REFILL]:
            self._truncated.discard(partition)
            self._until.pop(partition, None)
            await self._load_ahead([partition])

    async def _load(self, partitions: Sequence[int], from_at: datetime, before_at: datetime, most: int) -> _Found:
        with self._state.agenda.reading():
            found = await timers.load(self._state.pool, partitions, from_at, before_at, most)
            return _Found(len(found), _truncated(partitions, found, most), await self._add(found))

    async def _add(self, found: Sequence[Timer]) -> set[int]:
        """Add what was found, and return the partitions where something was news."""
        if not found:
            return set()
        await self._state.rulebook.learn(self._state.pool, {timer.rule_id for timer in found} - {0})
        tenants = {timer.tenant_id for timer in found} - self._state.rulebook.weights.keys()
        if tenants:
            await self._state.rulebook.weigh(self._state.pool, tenants)
        # What was lost while this was read is refused when it fires; no need to keep it.
        held = self._state.holdings.epochs
        news = self._state.agenda.add(timer for timer in found if partition_of(timer.job_id) in held)
        if min(to_us(timer.due_at) for timer in found) <= self._state.clock.now_us() + round(POLL_SECONDS * 1e6):
            self._loaded()
        return news


def _truncated(partitions: Sequence[int], found: Sequence[Timer], most: int) -> set[int]:
    """Partitions that had more timers than the answer was to hold, or just as many."""
    if len(found) < most:
        return set()
    counts = dict.fromkeys(partitions, 0)
    for timer in found:
        counts[partition_of(timer.job_id)] += 1
    return {partition for partition, count in counts.items() if count >= most}
