"""Puts back attempts that were leased and never started: others may lease them, and nothing counts as a try.

An attempt stays held here until the source has answered for it, so that its lease is extended meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable

from evertick.domain.attempt import Attempt
from evertick.executor.source import RecordFailure, Source, UnstartedAttempt
from evertick.runtime.logs import run_fields

logger = logging.getLogger("evertick.worker")

MAX_ATTEMPTS = 1000
"""In one request."""
RECHECK_SECONDS = 60.0


class PutBacks:
    """Collects attempts and puts them back together. `done` gets each when that is done."""

    def __init__(self, source: Source, done: Callable[[Attempt], None]) -> None:
        self._source = source
        self._done = done
        self._waiting: list[UnstartedAttempt] = []
        self._loop = source.loop("put back", self._step)
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

    def add(self, unstarted: UnstartedAttempt) -> None:
        self._waiting.append(unstarted)
        self._empty.clear()
        self._loop.wake()

    async def flush(self) -> None:
        """Put back all that is there, without a loop."""
        while batch := self._waiting[:MAX_ATTEMPTS]:
            await self._put_back(batch)
            del self._waiting[: len(batch)]
            for each in batch:
                self._done(each.attempt)
        self._empty.set()

    async def _put_back(self, batch: list[UnstartedAttempt]) -> None:
        """Put a batch back. One attempt that the source refuses is left to its lease, and holds up no other."""
        try:
            await self._source.put_back(batch)
        except Exception as error:
            if self._source.failure_of(error) is not RecordFailure.UNSTORABLE:
                raise
            if len(batch) > 1:
                for each in batch:
                    await self._put_back([each])
                return
            refused = batch[0].attempt
            logger.warning(
                "an attempt of %s cannot be put back, so its lease runs out: %s",
                refused.name,
                error,
                extra=run_fields(refused),
            )
            self._source.forget([refused.lease_id])

    async def _step(self) -> float:
        await self.flush()
        return RECHECK_SECONDS
