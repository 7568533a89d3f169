"""Housekeeping: days, rows that age, what nothing refers to, storage, lost timers, statistics. For the janitor."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import asyncpg

from evertick.store import statements
from evertick.store.database import Pool, Session
from evertick.store.statements import Connection

_SQL = statements.load("housekeeping")
_LOCK = int.from_bytes(b"janitor", "big")
_ANALYZE_SECONDS = 60 * 60
"""Reading samples of many large days may take long, and nobody waits for it."""

AGEING = ("gaps", "withdrawals", "requested_runs", "audit_log", "api_keys")
"""Tables whose rows go when they are older than history is kept."""


MAX_LOOKED_AT = 10_000
"""Runs of a job that one check of a version looks at."""
QUEUES_KEPT = 100
"""A tenant with no more queues than this keeps them: looking for unused ones reads all its jobs."""


class ExpiredDay(NamedTuple):
    """A day that is older than history is kept. `is_finished`: nothing in it waits or runs."""

    day: date
    is_finished: bool


class Place(NamedTuple):
    """Where a walk through finished jobs, from the oldest on, has come to."""

    finished_at: datetime = datetime(1, 1, 2, tzinfo=UTC)
    job_id: int = 0


class FinishedPage(NamedTuple):
    """Some finished jobs: those to remove, and where the next page begins; None after the last."""

    removable: list[int]
    next: Place | None


class TimerlessPage(NamedTuple):
    """Some jobs: those that lack their tick's timer, and the last of all; None after the last page."""

    job_ids: list[int]
    last_id: int | None


class Timerless(NamedTuple):
    """A job without its tick's timer, and what is known of its ticks."""

    job_id: int
    created_at: datetime
    effective_at: datetime
    canonical: str
    spec: str
    known_at: datetime | None
    forgotten_at: datetime


class Healing(NamedTuple):
    """When a job fires next; None where it never does."""

    job_id: int
    fire_at: datetime | None
    due_at: datetime | None


class CheckedVersions(NamedTuple):
    """How many superseded versions were looked at, emptied and removed."""

    checked: int
    emptied: int
    removed: int


class RulesPage(NamedTuple):
    """Some rules: the last of them, None after the last page, and how many were removed."""

    last_id: int | None
    removed: int


class Healed(NamedTuple):
    """How many jobs got their timer back, and how many turned out to have fired their last tick."""

    timers: int
    finished: int


@asynccontextmanager
async def turn(pool: Pool) -> AsyncIterator[bool]:
    """Whether this is the one janitor at work; it is for as long as the context lasts.

    The connection that holds the lock does nothing else: the work itself is done in short transactions on others.
    """
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        is_ours: bool = await _SQL["take_turn"].fetchval(connection, lock=_LOCK)
        # The driver leaves a statement's snapshot in place until the next one, and that would hold up vacuum.
        await connection.execute("SELECT")
        yield is_ours


async def missing_days(pool: Pool, ahead: int) -> list[date]:
    """Which days from today on, to so many ahead, cannot take attempts yet."""
    return [row["day"] for row in await _SQL["missing_days"].fetch(pool, ahead=ahead)]


async def add_day(pool: Connection, day: date) -> bool:
    """Add a day to the ledgers. False: not now, or somebody else did. Janitors do it ahead, and who fires at need."""
    try:
        async with _hurrying(pool) as connection:
            added: bool = await _SQL["add_day"].fetchval(connection, day=day)
            return added
    except (
        asyncpg.DuplicateTableError,
        asyncpg.DuplicateObjectError,  # its row type, which comes before it
        asyncpg.UniqueViolationError,
        asyncpg.LockNotAvailableError,
    ):
        return False


async def expired_days(pool: Pool, before_at: datetime) -> list[ExpiredDay]:
    """Days that ended before an instant, oldest first."""
    return [ExpiredDay(*row) for row in await _SQL["expired_days"].fetch(pool, before_at=before_at)]


async def drop_day(pool: Pool, day: date) -> bool:
    """Drop a day of the ledgers. False: not now."""
    try:
        async with _hurrying(pool) as connection:
            await _SQL["drop_day"].execute(connection, day=day)
            return True
    except asyncpg.LockNotAvailableError:
        return False


async def prune(pool: Pool, table: str, before_at: datetime, most: int) -> int:
    """Remove some of the rows of one of `AGEING` that are older than an instant, and say how many."""
    return _count(await _SQL[f"prune_{table}"].execute(pool, before_at=before_at, most=most))


async def prune_answers(pool: Pool, before_at: datetime, most: int) -> int:
    """Forget some of the answers that were kept since before an instant, and say how many."""
    return _count(await _SQL["prune_answers"].execute(pool, before_at=before_at, most=most))


