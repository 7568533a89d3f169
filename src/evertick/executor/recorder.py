"""Records outcomes in batches: outcomes that arrive while one batch is under way form the next.

Nothing is dropped. An outcome stays until the source has answered for it; after a lost connection the same is sent
again, and what was recorded the first time is simply there.

Nothing is held up by another either. A batch that fails is made smaller, down to the one outcome that is the cause.
That one is tried apart from the others, as are those that the source answers to be busy: someone else has locked their
run or job. What cannot be stored is replaced by a failure that says so.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from evertick.domain.attempt import SUCCEEDED, NotRecorded, Succeeded, Token
from evertick.executor.handlers.run import unstorable
from evertick.executor.source import AttemptCounters, EndedAttempt, RecordFailure, Source
from evertick.runtime.logs import run_fields

logger = logging.getLogger("evertick.worker")

GROWTH = 4
"""A batch is halved when it fails, and so many times as large as the last one that did not."""
RECHECK_SECONDS = 60.0
STALLED_SECONDS = 2.0
"""After this time without a recorded outcome nothing more is leased."""
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 30.0


class Recorder:
    """Collects outcomes and leases that are done, and records them one batch after the other."""

    def __init__(
        self,
        source: Source,
        counters: AttemptCounters,
        monotonic: Callable[[], float] = time.monotonic,
        recorded: Callable[[Sequence[EndedAttempt], NotRecorded], None] = lambda _, __: None,
    ) -> None:
        self._recorded = recorded
        self._source = source
        self._counters = counters
        self._monotonic = monotonic
        self._waiting: list[EndedAttempt] = []
        self._number = 0  # of the outcome that was added last
        self._done: list[tuple[int, int]] = []  # leases, each with the number of its last outcome
        self._most = source.max_outcomes
        self._since: float | None = None  # when the request began that has not been answered well since
        self._doubtful = 0  # the number of the last outcome that may have been recorded without an answer
        self._apart = RetryQueue(monotonic)
        self._most_apart = source.max_outcomes
        self._loop = source.loop("record", self._step)
        self._apart_loop = source.loop("record apart", self._step_apart)
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._apart)

    @property
    def apart(self) -> int:
        """How many outcomes are tried apart from the others."""
        return len(self._apart)

    @property
    def batch_size(self) -> int:
        """How many outcomes the next batch may have."""
        return self._most

    @property
    def is_stalled(self) -> bool:
        """Whether requests have been under way or failing for so long that nothing more should be leased."""
        return self._since is not None and self._monotonic() - self._since > STALLED_SECONDS

    @property
    def stalled_leases(self) -> set[int]:
        """The leases of outcomes that have been waiting for long: a reaper would call their attempts lost."""
        waiting = {ended[0].lease_id for ended in self._waiting} if self.is_stalled else set()
        return waiting | self._apart.leases

    def start(self) -> None:
        self._loop.start()
        self._apart_loop.start()

    def add(self, ended: Sequence[EndedAttempt], done_leases: Iterable[int]) -> None:
        """Record these. With the last of them nothing is open in the leases."""
        if not self._waiting:  # else the loop is already awake
            self._wake()
        self._waiting += ended
        self._number += len(ended)
        for lease_id in done_leases:
            self._done.append((self._number, lease_id))

    def release(self, done_lease: int) -> None:
        """Let go of a lease, once its outcomes are recorded."""
        self._done.append((self._number, done_lease))
        self._wake()

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

    def _wake(self) -> None:
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
        """The leases of which no outcome waits apart, nor behind this number."""
        return [lease_id for last, lease_id in self._done if last <= number and not self._apart.holds(lease_id)]

    async def _record(self) -> None:
        batch = self._fitting(self._waiting[: self._most])
        number = self._number - len(self._waiting) + len(batch)
        leases = self._releasable(number)
        self._since = self._monotonic() if self._since is None else self._since
        try:
            recorded = await self._source.record(batch, leases)
        except Exception as error:  # noqa: BLE001 - what it means is decided there
            self._fail(batch, number, error)
            return
        self._since = None
        self._most = min(GROWTH * self._most, self._source.max_outcomes)
        del self._waiting[: len(batch)]
        is_doubtful = number - len(batch) < self._doubtful
        self._set_apart([ended for ended in batch if ended[0].token in recorded.busy] if recorded.busy else ())
        self._release(leases)
        self._count(recorded, is_doubtful=is_doubtful)
        self._recorded(batch, recorded)

    def _release(self, leases: list[int]) -> None:
        """These are let go of, but for those with an outcome that turned out to be busy."""
        gone = {lease_id for lease_id in leases if not self._apart.holds(lease_id)}
        if gone:
            self._done = [done for done in self._done if done[1] not in gone]

    def _fail(self, batch: list[EndedAttempt], number: int, error: Exception) -> None:
        """Make the next batch smaller. From a batch of one it is clear which outcome is the cause."""
        failure = self._source.failure_of(error)
        self._most = max(1, len(batch) // 2)
        if failure is RecordFailure.UNKNOWN:
            self._doubtful = number
        # Without an answer the other side may be away: then setting it apart helps only if others wait.
        if len(batch) == 1 and (failure is not RecordFailure.UNKNOWN or len(self._waiting) > 1):
            del self._waiting[:1]
            self._set_apart([_mended(batch[0], failure, error)])
            if not self._waiting:
                self._since = None  # none of the others fails
        if not batch or failure is RecordFailure.UNKNOWN or (failure is RecordFailure.REFUSED and len(batch) == 1):
            raise error

    def _set_apart(self, outcomes: Iterable[EndedAttempt]) -> None:
        for ended in outcomes:
            self._apart.add(ended)
            self._apart_loop.wake()

    def _fitting(self, batch: list[EndedAttempt]) -> list[EndedAttempt]:
        """As many of these as one call may bring, by the size of their outputs."""
        size = 0
        for number, ended in enumerate(batch):
            outcome = ended[1]
            if outcome is SUCCEEDED or type(outcome) is not Succeeded or outcome.output is None:
                continue
            size += len(outcome.output.encode())
            if size > self._source.max_output_bytes and number:
                return batch[:number]
        return batch

    async def _record_apart(self, batch: list[EndedAttempt]) -> None:
        batch = self._fitting(batch)
        try:
            recorded = await self._source.record(batch, [])
        except Exception as error:
            failure = self._source.failure_of(error)
            self._most_apart = max(1, len(batch) // 2)
            if len(batch) == 1:
                self._apart.add(_mended(batch[0], failure, error))
            if failure is RecordFailure.UNKNOWN or (failure is RecordFailure.REFUSED and len(batch) == 1):
                raise
            return
        self._most_apart = min(GROWTH * self._most_apart, self._source.max_outcomes)
        self._apart.remove([ended for ended in batch if ended[0].token not in recorded.busy])
        self._set_apart(ended for ended in batch if ended[0].token in recorded.busy)
        self._count(recorded, is_doubtful=True)
        self._recorded(batch, recorded)

    def _count(self, recorded: NotRecorded, *, is_doubtful: bool) -> None:
        # In doubt an earlier request of this executor may have recorded them.
        if recorded.stale and not is_doubtful:
            self._counters.stale += len(recorded.stale)
            logger.info("%d outcomes came too late: others had ended those attempts", len(recorded.stale))


def _mended(ended: EndedAttempt, failure: RecordFailure, error: Exception) -> EndedAttempt:
    """The outcome to try next time: the same, or one that can be stored in its place."""
    if failure is not RecordFailure.UNSTORABLE:
        return ended
    attempt, outcome, started_at, finished_at, leased_at = ended
    logger.error(
        "%s: the outcome of attempt %d cannot be stored: %s",
        attempt.name,
        attempt.attempt,
        error,
        extra=run_fields(attempt),
    )
    return attempt, unstorable(outcome, error), started_at, finished_at, leased_at


class _Delayed:
    __slots__ = ("due", "ended", "pause")

    def __init__(self, ended: EndedAttempt, now: float) -> None:
        self.ended = ended
        self.pause = FIRST_PAUSE
        self.due = now + FIRST_PAUSE


class RetryQueue:
    """Outcomes that are recorded apart from the others, each tried again after a pause of its own that doubles.

    Few of many, so nothing here is fast.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._delayed: dict[Token, _Delayed] = {}
        self._leases: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._delayed)

    def holds(self, lease_id: int) -> bool:
        """Whether an outcome of the lease is here."""
        return self._leases[lease_id] > 0

    @property
    def leases(self) -> set[int]:
        """The leases of the outcomes that are here."""
        return set(self._leases)

    def add(self, ended: EndedAttempt) -> None:
        """Take in an outcome, or put off one that is here, to be tried with the same or another content."""
        token = ended[0].token
        delayed = self._delayed.get(token)
        if delayed is None:
            self._delayed[token] = _Delayed(ended, self._monotonic())
            self._leases[ended[0].lease_id] += 1
            return
        delayed.ended = ended
        delayed.pause = min(2 * delayed.pause, LONGEST_PAUSE)
        delayed.due = self._monotonic() + delayed.pause

    def remove(self, outcomes: Collection[EndedAttempt]) -> None:
        for attempt, *_ in outcomes:
            del self._delayed[attempt.token]
            self._leases[attempt.lease_id] -= 1
        self._leases += Counter()  # forgets those at zero

    def ready(self, most: int) -> list[EndedAttempt]:
        """Up to `most` outcomes whose turn has come."""
        now = self._monotonic()
        return [delayed.ended for delayed in self._delayed.values() if delayed.due <= now][:most]

    def pause(self, longest: float) -> float:
        """How long until the next one's turn."""
        first = min((delayed.due for delayed in self._delayed.values()), default=None)
        return longest if first is None else max(0.0, min(first - self._monotonic(), longest))
