"""What tenants use of their quotas. Called by the use cases."""

from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection

_SQL = statements.load("quotas")


class Activity(NamedTuple):
    """Attempts of a tenant: those with a worker, and those that wait for one."""

    running: int
    ready: int


class Stored(NamedTuple):
    """Bytes that a tenant stores: of its jobs with their versions and the audit log, and of kept answers."""

    bytes: int
    answer_bytes: int


async def stored(connection: Connection, tenant_id: int) -> Stored:
    row = await _SQL["stored"].fetchrow(connection, tenant_id=tenant_id)
    assert row is not None
    return Stored(row["bytes"] or 0, row["answer_bytes"] or 0)


async def jobs(connection: Connection, tenant_id: int, most: int) -> int:
    """How many jobs a tenant has, counted up to `most`."""
    count: int = await _SQL["jobs"].fetchval(connection, tenant_id=tenant_id, most=most)
    return count


async def activity(connection: Connection, tenant_id: int, most_per_lane: int) -> Activity:
    row = await _SQL["activity"].fetchrow(connection, tenant_id=tenant_id, most=most_per_lane)
    assert row is not None
    return Activity(*row)
