"""A cache for one result that many callers need."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Cached(Generic[_T]):
    """What `compute` returns or raises, cached for so many seconds. Calls during a computation wait for it."""

    def __init__(self, compute: Callable[[], Awaitable[_T]], seconds: float) -> None:
        self._compute = compute
        self._seconds = seconds
        self._until = 0.0
        self._task: asyncio.Task[_T] | None = None

    async def get(self) -> _T:
        if self._task is None or (self._task.done() and time.monotonic() > self._until):
            self._task = asyncio.create_task(self._computed())
            self._task.add_done_callback(_look_at)
        return await asyncio.shield(self._task)  # one of the callers may be cancelled

    async def _computed(self) -> _T:
        try:
            return await self._compute()
        finally:
            self._until = time.monotonic() + self._seconds


def _look_at(task: "asyncio.Task[_T]") -> None:
    """Mark an error as retrieved, so that it is not reported as unhandled when all callers have gone."""
    if not task.cancelled():
        task.exception()
