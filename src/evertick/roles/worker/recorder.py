"""Records endings: whatever has gathered while the statement before was under way goes along in the next one.

Nothing is dropped. An ending stays until the database has answered for it; after a lost connection the same is sent
again, and what was recorded the first time is simply there.

Nothing is held up by another either. A batch that fails is made smaller, down to the one ending that is the cause. That
one is tried apart from the others, as are those that the database answers to be busy: someone else has locked their run
or job. What cannot be stored is replaced by an ending that says so.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto

from evertick.domain.retry import Retry
from evertick.roles.worker.endings import unstorable
from evertick.roles.worker.figures import Figures
from evertick.roles.worker.retry_queue import Entry, RetryQueue
from evertick.roles.worker.waiting import token_of
from evertick.runtime.loop import Loop
from evertick.store import outcomes
from evertick.store.database import Pool, is_transient, was_conflict
from evertick.store.lanes import Leased
from evertick.store.outcomes import Ending, Recorded, Token

logger = logging.getLogger("evertick.worker")

MOST = 8192
"""Endings in one statement."""
GROWTH = 4
"""A batch is halved when it fails, and so many times as large as the last one that did not."""
RECHECK_SECONDS = 60.0
STALLED_SECONDS = 2.0
"""When nothing could be recorded for so long, nothing more is leased."""
_DATA_CLASSES = frozenset({"22", "23", "54"})
"""Of SQLSTATEs: data exceptions, constraint violations, limits of the server."""


class Failure(Enum):
    """Why a statement failed."""

    UNKNOWN = auto()  # no answer: it may have been done
    LOCKED = auto()  # rolled back because of others
    UNSTORABLE = auto()  # something in it cannot be stored
    REFUSED = auto()  # the server's own error


class Recorder:
    """Gathers endings and leases that are done, and writes them one batch after the other."""

    def __init__(
        self,
        pool: Pool,
        worker: str,
        figures: Figures,
        following: Callable[[Iterable[int]], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._worker = worker
        self._figures = figures
        self._following = following
        self._monotonic = monotonic
        self._waiting: list[Entry] = []
        self._number = 0  # of the ending that was added last
        self._done: list[tuple[int, int]] = []  # leases, each with the number of its last ending
        self._most = MOST
        self._since: float | None = None  # when the statement began that has not been answered well since
        self._doubtful = 0  # the number of the last ending that may have been recorded without an answer
        self._apart = RetryQueue(monotonic)
        self._most_apart = MOST
        self._loop = Loop("record", self._step)
        self._apart_loop = Loop("record apart", self._step_apart)
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._apart)

    @property
    def is_stalled(self) -> bool:
        """Whether statements have been under way or failing for so long that nothing more should be leased."""
        return self._since is not None and self._monotonic() - self._since > STALLED_SECONDS

    @property
    def stalled_leases(self) -> set[int]:
        """The leases of endings that have been waiting for long: who reaps them would call their attempts lost."""
        waiting = {leased.lease_id for leased, _ in self._waiting} if self.is_stalled else set()
        return waiting | self._apart.leases

    def start(self) -> None:
        self._loop.start()
        self._apart_loop.start()

    def add(self, leased: Leased, ending: Ending, done_lease: int | None) -> None:
        self._waiting.append((leased, ending))
        self._number += 1
        if done_lease is not None:
            self._done.append((self._number, done_lease))
        if len(self._waiting) == 1:  # else the loop is at it
            self._rouse()

    def release(self, done_lease: int) -> None:
        """Let go of a lease, once its endings are recorded."""
        self._done.append((self._number, done_lease))
        self._rouse()

    async def drain(self) -> None:
        """Return when everything is recorded."""
        await self._empty.wait()

    async def stop(self, within_seconds: float) -> None:
        await asyncio.gather(self._loop.stop(within_seconds), self._apart_loop.stop(within_seconds))

    async def flush(self) -> None:
        """Record all that is there, without a loop, and try once what is apart."""
        await self._step()
        if self._apart:
            await self._record_apart(self._apart.ready(self._most_apart))
            await self._step()

    def _rouse(self) -> None:
        self._empty.clear()
        self._loop.wake()

    async def _step(self) -> float:
        while self._waiting or self._releasable(self._number):
            await self._record()
        if not self._apart:
            self._empty.set()
        return RECHECK_SECONDS

    async def _step_apart(self) -> float:
        while batch := self._apart.ready(self._most_apart):
            await self._record_apart(batch)
        self._loop.wake()  # which lets go of their leases
        return self._apart.pause(RECHECK_SECONDS)

    def _releasable(self, number: int) -> list[int]:
        """The leases of which no ending waits apart, nor in the line behind this number."""
        return [lease_id for last, lease_id in self._done if last <= number and not self._apart.holds(lease_id)]

    async def _record(self) -> None:
        batch = self._waiting[: self._most]
        number = self._number - len(self._waiting) + len(batch)
        leases = self._releasable(number)
        self._since = self._monotonic() if self._since is None else self._since
        try:
            recorded = await self._write(batch, leases)
        except Exception as error:  # noqa: BLE001 - what it means is decided there
            self._fail(batch, number, error)
            return
        self._since = None
        self._most = min(GROWTH * self._most, MOST)
        del self._waiting[: len(batch)]
        is_doubtful = number - len(batch) < self._doubtful
        self._set_apart([entry for entry in batch if token_of(entry[0]) in recorded.busy] if recorded.busy else ())
        self._release(leases)
        self._count(batch, recorded, is_doubtful=is_doubtful)

    async def _write(self, batch: Collection[Entry], leases: list[int]) -> Recorded:
        return await outcomes.record(self._pool, self._worker, [ending for _, ending in batch], leases)

    def _release(self, leases: list[int]) -> None:
        """The database has let go of these, but for those with an ending that turned out to be busy."""
        gone = {lease_id for lease_id in leases if not self._apart.holds(lease_id)}
        if gone:
            self._done = [done for done in self._done if done[1] not in gone]

    def _fail(self, batch: list[Entry], number: int, error: Exception) -> None:
        """Make the next batch smaller. From a batch of one it is clear which ending is the cause."""
        failure = _failure_of(error)
        self._most = max(1, len(batch) // 2)
        if failure is Failure.UNKNOWN:
            self._doubtful = number
        # Without an answer it may be the database that is away: then nothing is gained while no other waits.
        if len(batch) == 1 and (failure is not Failure.UNKNOWN or len(self._waiting) > 1):
            del self._waiting[:1]
            self._set_apart([_mended(batch[0], failure, error)])
            if not self._waiting:
                self._since = None  # none of the others fails
        if not batch or failure is Failure.UNKNOWN or (failure is Failure.REFUSED and len(batch) == 1):
            raise error

    def _set_apart(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._apart.add(entry)
            self._apart_loop.wake()

    async def _record_apart(self, batch: list[Entry]) -> None:
        try:
            recorded = await self._write(batch, [])
        except Exception as error:
            failure = _failure_of(error)
            self._most_apart = max(1, len(batch) // 2)
            if len(batch) == 1:
                self._apart.add(_mended(batch[0], failure, error))
            if failure is Failure.UNKNOWN or (failure is Failure.REFUSED and len(batch) == 1):
                raise
            return
        self._most_apart = min(GROWTH * self._most_apart, MOST)
        self._apart.remove([entry for entry in batch if token_of(entry[0]) not in recorded.busy])
        self._set_apart(entry for entry in batch if token_of(entry[0]) in recorded.busy)
        self._count(batch, recorded, is_doubtful=True)

    def _count(self, batch: Iterable[Entry], recorded: Recorded, *, is_doubtful: bool) -> None:
        # In doubt it may be we ourselves who had ended them before.
        if recorded.stale and not is_doubtful:
            self._figures.stale += len(recorded.stale)
            logger.info("%d outcomes came too late: others had ended those attempts", len(recorded.stale))
        left: set[Token] = recorded.busy
        due = [
            leased.job_id for leased, ending in batch if isinstance(ending.then, Retry) and token_of(leased) not in left
        ]
        if due:
            self._following(due)


def _mended(entry: Entry, failure: Failure, error: Exception) -> Entry:
    """The ending to try next time: the same, or one that can be stored in its place."""
    leased, ending = entry
    if failure is not Failure.UNSTORABLE:
        return entry
    logger.error("%s: the outcome of attempt %d cannot be stored: %s", leased.name, leased.attempt, error)
    return leased, unstorable(leased, ending, error)


def _failure_of(error: Exception) -> Failure:
    if was_conflict(error):
        return Failure.LOCKED
    if is_transient(error):
        return Failure.UNKNOWN
    sqlstate = getattr(error, "sqlstate", None)
    if isinstance(sqlstate, str):
        return Failure.UNSTORABLE if sqlstate[:2] in _DATA_CLASSES else Failure.REFUSED
    # The driver could not even send it.
    return Failure.UNSTORABLE if isinstance(error, ValueError | OverflowError) else Failure.UNKNOWN
