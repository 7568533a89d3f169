"""Smears: jitter for many jobs. Called by the use cases, and by what works them off."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.domain.limits import NEVER_LABEL, NEVER_VALUE
from evertick.domain.states import SmearedState
from evertick.store import statements
from evertick.store.database import SCAN_SECONDS, Session, scanning
from evertick.store.jobs.forecast import ForecastFilter
from evertick.store.statements import Connection, columns

_LABEL = {"never_label": NEVER_LABEL, "never_value": NEVER_VALUE}


class Candidates(NamedTuple):
    """Active jobs of a rule that could be smeared, and their versions.

    `fire_at`: the earliest of all. `opted_out`: how many others have the label that says no.
    """

    rule_id: int
    fire_at: datetime
    opted_out: int
    job_ids: list[int]
    spec_versions: list[int]


class SmearRow(NamedTuple):
    """A smear, and what has become of its jobs."""

    smear_id: int
    status: str
    jitter_seconds: int
    created_at: datetime
    finished_at: datetime | None
    actor: str
    jobs: int
    waiting: int
    changed: int
    skipped: int
    undone: int
    kept: int


class TakenSmear(NamedTuple):
    """A locked smear whose next batch is due."""

    smear_id: int
    tenant_id: int
    jitter_seconds: int
    is_undone: bool
    reached_job_id: int
    actor: str


class LockedSmearJob(NamedTuple):
    """A locked job of a smear. `fire_at` is its timer's, None where it has none.

    `is_delayed`: its jitter delays a tick just now. `known_version`: that which the smear found, or has written; None
    in a smear that an earlier release has started.
    """

    job_id: int
    is_deleted: bool
    spec_version: int
    spec: str
    canonical: str
    fire_at: datetime | None
    is_delayed: bool
    known_version: int | None
    is_opted_out: bool


class NewVersion(NamedTuple):
    """The next version of a job: its specification, its rule, and when its timer is due."""

    job_id: int
    spec: str
    digest: bytes
    due_at: datetime


_SQL = statements.load("smears")
_CANDIDATES = _SQL["candidates"].rows(Candidates)
_CANDIDATES_OF_MANY = _SQL["candidates_of_many"].rows(Candidates)
_START = _SQL["start"].values(int)
_COUNT_RUNNING = _SQL["count_running"].values(int)
_PAGE = _SQL["page"].rows(SmearRow)
_UNDO = _SQL["undo"].values(int)
_TAKE = _SQL["take"].rows(TakenSmear)
_NEXT_JOBS = _SQL["next_jobs"].values(int)
_LOCKED = _SQL["locked"].rows(LockedSmearJob)
_WRITE = _SQL["write"].values(int)
_ADVANCE = _SQL["advance"].values(bool)


async def candidates(
    connection: Connection, wanted: ForecastFilter, rule_ids: Sequence[int], most: int, partitions: Sequence[int]
) -> list[Candidates]:
    """The tenant's active jobs of these rules in some partitions, by index."""
    return await _CANDIDATES.all(
        connection, **wanted._asdict(), rule_ids=rule_ids, most=most, partitions=partitions, **_LABEL
    )


async def candidates_of_many(
    connection: Connection, wanted: ForecastFilter, rule_ids: Sequence[int], most: int
) -> list[Candidates]:
    """The tenant's active jobs of these rules, by reading all timers."""
    async with scanning(connection) as session:
        found = await _CANDIDATES_OF_MANY.lazily(
            session, SCAN_SECONDS, **wanted._asdict(), rule_ids=rule_ids, most=most, **_LABEL
        )
        return list(found)


async def start(connection: Session, tenant_id: int, jitter_seconds: int, actor: str) -> int:
    """Start a smear, and return its id."""
    return await _START.one(connection, tenant_id=tenant_id, jitter_seconds=jitter_seconds, actor=actor)


async def add_jobs(connection: Session, smear_id: int, job_ids: Sequence[int], spec_versions: Sequence[int]) -> None:
    """Add jobs to a smear in the transaction that starts it."""
    await _SQL["add_jobs"].execute(connection, smear_id=smear_id, job_ids=job_ids, spec_versions=spec_versions)


async def count_running(connection: Connection, tenant_id: int) -> int:
    return await _COUNT_RUNNING.one(connection, tenant_id=tenant_id)


async def page(
    connection: Connection, tenant_id: int, *, before: int, most: int, only: int | None = None
) -> list[SmearRow]:
    """A tenant's smears, newest first, or one of them."""
    return await _PAGE.all(connection, tenant_id=tenant_id, before=before, only=only, most=most)


async def undo(connection: Connection, tenant_id: int, smear_id: int) -> bool:
    """Let a smear take back what it changed. False: it is doing so, or has."""
    return await _UNDO.one_or_none(connection, tenant_id=tenant_id, smear_id=smear_id) is not None


async def take(connection: Session) -> TakenSmear | None:
    """Lock the smear whose next batch is due first."""
    return await _TAKE.one_or_none(connection)


async def next_jobs(connection: Session, smear_id: int, after: int, state: SmearedState, most: int) -> list[int]:
    return await _NEXT_JOBS.all(connection, smear_id=smear_id, after=after, state=str(state), most=most)


async def locked(connection: Session, smear_id: int, job_ids: Sequence[int]) -> list[LockedSmearJob]:
    """The state of jobs that are locked; their ticks' timers are locked too."""
    return await _LOCKED.all(connection, smear_id=smear_id, job_ids=job_ids, **_LABEL)


async def write(
    connection: Session, smear_id: int, versions: Sequence[NewVersion], state: SmearedState, now_at: datetime
) -> int:
    """Write the next versions of locked jobs; returns how many. None are, while a rule is missing."""
    values = columns(("job_ids", "specs", "digests", "due_ats"), versions)
    return await _WRITE.one(connection, smear_id=smear_id, state=str(state), now_at=now_at, **values)


async def leave(connection: Session, smear_id: int, job_ids: Sequence[int], state: SmearedState) -> None:
    await _SQL["leave"].execute(connection, smear_id=smear_id, job_ids=job_ids, state=str(state))


async def leave_gone(connection: Session, smear_id: int, job_ids: Sequence[int], state: SmearedState) -> None:
    """Leave those of these jobs that are there no more."""
    await _SQL["leave_gone"].execute(connection, smear_id=smear_id, job_ids=job_ids, state=str(state))


async def postpone(connection: Connection, smear_id: int, seconds: float) -> None:
    """Let a smear whose batch failed wait."""
    await _SQL["postpone"].execute(connection, smear_id=smear_id, seconds=seconds)


async def advance(
    connection: Session, smear_id: int, reached_job_id: int, open_state: SmearedState, wait_seconds: float
) -> bool:
    """Let a locked smear go on after a job, after a while. Returns whether it is over."""
    return await _ADVANCE.one(
        connection,
        smear_id=smear_id,
        reached_job_id=reached_job_id,
        open_state=str(open_state),
        wait_seconds=wait_seconds,
    )
