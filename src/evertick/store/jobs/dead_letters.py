"""Dead letters: runs whose attempts are used up. Called by the use cases."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection


class LetterRow(NamedTuple):
    """A dead letter, with the error of the last attempt where the ledger still has it."""

    job_id: int
    fire_at: datetime
    name: str
    died_at: datetime
    attempt: int
    reason: str
    spec_version: int
    code: int | None
    error: str | None


class LetterRange(NamedTuple):
    """Which dead letters: those that died from `from_at` on and come before (`before_at`, job, fire time)."""

    from_at: datetime
    before_at: datetime
    before_job_id: int
    before_fire_at: datetime
    job_id: int | None
    of_live_jobs: bool


class Replay(NamedTuple):
    """The run that a dead letter has become: its job, its fire time, and when it is due."""

    job_id: int
    fire_at: datetime
    due_at: datetime


class ReplayRate(NamedTuple):
    """When the replay of number 0 is due, and how many seconds each comes after the one before."""

    start_at: datetime
    seconds_apart: float


_SQL = statements.load("dead_letters")
_PAGE = _SQL["page"].rows(LetterRow)
_TAKE = _SQL["take"].values(int)
_LOCK_JOBS = _SQL["lock_jobs"].values(int)
_REPLAY = _SQL["replay"].rows(Replay)


async def page(connection: Connection, tenant_id: int, wanted: LetterRange, most: int) -> list[LetterRow]:
    """A tenant's dead letters, newest first."""
    return await _PAGE.all(connection, tenant_id=tenant_id, most=most, **wanted._asdict())


async def take(connection: Connection, tenant_id: int, job_id: int, fire_at: datetime) -> int | None:
    """Remove a dead letter, and return its run's spec_version. None: there is none."""
    return await _TAKE.one_or_none(connection, tenant_id=tenant_id, job_id=job_id, fire_at=fire_at)


async def lock_jobs(connection: Connection, tenant_id: int, job_ids: Iterable[int]) -> set[int]:
    """Lock jobs of the tenant, and return those that are not deleted."""
    return set(await _LOCK_JOBS.all(connection, tenant_id=tenant_id, job_ids=list(job_ids)))


async def replay(
    connection: Connection, tenant_id: int, letters: Sequence[tuple[int, datetime, int]], pace: ReplayRate
) -> list[Replay]:
    """Make runs of dead letters (job, fire time, number) of locked jobs. One whose instant is taken stays a letter."""
    return await _REPLAY.all(
        connection,
        tenant_id=tenant_id,
        job_ids=[job_id for job_id, _, _ in letters],
        fire_ats=[fire_at for _, fire_at, _ in letters],
        numbers=[number for _, _, number in letters],
        **pace._asdict(),
    )
