"""Jobs that lack the timer of their ticks, and how they get it back. Called by the janitor."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.database import Pool, Session


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


class Healing(NamedTuple):
    """When a job fires next; None where it never does."""

    job_id: int
    fire_at: datetime | None
    due_at: datetime | None


class Healed(NamedTuple):
    """How many jobs got their timer back, and how many turned out to have fired their last tick."""

    timers: int
    finished: int


_SQL = statements.load("lost_timers")
_TIMERLESS_PAGE = _SQL["timerless_page"].rows(TimerlessPage)
_TIMERLESS = _SQL["timerless"].rows(Timerless)
_HEAL = _SQL["heal"].rows(Healed)


async def timerless_page(pool: Pool, after_id: int, most: int) -> TimerlessPage:
    return await _TIMERLESS_PAGE.one(pool, after_id=after_id, most=most)


async def timerless(connection: Session, job_ids: Sequence[int], before_at: datetime) -> list[Timerless]:
    """What is known of jobs; what was before an instant is forgotten."""
    return await _TIMERLESS.all(connection, job_ids=job_ids, before_at=before_at)


async def heal(connection: Session, healings: Iterable[Healing]) -> Healed:
    healings = list(healings)
    return await _HEAL.one(
        connection,
        job_ids=[healing.job_id for healing in healings],
        fire_ats=[healing.fire_at for healing in healings],
        due_ats=[healing.due_at for healing in healings],
    )
