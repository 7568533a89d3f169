"""Timers grouped by what decides when they fire: what a forecast is counted from. Called by the use cases."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.database import SCAN_SECONDS, scanning
from evertick.store.statements import Connection


class RuleTimers(NamedTuple):
    """The timers of one rule in groups, each due in one minute. Those of ticks are due so long after their fire time.

    For each group: the earliest fire time, the lag, the beginning of the minute, the number of timers. `canonical` is
    None for a rule that is gone. `sample_job_ids` may have the same job twice.
    """

    rule_id: int
    is_tick: bool
    canonical: str | None
    fires_us: list[int]
    lags_s: list[int]
    dues_us: list[int]
    jobs: list[int]
    sample_job_ids: list[int]


class ForecastFilter(NamedTuple):
    """Whose timers: of a tenant, or of all; of jobs with these labels, as JSON; of a queue."""

    tenant_id: int | None
    labels: str = "{}"
    queue: str | None = None


class SampleJob(NamedTuple):
    job_id: int
    name: str
    schedule: str | None
    timezone: str


_SQL = statements.load("forecast")
_IN_PARTITIONS = _SQL["in_partitions"].rows(RuleTimers)
_OF_TENANT = _SQL["of_tenant"].rows(RuleTimers)
_OF_ALL = _SQL["of_all"].rows(RuleTimers)
_QUEUE_IDS = _SQL["queue_ids"].values(int)
_SAMPLE_JOBS = _SQL["sample_jobs"].rows(SampleJob)


async def in_partitions(
    connection: Connection, wanted: ForecastFilter, partitions: Sequence[int], to_at: datetime, *, by_second: bool
) -> Iterator[RuleTimers]:
    """Timers in some partitions, by index. `by_second`: lags are whole seconds, not minutes."""
    chosen = {"partitions": partitions, "to_at": to_at, "queue": wanted.queue, "labels": wanted.labels}
    chosen["by_second"] = by_second
    if wanted.tenant_id is None:
        return await _IN_PARTITIONS.lazily(connection, SCAN_SECONDS, **chosen)
    return await _OF_TENANT.lazily(connection, SCAN_SECONDS, tenant_id=wanted.tenant_id, **chosen)


async def of_all(
    connection: Connection, wanted: ForecastFilter, to_at: datetime, *, by_second: bool
) -> Iterator[RuleTimers]:
    """Timers in all partitions, by reading all there are. It knows no labels."""
    queue_ids = None
    if wanted.queue is not None:
        queue_ids = await _QUEUE_IDS.all(connection, queue=wanted.queue, tenant_id=wanted.tenant_id)
    chosen = {"tenant_id": wanted.tenant_id, "to_at": to_at, "queue_ids": queue_ids, "by_second": by_second}
    async with scanning(connection) as session:
        return await _OF_ALL.lazily(session, SCAN_SECONDS, **chosen)


async def sample_jobs(connection: Connection, job_ids: Collection[int]) -> list[SampleJob]:
    return await _SAMPLE_JOBS.all(connection, job_ids=list(job_ids))
