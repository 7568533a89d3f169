"""Keeps a worker's leases alive from a thread of its own, so that a handler which blocks the loop does not lose them.

It trusts the loop only so far: when that has not moved for longer than any handler may take, the worker hangs, and its
attempts are better left to others.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from evertick.roles.worker.holdings import Holdings
from evertick.runtime import timeouts
from evertick.runtime.loop import Loop
from evertick.store import lanes
from evertick.store.database import Session, connect

logger = logging.getLogger("evertick.worker")

MARGIN_SECONDS = 10.0
RECHECK_SECONDS = 1.0
"""Whether a loop turns again that hung, or a process that stood still."""
STOP_SECONDS = 1.0
"""For a beat that is under way when the worker stops."""


class Heartbeat:
    """A thread with its own event loop and connection. The worker's loop shows that it lives by `alive`."""

    def __init__(  # noqa: PLR0913 - whose leases, where
        self,
        url: str,
        worker: str,
        holdings: Holdings,
        lease_time: timedelta,
        *,
        pooler: bool,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._worker = worker
        self._holdings = holdings
        self._lease_time = lease_time
        self._pooler = pooler
        self._monotonic = monotonic
        self._pause = lease_time.total_seconds() / 3
        self._connection: Session | None = None
        self._seen = time.monotonic()
        self._hangs = False
        self._beats = Loop("heartbeat", self._step)
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, name="evertick-heartbeat", daemon=True)

    def start(self) -> None:
        self.alive()
        self._thread.start()

    def alive(self) -> None:
        """The worker's loop turns."""
        self._seen = time.monotonic()

    def hurry(self) -> None:
        """Beat now: something waits for word of its lease."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._beats.wake)

    async def stop(self) -> None:
        """End the thread, wherever it is."""
        await asyncio.to_thread(self._started.wait)
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join)

    def _main(self) -> None:
        asyncio.run(self._beat())

    async def _beat(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._beats.start()
        self._started.set()
        await self._stop.wait()
        await self._beats.stop(STOP_SECONDS)
        self._hang_up()

    async def _step(self) -> float:
        held = self._holdings.snapshot()
        if self._is_hung(max((lease.longest for lease in held), default=0)):
            return min(self._pause, RECHECK_SECONDS)
        if held:
            try:
                async with asyncio.timeout(self._pause):
                    asked = self._monotonic()
                    mine = [lease.lease_id for lease in held]
                    kept = await lanes.extend(await self._connected(), self._worker, self._lease_time, mine)
            except BaseException:
                self._hang_up()
                raise
            self._holdings.extended(held, kept, asked)
        return self._pause

    def _is_hung(self, longest: float) -> bool:
        silence = time.monotonic() - self._seen
        was_hung, self._hangs = self._hangs, silence > longest + MARGIN_SECONDS
        if self._hangs and not was_hung:
            logger.error("the event loop has not turned for %.0f s: the worker's leases are left to run out", silence)
        return self._hangs

    async def _connected(self) -> Session:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(
                self._url, pooler=self._pooler, timeouts=timeouts.heartbeat(self._lease_time)
            )
        return self._connection

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()
