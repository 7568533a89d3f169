"""Attempts that leave an executor without an outcome, in batches: those that were never started are put back, and those
that a broker has accepted are handed over to its consumers.

An attempt stays held here until the source has answered for it, so that its lease is extended meanwhile.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from evertick.domain.attempt import Attempt
from evertick.executor.source import RecordFailure, Source
from evertick.runtime.logs import run_fields

logger = logging.getLogger("evertick.worker")

MAX_ATTEMPTS = 1000
"""In one request."""
RECHECK_SECONDS = 60.0

_T = TypeVar("_T")


class Leaving(Generic[_T]):
    """Collects what leaves in one way and sends it together. `done` gets each attempt when the source has answered."""

    def __init__(
        self,
        source: Source,
        way: str,
        send: Callable[[Sequence[_T]], Awaitable[None]],
        attempt_of: Callable[[_T], Attempt],
        done: Callable[[Attempt], None],
    ) -> None:
        self._source = source
        self._way = way
        self._send = send
        self._attempt_of = attempt_of
        self._done = done
        self._waiting: list[_T] = []
        self._loop = source.loop(way, self._step)
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        self._loop.start()

    async def stop(self, within_seconds: float) -> None:
        await self._loop.stop(within_seconds)

    async def drain(self) -> None:
        """Return when everything has left."""
        await self._empty.wait()

    def add(self, leaving: _T) -> None:
        self._waiting.append(leaving)
        self._empty.clear()
        self._loop.wake()

    async def flush(self) -> None:
        """Send all that is there, without a loop."""
        while batch := self._waiting[:MAX_ATTEMPTS]:
            await self._send_all(batch)
            del self._waiting[: len(batch)]
            for each in batch:
                self._done(self._attempt_of(each))
        self._empty.set()

    async def _send_all(self, batch: list[_T]) -> None:
        """Send a batch. One attempt that the source refuses is left to its lease, and holds up no other."""
        try:
            await self._send(batch)
        except Exception as error:
            if self._source.failure_of(error) is not RecordFailure.UNSTORABLE:
                raise
            if len(batch) > 1:
                for each in batch:
                    await self._send_all([each])
                return
            refused = self._attempt_of(batch[0])
            logger.warning(
                "the source refuses to %s an attempt of %s, so its lease runs out: %s",
                self._way,
                refused.name,
                error,
                extra=run_fields(refused),
            )
            self._source.forget([refused.lease_id])

    async def _step(self) -> float:
        await self.flush()
        return RECHECK_SECONDS
