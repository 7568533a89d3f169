"""One job over time, for its page: its days, its latest runs, and its versions with what each changed.

A day that is over for a while does not change: it is read once and kept. A look reads the latest days, unless that was
done seconds ago, then those that are missing, newest first, until its time is up; the next one reads what is left.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from evertick.contract.job import Job
from evertick.contract.runs import RunOrGap
from evertick.domain.schedule.instants import DAY_S, SECOND_US, from_us, to_us
from evertick.store.engine import lanes
from evertick.store.jobs import job_history, runs
from evertick.store.jobs.job_history import DayRow, VersionRow
from evertick.store.jobs.runs import FireTimeRange, GapRow
from evertick.usecases.context import TenantContext, job_key
from evertick.usecases.runs import reading

DAYS = 91
"""Thirteen weeks."""
SETTLED_DAYS = 2
REREAD_SECONDS = 10.0
STRETCH_DAYS = 7
"""Read with one statement, if there are no more runs than `MAX_PER_STRETCH`."""
MAX_PER_STRETCH = 10_000
READ_SECONDS = 0.1
MAX_JOBS_KEPT = 1_000
MAX_GAPS = 200
LATEST_RUNS = 100
MAX_VERSIONS = 20
DAY_US = DAY_S * SECOND_US
_LOST_WHEN_IDLE = ("payload", "labels", "headers")


class Day(NamedTuple):
    """A day of a job, by UTC. `is_counted`: its runs were read; `is_partial`: there are more of them than were."""

    at: datetime
    runs: int = 0
    succeeded: int = 0
    failed: int = 0
    gaps: tuple[str, ...] = ()
    is_counted: bool = False
    is_partial: bool = False


class History(NamedTuple):
    """`latest` has runs and gaps, the newest first."""

    now_at: datetime
    days: tuple[Day, ...]
    latest: tuple[RunOrGap, ...]


class Change(NamedTuple):
    """A field that a version changed; None: it was, or is, not there."""

    field: str
    before: str | None
    after: str | None


class Version(NamedTuple):
    """A version of a job. Of the oldest that is kept it is not known what it changed, unless it is the first."""

    spec_version: int
    effective_at: datetime
    actor: str | None
    changes: tuple[Change, ...] | None


@dataclass(slots=True)
class _Kept:
    days: dict[int, Day] = field(default_factory=dict)
    reread_at: float = 0.0


class Histories:
    """The histories of jobs, with what is kept between looks."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}

    async def get(self, tenant: TenantContext, job: Job) -> History:
        """A job's history. The caller has read the job, so that it is the tenant's."""
        key = job_key(job.job_id)
        now_at = await lanes.clock(tenant.pool)
        today = to_us(now_at) // DAY_US
        kept = self._of(key)
        first = max(today - DAYS + 1, to_us(job.created_at) // DAY_US)
        if time.monotonic() >= kept.reread_at or not all(day in kept.days for day in range(first, today + 1)):
            await _read_days(tenant, key, kept.days, today, first)
            kept.reread_at = time.monotonic() + REREAD_SECONDS
        gaps = await runs.gaps(tenant.pool, key, FireTimeRange(_at(today - DAYS), now_at, 0), MAX_GAPS)
        latest = await reading.job_runs(tenant, job.job_id, limit=LATEST_RUNS)
        days = (kept.days.get(day, Day(_at(day))) for day in range(today - DAYS + 1, today + 1))
        return History(now_at, tuple(_with_gaps(day, gaps) for day in days), latest.items)

    def _of(self, key: int) -> _Kept:
        if key not in self._kept and len(self._kept) >= MAX_JOBS_KEPT:
            self._kept.clear()
        return self._kept.setdefault(key, _Kept())


def _at(day: int) -> datetime:
    return from_us(day * DAY_US)


async def _read_days(tenant: TenantContext, key: int, kept: dict[int, Day], today: int, first: int) -> None:
    began, high = time.monotonic(), today
    for day in [day for day in kept if day < first]:
        del kept[day]
    while high >= first and time.monotonic() < began + READ_SECONDS:
        low = max(high - (SETTLED_DAYS if high == today else STRETCH_DAYS) + 1, first)
        is_settled = high <= today - SETTLED_DAYS
        if not (is_settled and all(day in kept for day in range(low, high + 1))):
            stretch = FireTimeRange(_at(low), _at(high + 1), max(0, low * DAY_US - SECOND_US))
            found = await job_history.days(tenant.pool, key, stretch, MAX_PER_STRETCH)
            low = _keep(kept, found, low, high)
        high = low - 1


def _keep(kept: dict[int, Day], found: list[DayRow], low: int, high: int) -> int:
    """Keep the days of a stretch. If it was cut, the first of them is partial, and those before it were not read."""
    by_day = {row.day: row for row in found}
    is_cut = sum(row.runs for row in found) >= MAX_PER_STRETCH
    first = min(by_day) if is_cut else low
    for day in range(first, high + 1):
        row = by_day.get(day, DayRow(day, 0, 0, 0))
        partial = is_cut and day == first
        kept[day] = Day(_at(day), row.runs, row.succeeded, row.failed, is_counted=True, is_partial=partial)
    return first


def _with_gaps(day: Day, gaps: list[GapRow]) -> Day:
    ends_at = day.at + timedelta(days=1)
    reasons = dict.fromkeys(gap.reason for gap in gaps if gap.first_at < ends_at and gap.last_at >= day.at)
    return day._replace(gaps=tuple(reasons))


async def target_of(tenant: TenantContext, job_id: str, spec_version: int) -> dict[str, Any]:
    """The target of one version of a job of the tenant, as it is stored; empty if the version is not kept."""
    spec = await job_history.version(tenant.pool, job_key(job_id), spec_version)
    target: dict[str, Any] = {} if spec is None else json.loads(spec).get("target") or {}
    return target


async def versions(tenant: TenantContext, job_id: str) -> list[Version]:
    """The newest versions of a job, the newest first."""
    most = MAX_VERSIONS + 1
    rows = await job_history.versions(tenant.pool, tenant.tenant_id, job_key(job_id), subject=job_id, most=most)
    older = [*rows[1:], None]
    return [_version(row, before) for row, before in zip(rows, older, strict=True)][:MAX_VERSIONS]


def _version(row: VersionRow, before: VersionRow | None) -> Version:
    is_known = before is not None and before.spec_version == row.spec_version - 1
    changes = tuple(_changes(_document(before), _document(row))) if before is not None and is_known else None
    return Version(row.spec_version, row.effective_at, row.actor, changes)


def _document(row: VersionRow) -> dict[str, str]:
    spec = {**json.loads(row.spec), **({} if row.payload is None else {"payload": json.loads(row.payload)})}
    return dict(_flat(spec, ""))


def _flat(value: Mapping[str, Any], at: str) -> Iterator[tuple[str, str]]:
    for name, item in value.items():
        if name == "target" and isinstance(item, Mapping):
            yield from _flat(item, f"{at}{name}.")
        else:
            yield f"{at}{name}", item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for name in dict.fromkeys([*after, *before]):
        if before.get(name) != after.get(name):
            yield Change(name, before.get(name), after.get(name))


def may_be_lost(field: str) -> bool:
    """Whether a version that no run needs any more is stored without this field."""
    return field.rpartition(".")[2] in _LOST_WHEN_IDLE
