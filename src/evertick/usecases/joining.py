"""Several use cases in one transaction: all of what they do, or nothing."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from evertick.store.database import Pool
from evertick.store.statements import Connection
from evertick.usecases.catalogue import Catalogue, Ids, Place
from evertick.usecases.context import Tenant


@asynccontextmanager
async def joined(tenant: Tenant) -> AsyncIterator[Tenant]:
    """The tenant inside one transaction, which commits when the block ends well.

    What its use cases want remembered or told waits for that: until then it may yet be undone.
    """
    told: list[int] = []
    catalogue = _Uncommitted(tenant.catalogue)
    assert isinstance(tenant.pool, Pool)
    async with tenant.pool.acquire() as session, session.transaction():
        yield replace(tenant, pool=session, notify=told.extend, catalogue=catalogue)
    catalogue.commit()
    if told:
        tenant.notify(told)


class _Uncommitted(Catalogue):
    """Knows what the tenant's catalogue knows, and keeps what is new to itself until the commit."""

    def __init__(self, committed: Catalogue) -> None:
        super().__init__()
        self._committed = committed
        self._new: list[tuple[int, Ids]] = []

    async def add(
        self, connection: Connection, tenant_id: int, canonicals: Mapping[bytes, str], places: Iterable[Place]
    ) -> Ids:
        return await self._committed.add(connection, tenant_id, canonicals, places)

    def remember(self, tenant_id: int, ids: Ids) -> None:
        self._new.append((tenant_id, ids))

    def commit(self) -> None:
        for tenant_id, ids in self._new:
            self._committed.remember(tenant_id, ids)
