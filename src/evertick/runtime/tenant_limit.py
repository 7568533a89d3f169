"""A limit on what one tenant has under way at once, so that no tenant takes all connections of a pool."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TooManyAtOnce(Exception):  # noqa: N818 - says what is wrong
    """The tenant has as much under way, and waiting for that, as it may have."""


class TenantLimit:
    """At most `limit` at once of each tenant. Further ones wait in line behind those of their own tenant.

    No more than `most_waiting` wait, and none longer than `wait_seconds`: those are told TooManyAtOnce. None: no limit.
    """

    def __init__(self, limit: int, *, most_waiting: int | None = None, wait_seconds: float | None = None) -> None:
        self._limit = limit
        self._most = None if most_waiting is None else limit + most_waiting
        self._wait_seconds = wait_seconds
        self._slots: dict[int, asyncio.Semaphore] = {}
        self._users: dict[int, int] = {}

    @asynccontextmanager
    async def slot(self, tenant_id: int) -> AsyncIterator[None]:
        """Who holds a slot must not ask for another one."""
        users = self._users.get(tenant_id, 0)
        if self._most is not None and users >= self._most:
            raise TooManyAtOnce
        slots = self._slots.setdefault(tenant_id, asyncio.Semaphore(self._limit))
        self._users[tenant_id] = users + 1
        try:
            if slots.locked():  # waiting costs a timer
                await self._wait(slots)
            else:
                await slots.acquire()
            try:
                yield
            finally:
                slots.release()
        finally:
            self._users[tenant_id] -= 1
            if not self._users[tenant_id]:
                del self._users[tenant_id], self._slots[tenant_id]

    async def _wait(self, slots: asyncio.Semaphore) -> None:
        try:
            async with asyncio.timeout(self._wait_seconds):
                await slots.acquire()
        except TimeoutError:
            raise TooManyAtOnce from None