async def check_versions(pool: Pool, now_at: datetime, history: timedelta, most: int) -> CheckedVersions:
    """Empty or remove those of some superseded versions that no run needs."""
    row = await _SQL["check_versions"].fetchrow(
        pool,
        now_at=now_at,
        history_seconds=history.total_seconds(),
        most=most,
        most_looked_at=MAX_LOOKED_AT,
    )
    assert row is not None
    return CheckedVersions(*row)


async def sweep_rules(pool: Pool, now_at: datetime, after_id: int, most: int) -> RulesPage:
    """Of a page of rules, mark those that nothing refers to, and remove those that were marked an hour ago."""
    row = await _SQL["sweep_rules"].fetchrow(pool, now_at=now_at, after_id=after_id, most=most)
    assert row is not None
    return RulesPage(*row)


async def crowded_tenants(pool: Pool) -> list[int]:
    """Tenants whose queues are worth sweeping."""
    return [row["tenant_id"] for row in await _SQL["crowded_tenants"].fetch(pool, least=QUEUES_KEPT)]


async def sweep_queues(pool: Pool, now_at: datetime, tenant_id: int) -> int:
    """Mark a tenant's queues that nothing refers to, remove those that were marked an hour ago, and say how many."""
    removed: int = await _SQL["sweep_queues"].fetchval(pool, now_at=now_at, tenant_id=tenant_id)
    return removed


async def sum_storage(pool: Pool, most: int) -> int:
    """Add some changes of tenants' storage to the sums, and say how many."""
    summed: int = await _SQL["sum_storage"].fetchval(pool, most=most)
    return summed


async def purge_jobs(pool: Pool, before_at: datetime, most: int) -> int:
    """Remove what is left of some jobs that were deleted before an instant, and say of how many."""
    return _count(await _SQL["purge_jobs"].execute(pool, before_at=before_at, most=most))


async def finished_one_offs(pool: Pool, now_at: datetime, after: Place, most: int) -> FinishedPage:
    """A page of finished jobs, and which of them have been kept for long enough by a time that is trusted."""
    rows = await _SQL["finished_one_offs"].fetch(
        pool, now_at=now_at, after_at=after.finished_at, after_id=after.job_id, most=most
    )
    removable = [row["job_id"] for row in rows if row["is_kept_enough"]]
    return FinishedPage(removable, Place(rows[-1]["finished_at"], rows[-1]["job_id"]) if rows else None)


async def remove_one_offs(connection: Session, job_ids: Sequence[int]) -> int:
    """Delete those of the finished one-offs, locked by `lock_jobs`, of which nothing waits or runs."""
    return _count(await _SQL["remove_one_offs"].execute(connection, job_ids=job_ids))


async def lock_jobs(connection: Session, job_ids: Sequence[int]) -> list[int]:
    """Keep everybody else from changing these jobs; returns those that nobody was changing already."""
    return [row["job_id"] for row in await _SQL["lock_jobs"].fetch(connection, job_ids=job_ids)]


async def timerless_page(pool: Pool, after_id: int, most: int) -> TimerlessPage:
    row = await _SQL["timerless_page"].fetchrow(pool, after_id=after_id, most=most)
    assert row is not None
    return TimerlessPage(row["job_ids"], row["last_id"])


async def timerless(connection: Session, job_ids: Sequence[int], before_at: datetime) -> list[Timerless]:
    """What is known of jobs; what was before an instant is forgotten."""
    rows = await _SQL["timerless"].fetch(connection, job_ids=job_ids, before_at=before_at)
    return [Timerless(*row) for row in rows]


async def heal(connection: Session, healings: Iterable[Healing]) -> Healed:
    healings = list(healings)
    row = await _SQL["heal"].fetchrow(
        connection,
        job_ids=[healing.job_id for healing in healings],
        fire_ats=[healing.fire_at for healing in healings],
        due_ats=[healing.due_at for healing in healings],
    )
    assert row is not None
    return Healed(*row)


async def stale_statistics(pool: Pool) -> list[str]:
    """The partitioned tables that should be analysed."""
    return [row["name"] for row in await _SQL["stale_statistics"].fetch(pool)]


async def analyze(pool: Pool, table: str) -> None:
    async with without_haste(pool) as connection:
        await connection.execute(_SQL[f"analyze_{table}"].text, timeout=_ANALYZE_SECONDS)


@asynccontextmanager
async def without_haste(pool: Pool) -> AsyncIterator[Session]:
    """A transaction for a statement with a time-out of its own, which is longer than the server's for the others."""
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0")
        yield connection


@asynccontextmanager
async def _hurrying(pool: Connection) -> AsyncIterator[Session]:
    """A transaction that rather gives up than makes firing wait."""
    if isinstance(pool, asyncpg.Pool):
        async with pool.acquire() as connection, _hurrying(connection) as hurrying:
            yield hurrying
        return
    async with pool.transaction():
        await _SQL["hurry"].fetchval(pool)
        yield pool


def _count(tag: str) -> int:
    """The number of rows in a command's tag, such as `DELETE 10`."""
    return int(tag.rpartition(" ")[2])
