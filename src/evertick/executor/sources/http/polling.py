"""Leases attempts of one queue by long polls, whenever there is room for them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from evertick.client import AsyncClient
from evertick.contract.workers import Lease
from evertick.runtime.loop import Loop

MAX_ATTEMPTS = 1000
FULL_SECONDS = 1.0
EARLY_SECONDS = 1.0
HANG_UP_SECONDS = 1.0
"""A poll that finds work is answered long before that; one that is not has nothing to lose."""


class LongPoll:
    """`room` says how many attempts may come now, and `wait_seconds` for how long to wait; `answered` gets each answer,
    and when it was asked for.
    """

    def __init__(  # noqa: PLR0913 - from where, for whom and how much
        self,
        client: AsyncClient,
        queue: str,
        worker_id: str,
        *,
        handlers: Sequence[str],
        room: Callable[[], int],
        wait_seconds: Callable[[], float],
        answered: Callable[[Lease, float], None],
        loop: Callable[[str, Callable[[], Awaitable[float]]], Loop],
    ) -> None:
        self._client = client
        self._queue = queue
        self._worker_id = worker_id
        self._handlers = handlers
        self._room = room
        self._wait_seconds = wait_seconds
        self._answered = answered
        self._is_full = False
        self._is_stopping = False
        self._request: asyncio.Task[Lease] | None = None
        self._loop = loop(f"lease {queue}", self._step)

    def start(self) -> None:
        self._loop.start()

    def wake(self) -> None:
        """There is room again."""
        if self._is_full:
            self._loop.wake()

    async def stop(self) -> None:
        """Lease no more. What is on its way still comes; then the connection is closed."""
        self._is_stopping = True
        stopping = asyncio.create_task(self._loop.stop())
        await asyncio.wait({stopping}, timeout=HANG_UP_SECONDS)
        if self._request is not None:
            self._request.cancel()
        await stopping

    async def lease(self, most: int, wait_seconds: float) -> int:
        """Poll once; returns how many attempts came."""
        asked = time.monotonic()
        poll = self._client.workers.lease(
            self._queue, self._worker_id, max=most, wait_seconds=wait_seconds, handlers=self._handlers
        )
        self._request = asyncio.create_task(poll)
        try:
            lease = await self._request
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            return 0
        finally:
            self._request = None
        self._answered(lease, asked)
        return len(lease.attempts)

    async def _step(self) -> float:
        most = min(self._room(), MAX_ATTEMPTS)
        self._is_full = most <= 0
        if self._is_full:
            return FULL_SECONDS
        asked = time.monotonic()
        wait_seconds = self._wait_seconds()
        if await self.lease(most, wait_seconds) or not wait_seconds:
            return 0
        # A server that stops answers its polls early: they must not all come back at once.
        return max(0.0, EARLY_SECONDS - (time.monotonic() - asked))
