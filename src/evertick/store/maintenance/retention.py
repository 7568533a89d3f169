"""What the janitor removes: rows that are older than they are kept, and what nothing refers to any more."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from evertick.store import statements
from evertick.store.database import Pool, Session
from evertick.store.statements import row_count

AGEING = (
    "gaps",
    "withdrawals",
    "dead_letters",
    "requested_runs",
    "replays",
    "smears",
    "alerts",
    "audit_log",
    "api_keys",
)
"""Tables whose rows go when they are older than they are kept."""
ARCHIVED = frozenset({"gaps", "withdrawals"})
"""Those that are archived with a day, if days are."""
MAX_LOOKED_AT = 10_000
"""Runs of a job that one check of a version looks at."""
QUEUES_KEPT = 100
"""A tenant with no more queues than this keeps them: looking for unused ones reads all its jobs."""


class FinishedPosition(NamedTuple):
    """A position in the list of finished jobs, which begins with the oldest."""

    finished_at: datetime = datetime(1, 1, 2, tzinfo=UTC)
    job_id: int = 0


class FinishedPage(NamedTuple):
    """Some finished jobs: those to remove, and where the next page begins; None after the last."""

    removable: list[int]
    next: FinishedPosition | None


class _FinishedJob(NamedTuple):
    job_id: int
    finished_at: datetime
    is_kept_enough: bool


class CheckedVersions(NamedTuple):
    """How many superseded versions were looked at, emptied and removed."""

    checked: int
    emptied: int
    removed: int


class RulesPage(NamedTuple):
    """Some rules: the last of them, None after the last page, and how many were removed."""

    last_id: int | None
    removed: int


_SQL = statements.load("retention")
_FINISHED_ONE_OFFS = _SQL["finished_one_offs"].rows(_FinishedJob)
_CHECK_VERSIONS = _SQL["check_versions"].rows(CheckedVersions)
_SWEEP_RULES = _SQL["sweep_rules"].rows(RulesPage)
_CROWDED_TENANTS = _SQL["crowded_tenants"].values(int)
_SWEEP_QUEUES = _SQL["sweep_queues"].values(int)


async def prune(pool: Pool, table: str, before_at: datetime, most: int) -> int:
    """Remove some of the rows of one of `AGEING` that are older than an instant, and say how many."""
    return row_count(await _SQL[f"prune_{table}"].execute(pool, before_at=before_at, most=most))


async def prune_answers(pool: Pool, before_at: datetime, most: int) -> int:
    """Remove some of the answers that were stored before an instant, and say how many."""
    return row_count(await _SQL["prune_answers"].execute(pool, before_at=before_at, most=most))


async def prune_target_hosts(pool: Pool, before_at: datetime, most: int) -> int:
    """Remove some of the target hosts that no dispatcher had anything to say of since an instant, and say how many."""
    return row_count(await _SQL["prune_target_hosts"].execute(pool, before_at=before_at, most=most))


async def purge_jobs(pool: Pool, before_at: datetime, most: int) -> int:
    """Remove what is left of some jobs that were deleted before an instant, and say of how many."""
    return row_count(await _SQL["purge_jobs"].execute(pool, before_at=before_at, most=most))


async def finished_one_offs(pool: Pool, now_at: datetime, after: FinishedPosition, most: int) -> FinishedPage:
    """A page of finished jobs, and which of them have been kept for long enough by a time that is trusted."""
    rows = await _FINISHED_ONE_OFFS.all(
        pool, now_at=now_at, after_at=after.finished_at, after_id=after.job_id, most=most
    )
    removable = [row.job_id for row in rows if row.is_kept_enough]
    return FinishedPage(removable, FinishedPosition(rows[-1].finished_at, rows[-1].job_id) if rows else None)


async def remove_one_offs(connection: Session, job_ids: Sequence[int]) -> int:
    """Delete those of the finished one-offs, locked by `jobs.lock_available`, of which nothing waits or runs."""
    return row_count(await _SQL["remove_one_offs"].execute(connection, job_ids=job_ids))


async def check_versions(pool: Pool, now_at: datetime, history: timedelta, most: int) -> CheckedVersions:
    """Empty or remove those of some superseded versions that no run needs."""
    return await _CHECK_VERSIONS.one(
        pool,
        now_at=now_at,
        history_seconds=history.total_seconds(),
        most=most,
        most_looked_at=MAX_LOOKED_AT,
    )


async def sweep_rules(pool: Pool, now_at: datetime, after_id: int, most: int) -> RulesPage:
    """Of a page of rules, mark those that nothing refers to, and remove those that were marked an hour ago."""
    return await _SWEEP_RULES.one(pool, now_at=now_at, after_id=after_id, most=most)


async def crowded_tenants(pool: Pool) -> list[int]:
    """Tenants whose queues are worth sweeping."""
    return await _CROWDED_TENANTS.all(pool, least=QUEUES_KEPT)


async def sweep_queues(pool: Pool, now_at: datetime, tenant_id: int) -> int:
    """Mark a tenant's queues that nothing refers to, remove those that were marked an hour ago, and say how many."""
    return await _SWEEP_QUEUES.one(pool, now_at=now_at, tenant_id=tenant_id)
