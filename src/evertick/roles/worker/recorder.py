"""Records endings: whatever has gathered while the statement before was under way goes along in the next one.

Nothing is dropped. An ending stays until the database has answered for it; after a lost connection the same is sent
again, and what was recorded the first time is simply there.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from evertick.roles.worker.figures import Figures
from evertick.runtime.loop import Loop
from evertick.store import outcomes
from evertick.store.database import Pool, was_conflict
from evertick.store.outcomes import Again, Ending

logger = logging.getLogger("evertick.worker")

MOST = 8192
"""Endings in one statement."""
RECHECK_SECONDS = 60.0
BUSY_SECONDS = 0.05
"""Between two tries to record what somebody has locked."""


class Recorder:
    """Gathers endings and leases that are done, and writes them one batch after the other."""

    def __init__(self, pool: Pool, worker: str, figures: Figures, following: Callable[[Iterable[int]], None]) -> None:
        self._pool = pool
        self._worker = worker
        self._figures = figures
        self._following = following
        self._endings: list[Ending] = []
        self._done: list[int] = []
        self._is_repeated = False
        self._loop = Loop("record", self._step)
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._endings)

    def start(self) -> None:
        self._loop.start()

    def add(self, ending: Ending, done_lease: int | None) -> None:
        self._endings.append(ending)
        if done_lease is not None:
            self._done.append(done_lease)
        if len(self._endings) == 1:  # else the loop is at it
            self._rouse()

    def release(self, done_lease: int) -> None:
        """Let go of a lease with the next batch."""
        self._done.append(done_lease)
        self._rouse()

    def _rouse(self) -> None:
        self._empty.clear()
        self._loop.wake()

    async def drain(self) -> None:
        """Return when everything is recorded."""
        await self._empty.wait()

    async def stop(self) -> None:
        await self._loop.stop()

    async def flush(self) -> None:
        """Record all that is there, without a loop."""
        while self._endings or self._done:
            await self._record()
        self._empty.set()

    async def _step(self) -> float:
        await self.flush()
        return RECHECK_SECONDS

    async def _record(self) -> None:
        endings, done = self._endings[:MOST], self._done
        # The leases' last endings are among those that wait: a lease may go with the last batch only.
        if len(self._endings) > MOST:
            done = []
        count = len(done)
        try:
            recorded = await outcomes.record(self._pool, self._worker, endings, done[:count])
        except Exception as error:
            if was_conflict(error):
                return
            self._is_repeated = True
            raise
        busy = [ending for ending in endings if (ending.lane_id, ending.seq) in recorded.busy]
        self._endings[: len(endings)] = busy
        if not busy:
            del self._done[:count]
        self._count(endings, len(recorded.stale))
        if busy:
            await asyncio.sleep(BUSY_SECONDS)

    def _count(self, endings: list[Ending], stale: int) -> None:
        if self._is_repeated:  # then it may be we ourselves who had ended them
            stale = 0
        self._is_repeated = False
        if stale:
            self._figures.stale += stale
            logger.info("%d outcomes came too late: others had ended those attempts", stale)
        if due := [ending.job_id for ending in endings if isinstance(ending.then, Again)]:
            self._following(due)
