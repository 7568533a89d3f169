"""What nothing refers to any more: superseded versions, rules, queues with their lanes. Called by the janitor."""

from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.store import statements
from evertick.store.database import Pool

MAX_LOOKED_AT = 10_000
"""Runs of a job that one check of a version looks at."""
QUEUES_KEPT = 100
"""A tenant with no more queues than this keeps them: looking for unused ones reads all its jobs."""


class CheckedVersions(NamedTuple):
    """How many superseded versions were looked at, emptied and removed."""

    checked: int
    emptied: int
    removed: int


class RulesPage(NamedTuple):
    """Some rules: the last of them, None after the last page, and how many were removed."""

    last_id: int | None
    removed: int


_SQL = statements.load("unused")
_CHECK_VERSIONS = _SQL["check_versions"].rows(CheckedVersions)
_SWEEP_RULES = _SQL["sweep_rules"].rows(RulesPage)
_CROWDED_TENANTS = _SQL["crowded_tenants"].values(int)
_SWEEP_QUEUES = _SQL["sweep_queues"].values(int)


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
