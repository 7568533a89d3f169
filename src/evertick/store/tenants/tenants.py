"""Tenants: owners of jobs, quota and fair share; and what they use. Called by the use cases."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from evertick.contract.access import TenantPatch
from evertick.store import statements
from evertick.store.database import Pool
from evertick.store.statements import Connection


class TenantRow(NamedTuple):
    """A tenant. `weight` is its fair share. `is_host`: its admins see to all tenants."""

    tenant_id: int
    name: str
    weight: int
    created_at: datetime
    jobs_quota: int
    submits_per_second: int
    submit_burst: int
    running_quota: int
    ready_quota: int
    shortest_interval_seconds: float
    http_timeout_max_seconds: int
    storage_quota_bytes: int
    default_jitter_seconds: float
    history_days: int
    archive_days: int
    is_host: bool


class DispatchedQueue(NamedTuple):
    """A queue that dispatchers serve, and its tenant's fair share."""

    queue_id: int
    tenant_id: int
    weight: int


class TenantLimits(NamedTuple):
    """A tenant's fair share, and how long one of its webhooks may take."""

    tenant_id: int
    weight: int
    http_timeout_max_seconds: int


class _Weight(NamedTuple):
    tenant_id: int
    weight: int


class Activity(NamedTuple):
    """Attempts of a tenant: those with a worker, and those that wait for one."""

    running: int
    ready: int


class StoredBytes(NamedTuple):
    """Bytes that a tenant stores: of its jobs with their versions and the audit log, and of stored answers."""

    bytes: int
    answer_bytes: int


class RecentRuns(NamedTuple):
    """What was fired lately; `lags_ms` are its percentiles 50, 95, 99, 99.9 and 100."""

    fired: int
    finished: int
    succeeded: int
    lags_ms: list[float]


class UpcomingTimer(NamedTuple):
    """A timer that is due soon, and the job that it is of."""

    job_id: int
    name: str
    queue: str
    fire_at: datetime
    due_at: datetime
    kind: str


class OldestDue(NamedTuple):
    due_at: datetime
    now_at: datetime


class _Sums(NamedTuple):
    bytes: int | None
    answer_bytes: int | None


_SQL = statements.load("tenants")
_ADD = _SQL["add"].rows(TenantRow)
_FIND = _SQL["find"].rows(TenantRow)
_NAMED = _SQL["named"].rows(TenantRow)
_COUNT = _SQL["count"].values(int)
_DISPATCHED = _SQL["dispatched"].rows(DispatchedQueue)
_LIMITS = _SQL["limits"].rows(TenantLimits)
_ALL = _SQL["all"].rows(TenantRow)
_PAGE = _SQL["page"].rows(TenantRow)
_EDIT = _SQL["edit"].rows(TenantRow)
_WEIGHTS = _SQL["weights"].rows(_Weight)
_COUNT_JOBS = _SQL["count_jobs"].values(int)
_STORED = _SQL["stored"].rows(_Sums)
_SUM_STORAGE = _SQL["sum_storage"].values(int)
_ACTIVITY = _SQL["activity"].rows(Activity)
_COUNT_DUE = _SQL["count_due"].values(int)
_RECENT = _SQL["recent"].rows(RecentRuns)
_UPCOMING = _SQL["upcoming"].rows(UpcomingTimer)
_OLDEST_DUE = _SQL["oldest_due"].rows(OldestDue)


async def add(connection: Connection, name: str, *, weight: int) -> TenantRow | None:
    """Add a tenant. None: the name is taken."""
    return await _ADD.one_or_none(connection, name=name, weight=weight)


async def find(connection: Connection, tenant_id: int) -> TenantRow | None:
    return await _FIND.one_or_none(connection, tenant_id=tenant_id)


async def named(connection: Connection, name: str) -> TenantRow | None:
    return await _NAMED.one_or_none(connection, name=name)


async def count(connection: Connection) -> int:
    return await _COUNT.one(connection)


async def weights(connection: Connection, tenant_ids: Iterable[int]) -> dict[int, int]:
    """The fair share of each tenant."""
    return dict(await _WEIGHTS.all(connection, tenant_ids=list(tenant_ids)))


async def dispatched(connection: Connection, *, after: int, most: int) -> list[DispatchedQueue]:
    """The next queues that dispatchers serve, in the order of their ids."""
    return await _DISPATCHED.all(connection, after=after, most=most)


async def limits(connection: Connection, tenant_ids: Iterable[int]) -> list[TenantLimits]:
    return await _LIMITS.all(connection, tenant_ids=list(tenant_ids))


async def count_due(connection: Connection, tenant_id: int, most: int) -> int:
    """How many due timers of a tenant are not fired yet, among the first `most` of each partition."""
    return await _COUNT_DUE.one(connection, tenant_id=tenant_id, most=most)


async def all_tenants(connection: Connection) -> list[TenantRow]:
    return await _ALL.all(connection)


async def page(connection: Connection, *, only: int | None, after: int, most: int) -> list[TenantRow]:
    """Tenants in the order of their ids: all, or one alone."""
    return await _PAGE.all(connection, only=only, after=after, most=most)


async def edit(connection: Connection, tenant_id: int, changes: Mapping[str, float]) -> TenantRow | None:
    """Change the given fields, by their names here. None: there is no such tenant."""
    values = {name: changes.get(name) for name in TenantPatch.__struct_fields__}
    return await _EDIT.one_or_none(connection, tenant_id=tenant_id, **values)


async def count_jobs(connection: Connection, tenant_id: int, most: int) -> int:
    """How many jobs a tenant has, counted up to `most`."""
    return await _COUNT_JOBS.one(connection, tenant_id=tenant_id, most=most)


async def stored(connection: Connection, tenant_id: int) -> StoredBytes:
    sums = await _STORED.one(connection, tenant_id=tenant_id)
    return StoredBytes(sums.bytes or 0, sums.answer_bytes or 0)


async def sum_storage(pool: Pool, most: int) -> int:
    """Add some changes of tenants' storage to the sums, and say how many."""
    return await _SUM_STORAGE.one(pool, most=most)


async def activity(connection: Connection, tenant_id: int, most_per_lane: int) -> Activity:
    return await _ACTIVITY.one(connection, tenant_id=tenant_id, most=most_per_lane)


async def recent(connection: Connection, tenant_id: int | None, seconds: float, most_per_lane: int) -> RecentRuns:
    return await _RECENT.one(connection, tenant_id=tenant_id, seconds=seconds, most=most_per_lane)


async def oldest_due(connection: Connection, tenant_id: int, most_per_partition: int) -> OldestDue | None:
    """A tenant's timer that should have been fired first, if it is among the first due of its partition."""
    return await _OLDEST_DUE.one_or_none(connection, tenant_id=tenant_id, most=most_per_partition)


async def upcoming(connection: Connection, tenant_id: int, most: int) -> list[UpcomingTimer]:
    """A tenant's timers that are due next."""
    return await _UPCOMING.all(connection, tenant_id=tenant_id, most=most)
