"""Keeps the event loop responsive: cuts long work into slices, and measures the delay of what is due.

Work that may take long in one step belongs into `background`.
"""

import asyncio
import time
from collections.abc import Callable

from evertick.runtime.loop import Loop

SLICE_SECONDS = 0.005
DELAY_INTERVAL_SECONDS = 0.1


class Slices:
    """Cuts a long piece of work on the loop: `if slices.is_over: await slices.pause()` between two small steps."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + SLICE_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether the slice is used up. Checked for each of very many steps, so it is no coroutine."""
        return time.perf_counter() > self._until

    async def pause(self) -> None:
        """Let other tasks run, and begin the next slice."""
        await asyncio.sleep(0)
        self._until = time.perf_counter() + SLICE_SECONDS


class LoopDelay:
    """Calls `observe` after each interval with how many seconds later than planned the loop ran it."""

    def __init__(self, observe: Callable[[float], None], interval_seconds: float = DELAY_INTERVAL_SECONDS) -> None:
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
