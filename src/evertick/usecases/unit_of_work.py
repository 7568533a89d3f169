"""Several use cases in one transaction, which do all or nothing; or, without one, on a single connection."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from evertick.store.database import Pool
from evertick.usecases.context import Tenant


@asynccontextmanager
async def unit_of_work(tenant: Tenant) -> AsyncIterator[Tenant]:
    """The tenant inside one transaction, which commits when the block ends without an error.

    Notifications of its use cases are sent after the commit: until then the changes may be undone.
    """
    changed: list[int] = []
    assert isinstance(tenant.pool, Pool)
    async with tenant.pool.acquire() as session, session.transaction():
        yield replace(tenant, pool=session, notify=changed.extend)
    if changed:
        tenant.notify(changed)


@asynccontextmanager
async def single_connection(tenant: Tenant) -> AsyncIterator[Tenant]:
    """The tenant on one connection, without a transaction around what it does."""
    assert isinstance(tenant.pool, Pool)
    async with tenant.pool.acquire() as session:
        yield replace(tenant, pool=session)
