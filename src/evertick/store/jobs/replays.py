"""Replays of many dead letters: called by the use cases, and by the janitor, which works them off."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.store import statements
from evertick.store.database import Session
from evertick.store.jobs import runs
from evertick.store.jobs.runs import ReplayedRun, ReplayRate
from evertick.store.statements import Connection

_TRIES = 5
"""Statements until every letter has found a free instant. Runs of the job stand at few of them."""


class LetterPosition(NamedTuple):
    """A position in the list of dead letters, which begins with the newest."""

    died_at: datetime
    job_id: int
    fire_at: datetime


class WantedLetters(NamedTuple):
    """The filter of a replay. `label` is name:value, `error` a part of the last attempt's error."""

    died_from: datetime
    died_before: datetime | None
    job_id: int | None
    queue: str | None
    error: str | None
    label: str | None


class NewReplay(NamedTuple):
    """A replay to start. Its first batch begins no earlier than `start_at`."""

    wanted: WantedLetters
    rate_per_second: float
    start_at: datetime | None
    actor: str


class ScannedLetter(NamedTuple):
    job_id: int
    fire_at: datetime
    died_at: datetime
    is_wanted: bool

    @property
    def position(self) -> LetterPosition:
        return LetterPosition(self.died_at, self.job_id, self.fire_at)


class ReplayRow(NamedTuple):
    """A replay with its filter and its progress."""

    replay_id: int
    tenant_id: int
    created_at: datetime
    finished_at: datetime | None
    next_batch_at: datetime
    died_from: datetime
    died_before: datetime | None
    reached_died_at: datetime
    reached_job_id: int
    reached_fire_at: datetime
    job_id: int | None
    replayed: int
    looked_at: int
    rate_per_second: float
    status: str
    queue: str | None
    error: str | None
    label: str | None
    actor: str

    @property
    def wanted(self) -> WantedLetters:
        return WantedLetters(self.died_from, self.died_before, self.job_id, self.queue, self.error, self.label)

    @property
    def reached(self) -> LetterPosition:
        return LetterPosition(self.reached_died_at, self.reached_job_id, self.reached_fire_at)


class TakenReplay(NamedTuple):
    """A locked replay whose next batch is due, with the limits of its tenant."""

    replay_id: int
    tenant_id: int
    next_batch_at: datetime
    died_from: datetime
    reached_died_at: datetime
    reached_job_id: int
    reached_fire_at: datetime
    job_id: int | None
    rate_per_second: float
    queue: str | None
    error: str | None
    label: str | None
    now_at: datetime
    submits_per_second: int
    submit_burst: int
    storage_quota_bytes: int

    @property
    def wanted(self) -> WantedLetters:
        return WantedLetters(self.died_from, None, self.job_id, self.queue, self.error, self.label)

    @property
    def reached(self) -> LetterPosition:
        return LetterPosition(self.reached_died_at, self.reached_job_id, self.reached_fire_at)


class Progress(NamedTuple):
    """What one batch has done. `is_done`: no letter is left."""

    reached: LetterPosition
    next_batch_at: datetime
    replayed: int
    looked_at: int
    is_done: bool


class _LockedJob(NamedTuple):
    job_id: int
    is_deleted: bool


_SQL = statements.load("replays")
_SCAN = _SQL["scan"].rows(ScannedLetter)
_LOCK_JOBS = _SQL["lock_jobs"].rows(_LockedJob)
_WAIT_FOR_JOBS = _SQL["wait_for_jobs"].rows(_LockedJob)
_RESTART = _SQL["restart"].values(int)
_COUNT_RUNNING = _SQL["count_running"].values(int)
_START = _SQL["start"].values(int)
_PAGE = _SQL["page"].rows(ReplayRow)
_CANCEL = _SQL["cancel"].values(int)
_TAKE = _SQL["take"].rows(TakenReplay)


