"""Puts back attempts that were leased and never started: others may lease them, and nothing counts as a try.

An attempt stays held here until the database has answered for it, so that its lease is extended meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import NamedTuple

from evertick.runtime.loop import Loop
from evertick.store import lanes
from evertick.store.database import Pool
from evertick.store.lanes import Leased, PutBack, queue_of

logger = logging.getLogger("evertick.worker")

MOST = 1000
"""Attempts in one statement."""
RECHECK_SECONDS = 60.0
AT_ONCE = timedelta(0)


class _Return(NamedTuple):
    leased: Leased
    put_back: PutBack


class Returns:
    """Gathers attempts and puts them back together. `returned` is told of each when that is done.

    `notify` gets the queues in which something can be leased again at once.
    """

    def __init__(
        self, pool: Pool, worker: str, returned: Callable[[Leased], None], notify: Callable[[Iterable[int]], None]
    ) -> None:
        self._pool = pool
        self._worker = worker
        self._returned = returned
        self._notify = notify
        self._waiting: list[_Return] = []
        self._loop = Loop("put back", self._step)
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        self._loop.start()

    async def stop(self, within_seconds: float) -> None:
        await self._loop.stop(within_seconds)

    async def drain(self) -> None:
        """Return when everything is put back."""
        await self._empty.wait()

    def add(self, leased: Leased, delay: timedelta = AT_ONCE, *, is_deferral: bool = False) -> None:
        """Put an attempt back. A deferral is counted, so that the next may wait for longer."""
        put_back = PutBack(leased.lane_id, leased.seq, leased.handler or "", delay, leased.deferrals + is_deferral)
        self._waiting.append(_Return(leased, put_back))
        self._empty.clear()
        self._loop.wake()

    async def flush(self) -> None:
        """Put back all that is there, without a loop."""
        while batch := self._waiting[:MOST]:
            gone = await lanes.put_back(self._pool, self._worker, [each.put_back for each in batch])
            if gone:
                logger.info("%d attempts that were to be put back are others' already", len(gone))
            del self._waiting[: len(batch)]
            for each in batch:
                self._returned(each.leased)
            if at_once := {queue_of(each.leased.lane_id) for each in batch if each.put_back.delay <= AT_ONCE}:
                self._notify(at_once)
        self._empty.set()

    async def _step(self) -> float:
        await self.flush()
        return RECHECK_SECONDS
