"""Keeps an executor's leases alive from a thread of its own, so that a handler which blocks the loop keeps them.

It trusts the loop only so far: if that has not turned for longer than any handler may take, the worker hangs, and its
attempts are better left to others.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from evertick.executor.held_leases import HeldLeases
from evertick.executor.source import Source

logger = logging.getLogger("evertick.worker")

MARGIN_SECONDS = 10.0
RECHECK_SECONDS = 1.0
"""How soon to look whether a loop turns again that hung, or a process that stood still."""
STOP_SECONDS = 1.0
"""For a beat that is under way when the worker stops."""


class HeartbeatThread:
    """A thread with its own event loop, on which the source has a connection of its own.

    The executor's loop shows that it turns by `alive`.
    """

    def __init__(
        self, source: Source, held_leases: HeldLeases, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._held_leases = held_leases
        self._monotonic = monotonic
        self._seen = time.monotonic()
        self._hangs = False
        self._beats = source.loop("heartbeat", self._step, lambda: source.heartbeat_seconds)
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, name="evertick-heartbeat", daemon=True)

    def start(self) -> None:
        self.alive()
        self._thread.start()

    def alive(self) -> None:
        """The executor's loop turns."""
        self._seen = time.monotonic()

    def hurry(self) -> None:
        """Beat now: an attempt waits for its lease to be extended."""
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
        await self._leave()
        await self._source.hang_up()

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._source.leave()
        except Exception as error:  # noqa: BLE001 - it counts as gone soon after its last heartbeat
            logger.info("the worker could not say that it stops: %r", error)

    async def _step(self) -> float:
        held = self._held_leases.snapshot()
        pause = self._source.heartbeat_seconds
        if self._is_hung(max((lease.longest for lease in held), default=0)):
            return min(pause, RECHECK_SECONDS)
        try:
            async with asyncio.timeout(self._source.heartbeat_timeout_seconds):
                if held:
                    asked = self._monotonic()
                    self._held_leases.extended(held, await self._source.extend(held), asked)
                await self._source.announce()
        except BaseException:
            await self._source.hang_up()
            raise
        return pause

    def _is_hung(self, longest: float) -> bool:
        silence = time.monotonic() - self._seen
        was_hung, self._hangs = self._hangs, silence > longest + MARGIN_SECONDS
        if self._hangs and not was_hung:
            logger.error("the event loop has not turned for %.0f s: the worker's leases are left to run out", silence)
        return self._hangs