async def scan(
    connection: Connection, tenant_id: int, wanted: WantedLetters, before: LetterPosition, most: int
) -> list[ScannedLetter]:
    """The next letters after a position, with those that are not wanted."""
    return await _SCAN.all(
        connection,
        tenant_id=tenant_id,
        from_at=wanted.died_from,
        before_at=before.died_at,
        before_job_id=before.job_id,
        before_fire_at=before.fire_at,
        job_id=wanted.job_id,
        queue=wanted.queue,
        error=wanted.error,
        label=wanted.label,
        most=most,
    )


async def lock_jobs(connection: Session, tenant_id: int, job_ids: Iterable[int]) -> dict[int, bool]:
    """Lock those of the jobs that nobody else has locked, and return which of them are deleted."""
    return dict(await _LOCK_JOBS.all(connection, tenant_id=tenant_id, job_ids=list(job_ids)))


async def wait_for_jobs(connection: Session, tenant_id: int, job_ids: Iterable[int]) -> dict[int, bool]:
    """Lock the jobs, and return which of them are deleted."""
    return dict(await _WAIT_FOR_JOBS.all(connection, tenant_id=tenant_id, job_ids=list(job_ids)))


async def replay(
    connection: Session, tenant_id: int, letters: Sequence[ScannedLetter], pace: ReplayRate, first: int = 0
) -> list[ReplayedRun]:
    """Make runs of letters of locked jobs; the first of them has this number. Letters that are gone make none."""
    numbered = [(letter.job_id, letter.fire_at, number) for number, letter in enumerate(letters, first)]
    done: list[ReplayedRun] = []
    for attempt in range(_TRIES):
        if len(done) == len(numbered):
            break
        # Those that are done are no letters any more. The others get later instants: runs stand at theirs.
        shift = attempt * len(numbered)
        done += await runs.replay_dead_letters(connection, tenant_id, numbered, pace, shift)
    return done


async def restart(connection: Connection, tenant_id: int, wanted: WantedLetters) -> int | None:
    """Begin the running replay with the same filter again at the newest letter, if there is one; its id."""
    return await _RESTART.one_or_none(connection, tenant_id=tenant_id, **wanted._asdict())


async def count_running(connection: Connection, tenant_id: int) -> int:
    return await _COUNT_RUNNING.one(connection, tenant_id=tenant_id)


async def start(connection: Connection, tenant_id: int, new: NewReplay) -> int:
    """Start a replay, and return its id."""
    fields = new._asdict()
    wanted = fields.pop("wanted")
    return await _START.one(connection, tenant_id=tenant_id, **fields, **wanted._asdict())


async def page(
    connection: Connection, tenant_id: int, *, before: int, most: int, only: int | None = None
) -> list[ReplayRow]:
    """A tenant's replays, newest first, or one of them."""
    return await _PAGE.all(connection, tenant_id=tenant_id, before=before, only=only, most=most)


async def cancel(connection: Connection, tenant_id: int, replay_id: int) -> bool:
    """End a replay. False: there is none that is running."""
    return await _CANCEL.one_or_none(connection, tenant_id=tenant_id, replay_id=replay_id) is not None


async def take(connection: Session, ahead: timedelta) -> TakenReplay | None:
    """Lock the replay whose next batch begins first. None: none begins within this time."""
    return await _TAKE.one_or_none(connection, ahead=ahead)


async def advance(connection: Session, replay_id: int, progress: Progress) -> None:
    """Write what a batch of a locked replay has done."""
    reached = {f"reached_{name}": value for name, value in progress.reached._asdict().items()}
    rest = progress._asdict()
    del rest["reached"]
    await _SQL["advance"].execute(connection, replay_id=replay_id, **reached, **rest)


async def postpone(connection: Connection, replay_id: int, seconds: float) -> None:
    """Let a replay whose batch failed wait."""
    await _SQL["postpone"].execute(connection, replay_id=replay_id, seconds=seconds)
