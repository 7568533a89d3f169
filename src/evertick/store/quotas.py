"""What tenants use of their quotas. Called by the use cases."""

from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection

_SQL = statements.load("quotas")


class Activity(NamedTuple):
    """Attempts of a tenant: those with a worker, and those that wait for one."""

    running: int
    ready: int


async def jobs(connection: Connection, tenant_id: int, most: int) -> int:
    """How many jobs a tenant has, counted up to `most`."""
    count: int = await _SQL["jobs"].fetchval(connection, tenant_id=tenant_id, most=most)
    return count


async def activity(connection: Connection, tenant_id: int, most_per_lane: int) -> Activity:
    row = await _SQL["activity"].fetchrow(connection, tenant_id=tenant_id, most=most_per_lane)
    assert row is not None
    return Activity(*row)
