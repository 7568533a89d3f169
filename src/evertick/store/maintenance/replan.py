"""Timers to compute anew, after the clock was set back or because they were lost. Called by the janitor."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from evertick.domain.ids import PARTITIONS
from evertick.store import statements
from evertick.store.database import Pool, Session, transaction_without_timeout
from evertick.store.statements import Connection, columns

_BEGINNING_AT = datetime(1, 1, 2, tzinfo=UTC)
_NOTE_SECONDS = 60 * 60
"""Reading all attempts of the days ahead may take long."""


class AheadTimer(NamedTuple):
    """A timer that lies ahead. A tick goes by its fire time; any other run waits from `since_at` until `due_at`."""

    job_id: int
    kind: str
    fire_at: datetime
    rule_id: int
    due_at: datetime | None
    since_at: datetime | None


class TimerMove(NamedTuple):
    """Where a timer belongs."""

    timer: AheadTimer
    fire_at: datetime
    due_at: datetime


class AheadGap(NamedTuple):
    """A gap that reaches into ticks that are to come, and the rule of its ticks."""

    job_id: int
    first_at: datetime
    last_at: datetime
    reason: str
    canonical: str


class GapTrim(NamedTuple):
    """Where a gap really ends, and how many ticks are in it; None: it has not begun."""

    gap: AheadGap
    last_at: datetime | None
    ticks: int


class FinishedAhead(NamedTuple):
    """A job that finished while the clock was ahead."""

    job_id: int
    finished_at: datetime
    created_at: datetime
    canonical: str
    spec: str
    has_run: bool


class _Spec(NamedTuple):
    job_id: int
    spec: str


class _Moved(NamedTuple):
    job_id: int
    kind: str


class TimerlessPage(NamedTuple):
    """Some jobs: the last of them, None after the last page, and those that lack their tick's timer."""

    last_id: int | None
    job_ids: list[int]


class Timerless(NamedTuple):
    """A job without its tick's timer, and what is known of its ticks."""

    job_id: int
    created_at: datetime
    effective_at: datetime
    canonical: str
    spec: str
    known_at: datetime | None
    forgotten_at: datetime


class TimerRepair(NamedTuple):
    """When a job fires next; None where it never does."""

    job_id: int
    fire_at: datetime | None
    due_at: datetime | None


class RepairCount(NamedTuple):
    """How many jobs got their timer back, and how many turned out to have fired their last tick."""

    timers: int
    finished: int


FIRST_TIMER = AheadTimer(0, "tick", _BEGINNING_AT, 0, None, None)
"""The place before all timers of a partition."""
FIRST_GAP = AheadGap(0, _BEGINNING_AT, _BEGINNING_AT, "", "")
FIRST_FINISHED = FinishedAhead(0, _BEGINNING_AT, _BEGINNING_AT, "", "", has_run=False)

_SQL = statements.load("replan")
_PAGE = _SQL["page"].rows(AheadTimer)
_SPECS_AHEAD = _SQL["specs_ahead"].rows(_Spec)
_MOVE = _SQL["move"].rows(_Moved)
_GAPS_OF_JOBS = _SQL["gaps_of_jobs"].rows(AheadGap)
_GAPS_PAGE = _SQL["gaps_page"].rows(AheadGap)
_FINISHED_PAGE = _SQL["finished_page"].rows(FinishedAhead)
_TIMERLESS_PAGE = _SQL["timerless_page"].rows(TimerlessPage)
_TIMERLESS = _SQL["timerless"].rows(Timerless)
_REPAIR_TIMERS = _SQL["repair_timers"].rows(RepairCount)


async def note_ran(pool: Pool, after_at: datetime) -> None:
    """Note which ticks after an instant may have run already, so that they do not run again."""
    async with transaction_without_timeout(pool) as connection:
        await connection.execute(_SQL["note_ran"].text, after_at, timeout=_NOTE_SECONDS)


async def page(pool: Pool, partition: int, now_at: datetime, after: AheadTimer, most: int) -> list[AheadTimer]:
    """Some of a partition's timers that lie ahead of now, in the order of their jobs."""
    return await _PAGE.all(
        pool,
        partition=partition,
        now_at=now_at,
        page_id=after.job_id,
        page_kind=after.kind,
        page_at=after.fire_at,
        most=most,
    )


async def specs_ahead(connection: Connection, job_ids: Sequence[int], now_at: datetime) -> dict[int, str]:
    return dict(await _SPECS_AHEAD.all(connection, job_ids=job_ids, now_at=now_at))


async def move(connection: Session, moves: Sequence[TimerMove], after_at: datetime) -> Sequence[tuple[int, str]]:
    """Move timers; returns jobs and kinds of those that were. The others changed, or are locked."""
    return await _MOVE.all(
        connection,
        after_at=after_at,
        job_ids=[move.timer.job_id for move in moves],
        kinds=[move.timer.kind for move in moves],
        fire_ats=[move.timer.fire_at for move in moves],
        rule_ids=[move.timer.rule_id for move in moves],
        new_fire_ats=[move.fire_at for move in moves],
        new_due_ats=[move.due_at for move in moves],
    )


async def gaps_of_jobs(connection: Session, job_ids: Sequence[int], after_at: datetime) -> list[AheadGap]:
    return await _GAPS_OF_JOBS.all(connection, job_ids=job_ids, after_at=after_at)


async def gaps_page(pool: Pool, after_at: datetime, after: AheadGap, most: int) -> list[AheadGap]:
    """Some gaps of any jobs, in the order of their ends."""
    return await _GAPS_PAGE.all(
        pool, after_at=after_at, page_at=after.last_at, page_id=after.job_id, page_first=after.first_at, most=most
    )


async def trim(connection: Connection, trims: Sequence[GapTrim]) -> None:
    await _SQL["trim"].execute(
        connection,
        job_ids=[trim.gap.job_id for trim in trims],
        first_ats=[trim.gap.first_at for trim in trims],
        last_ats=[trim.gap.last_at for trim in trims],
        reasons=[trim.gap.reason for trim in trims],
        new_last_ats=[trim.last_at for trim in trims],
        ticks=[trim.ticks for trim in trims],
    )


async def finished_page(pool: Pool, after_at: datetime, after: FinishedAhead, most: int) -> list[FinishedAhead]:
    return await _FINISHED_PAGE.all(pool, after_at=after_at, page_at=after.finished_at, page_id=after.job_id, most=most)


async def reopen(connection: Session, job_ids: Sequence[int]) -> None:
    await _SQL["reopen"].execute(connection, job_ids=job_ids)


async def advance(connection: Connection, partition: int, *, is_cut: bool) -> None:
    """A partition is done, `is_cut`: but for rows that were locked."""
    await _SQL["advance"].execute(connection, partition=partition, is_cut=is_cut)


async def complete(connection: Connection) -> None:
    await _SQL["complete"].execute(connection, partitions=PARTITIONS)


async def timerless_page(pool: Pool, after_id: int, most: int) -> TimerlessPage:
    return await _TIMERLESS_PAGE.one(pool, after_id=after_id, most=most)


async def timerless(connection: Session, job_ids: Sequence[int], before_at: datetime) -> list[Timerless]:
    """What is known of jobs; what was before an instant is forgotten."""
    return await _TIMERLESS.all(connection, job_ids=job_ids, before_at=before_at)


async def repair_timers(connection: Session, repairs: Iterable[TimerRepair]) -> RepairCount:
    return await _REPAIR_TIMERS.one(connection, **columns(("job_ids", "fire_ats", "due_ats"), list(repairs)))
