"""A limit on what one tenant has under way at once, so that no tenant takes all connections of a pool."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TenantLimit:
    """At most `limit` at once of each tenant. Further ones wait in line behind those of their own tenant."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slots: dict[int, asyncio.Semaphore] = {}
        self._users: dict[int, int] = {}

    @asynccontextmanager
    async def slot(self, tenant_id: int) -> AsyncIterator[None]:
        slots = self._slots.setdefault(tenant_id, asyncio.Semaphore(self._limit))
        self._users[tenant_id] = self._users.get(tenant_id, 0) + 1
        try:
            async with slots:
                yield
        finally:
            self._users[tenant_id] -= 1
            if not self._users[tenant_id]:
                del self._users[tenant_id], self._slots[tenant_id]
