"""Measures how late the event loop comes to what is due: whatever blocks it delays all that the process does."""

import time
from collections.abc import Callable

from evertick.runtime.loop import Loop

INTERVAL_SECONDS = 0.1


class LoopDelay:
    """Tells `observe` after each interval how many seconds later than planned the loop came back."""

    def __init__(self, observe: Callable[[float], None], interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._observe = observe
        self._interval = interval_seconds
        self._due = 0.0
        self._loop = Loop("loop delay", self._step)

    def start(self) -> None:
        self._due = time.monotonic()
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    async def _step(self) -> float:
        now = time.monotonic()
        self._observe(max(0.0, now - self._due))
        self._due = now + self._interval
        return self._interval
