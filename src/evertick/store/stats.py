"""Figures for people. Called by the use cases."""

from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection

_SQL = statements.load("stats")


class Recent(NamedTuple):
    """What was fired lately; `lags_ms` are its percentiles 50, 95, 99 and 100."""

    fired: int
    finished: int
    succeeded: int
    lags_ms: list[float]


class OldestDue(NamedTuple):
    due_at: datetime
    now_at: datetime


async def recent(connection: Connection, tenant_id: int | None, seconds: float, most_per_lane: int) -> Recent:
    row = await _SQL["recent"].fetchrow(connection, tenant_id=tenant_id, seconds=seconds, most=most_per_lane)
    assert row is not None
    return Recent(*row)


async def oldest_due(connection: Connection, tenant_id: int, most_per_partition: int) -> OldestDue | None:
    """A tenant's timer that should have been fired first, if it is among the first due of its partition."""
    row = await _SQL["oldest_due"].fetchrow(connection, tenant_id=tenant_id, most=most_per_partition)
    return None if row is None else OldestDue(*row)


async def leases(connection: Connection) -> int:
    count: int = await _SQL["leases"].fetchval(connection)
    return count
