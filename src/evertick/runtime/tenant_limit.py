"""A limit on the concurrency of each tenant, so that no tenant takes all of a shared resource."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


class LimitReached(Exception):  # noqa: N818 - says what happened
    """Too many calls of the tenant wait already, or the wait took too long."""


@dataclass(slots=True)
class _Use:
    turns: asyncio.Semaphore
    waiting: int = 0
    running: int = 0


class TenantLimit:
    """At most `limit` calls at once of each tenant. Further ones wait in the order of their arrival.

    `max_waiting`: how many may wait. `wait_seconds`: for how long. None: without a limit.
    """

    def __init__(self, limit: int, *, max_waiting: int | None = None, wait_seconds: float | None = None) -> None:
        self._limit = limit
        self._max_waiting = max_waiting
        self._wait_seconds = wait_seconds
        self._uses: dict[int, _Use] = {}

    def __len__(self) -> int:
        """How many tenants have something under way, or waiting."""
        return len(self._uses)

    async def acquire(self, tenant_id: int) -> None:
        """Wait for a slot; LimitReached if there is none in time. The caller releases it."""
        use = self._uses.setdefault(tenant_id, _Use(asyncio.Semaphore(self._limit)))
        if self._max_waiting is not None and use.waiting >= self._max_waiting:
            raise LimitReached
        use.waiting += 1
        try:
            if use.turns.locked():  # only waiting costs a timer
                async with asyncio.timeout(self._wait_seconds):
                    await use.turns.acquire()
            else:
                await use.turns.acquire()
            use.running += 1
        except TimeoutError:
            raise LimitReached from None
        finally:
            use.waiting -= 1
            self._forget_idle(tenant_id)

    def release(self, tenant_id: int) -> None:
        use = self._uses[tenant_id]
        use.running -= 1
        use.turns.release()
        self._forget_idle(tenant_id)

    @asynccontextmanager
    async def slot(self, tenant_id: int) -> AsyncIterator[None]:
        await self.acquire(tenant_id)
        try:
            yield
        finally:
            self.release(tenant_id)

    def _forget_idle(self, tenant_id: int) -> None:
        use = self._uses[tenant_id]
        if not use.waiting and not use.running:
            del self._uses[tenant_id]
