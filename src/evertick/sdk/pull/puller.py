"""Leases attempts of one queue by long polls, whenever there is room for them."""

import asyncio
import time
from collections.abc import Callable, Sequence

from evertick.client import ApiError, AsyncClient
from evertick.contract.workers import Lease
from evertick.runtime.loop import Loop
from evertick.sdk.pull.patience import Patience

WAIT_SECONDS = 20.0
MOST = 1000
FULL_SECONDS = 1.0
EARLY_SECONDS = 1.0
HANG_UP_SECONDS = 1.0
"""A poll that finds work is answered long before that; one that is not has nothing to lose."""


class Puller:
    """`room` says how many may come now; `taken` gets what came, and when it was asked for."""

    def __init__(  # noqa: PLR0913 - from where, for whom and how much
        self,
        client: AsyncClient,
        queue: str,
        worker_id: str,
        *,
        handlers: Sequence[str],
        room: Callable[[], int],
        taken: Callable[[Lease, float], None],
    ) -> None:
        self._client = client
        self._queue = queue
        self._worker_id = worker_id
        self._handlers = handlers
        self._room = room
        self._taken = taken
        self._is_full = False
        self._is_stopping = False
        self._asking: asyncio.Task[Lease] | None = None
        self._patience = Patience(f"queue {queue}")
        self._loop = Loop(f"lease {queue}", self._step)

    def start(self) -> None:
        self._loop.start()

    def wake(self) -> None:
        """There is room again."""
        if self._is_full:
            self._loop.wake()

    async def stop(self) -> None:
        """Lease no more. What is on its way still comes; then the line is cut."""
        self._is_stopping = True
        stopping = asyncio.create_task(self._loop.stop())
        await asyncio.wait({stopping}, timeout=HANG_UP_SECONDS)
        if self._asking is not None:
            self._asking.cancel()
        await stopping

    async def _step(self) -> float:
        most = min(self._room(), MOST)
        self._is_full = most <= 0
        if self._is_full:
            return FULL_SECONDS
        asked = time.monotonic()
        poll = self._client.workers.lease(
            self._queue, self._worker_id, max=most, wait_seconds=WAIT_SECONDS, handlers=self._handlers
        )
        self._asking = asyncio.create_task(poll)
        try:
            lease = await self._asking
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            return 0
        except ApiError as error:
            return self._patience.failed(error)
        finally:
            self._asking = None
        self._patience.succeeded()
        if lease.attempts:
            self._taken(lease, asked)
            return 0
        # A server that stops sends its guests home early: they must not all stand at its door again at once.
        return max(0.0, EARLY_SECONDS - (time.monotonic() - asked))
