"""What tenants use, and what their jobs did lately: for quotas and statistics. Called by the use cases."""

from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.database import Pool
from evertick.store.statements import Connection


class Activity(NamedTuple):
    """Attempts of a tenant: those with a worker, and those that wait for one."""

    running: int
    ready: int


class Stored(NamedTuple):
    """Bytes that a tenant stores: of its jobs with their versions and the audit log, and of stored answers."""

    bytes: int
    answer_bytes: int


class Recent(NamedTuple):
    """What was fired lately; `lags_ms` are its percentiles 50, 95, 99 and 100."""

    fired: int
    finished: int
    succeeded: int
    lags_ms: list[float]


class OldestDue(NamedTuple):
    due_at: datetime
    now_at: datetime


class _Sums(NamedTuple):
    bytes: int | None
    answer_bytes: int | None


_SQL = statements.load("usage")
_JOBS = _SQL["jobs"].values(int)
_STORED = _SQL["stored"].rows(_Sums)
_SUM_STORAGE = _SQL["sum_storage"].values(int)
_ACTIVITY = _SQL["activity"].rows(Activity)
_RECENT = _SQL["recent"].rows(Recent)
_OLDEST_DUE = _SQL["oldest_due"].rows(OldestDue)


async def jobs(connection: Connection, tenant_id: int, most: int) -> int:
    """How many jobs a tenant has, counted up to `most`."""
    return await _JOBS.one(connection, tenant_id=tenant_id, most=most)


async def stored(connection: Connection, tenant_id: int) -> Stored:
    sums = await _STORED.one(connection, tenant_id=tenant_id)
    return Stored(sums.bytes or 0, sums.answer_bytes or 0)


async def sum_storage(pool: Pool, most: int) -> int:
    """Add some changes of tenants' storage to the sums, and say how many."""
    return await _SUM_STORAGE.one(pool, most=most)


async def activity(connection: Connection, tenant_id: int, most_per_lane: int) -> Activity:
    return await _ACTIVITY.one(connection, tenant_id=tenant_id, most=most_per_lane)


async def recent(connection: Connection, tenant_id: int | None, seconds: float, most_per_lane: int) -> Recent:
    return await _RECENT.one(connection, tenant_id=tenant_id, seconds=seconds, most=most_per_lane)


async def oldest_due(connection: Connection, tenant_id: int, most_per_partition: int) -> OldestDue | None:
    """A tenant's timer that should have been fired first, if it is among the first due of its partition."""
    return await _OLDEST_DUE.one_or_none(connection, tenant_id=tenant_id, most=most_per_partition)
