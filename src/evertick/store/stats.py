"""Figures for people. Called by the use cases."""

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


async def recent(connection: Connection, tenant_id: int | None, seconds: float, most_per_lane: int) -> Recent:
    row = await _SQL["recent"].fetchrow(connection, tenant_id=tenant_id, seconds=seconds, most=most_per_lane)
    assert row is not None
    return Recent(*row)


async def leases(connection: Connection) -> int:
    count: int = await _SQL["leases"].fetchval(connection)
    return count
