"""Runs: their history, requests for further ones, cancelling; and dead letters. Called by the use cases."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.jobs.lane_reading import few_per_lane
from evertick.store.statements import Connection, columns

FREE_INSTANT_TRIES = 1000
"""Microseconds from now within which a run by hand finds an instant of its own."""


class RunRow(NamedTuple):
    """A run by one attempt, its latest unless said otherwise; without one, from `lane_id` on all is None or false, but
    for the name and the handler. Those are of its version, and None if that is gone. `is_queued`: it waits until there
    is room beside other runs of the job.
    """

    job_id: int
    fire_at: datetime
    reason: str
    spec_version: int
    has_timer: bool
    is_queued: bool
    waits_at_gate: int | None
    is_withdrawn: bool
    lane_id: int | None
    seq: int | None
    attempt: int | None
    is_leased: bool
    result: str | None
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    code: int | None
    error: str | None
    name: str | None
    handler: str | None
    queue: str | None
    progress: str | None = None


class AttemptRow(NamedTuple):
    """One attempt of a run, and what else the ledger has about it. `output` is JSON. `leased_at`: None if not known."""

    run: RunRow
    due_at: datetime | None
    excerpt: str | None
    output: str | None = None
    leased_at: datetime | None = None


class GapRow(NamedTuple):
    """Contiguous ticks that did not run. `behind_at`: of an overlap, the fire time of the run that was open."""

    job_id: int
    first_at: datetime
    last_at: datetime
    ticks: int
    spec_version: int
    reason: str
    behind_at: datetime | None = None


class FireTimeRange(NamedTuple):
    """Fire times from `from_at` on and before `before_at`; attempts from `from_seq` on."""

    from_at: datetime
    before_at: datetime
    from_seq: int


class Walk(NamedTuple):
    """The attempt before which a walk through runs goes on, and the seq from which it began, if it has."""

    before_seq: int
    before_lane: int
    walk_seq: int | None


class PlacedRun(NamedTuple):
    """A run by its latest attempt, at the place of one. `is_elsewhere`: the walk has it at the place of a later one.

    `is_cut`: more may follow the last place at once.
    """

    run: RunRow
    place_lane: int
    place_seq: int
    is_elsewhere: bool
    is_cut: bool


class RequestedRun(NamedTuple):
    """A run by hand: `kind` is manual or replay; `payload` counts if `has_payload`."""

    kind: str
    replays_at: datetime | None
    has_payload: bool
    payload: str | None
    gate_id: int | None = None
    """None: that of its version, if it has one."""
    trace_parent: str | None = None
    is_queued: bool = False
    """It waits until no other run of the job is open."""


class UnfinishedRun(NamedTuple):
    """A run that is open or waits. `is_queued`: until no other is open."""

    fire_at: datetime
    is_queued: bool


class RunTime(NamedTuple):
    """What a run is known by."""

    job_id: int
    fire_at: datetime


class GivenToRun(NamedTuple):
    """What a run was given: its payload, as JSON, and its gate."""

    payload: str | None
    gate_id: int | None


class LetterRow(NamedTuple):
    """A dead letter, with the error of the last attempt where the ledger still has it; and whether filters fit."""

    job_id: int
    fire_at: datetime
    name: str
    died_at: datetime
    attempt: int
    reason: str
    spec_version: int
    code: int | None
    error: str | None
    is_wanted: bool


class LetterGroupRow(NamedTuple):
    """Dead letters of one job that ended with the same line of an error."""

    job_id: int
    name: str
    error: str
    letters: int
    first_died_at: datetime
    last_died_at: datetime


class LetterRange(NamedTuple):
    """Which dead letters: those that died from `from_at` on and come before (`before_at`, job, fire time).

    Of these all are looked at; those are wanted whose jobs have the queue and the label, and that have the error.
    """

    from_at: datetime
    before_at: datetime
    before_job_id: int
    before_fire_at: datetime
    job_id: int | None
    queue: str | None = None
    error: str | None = None
    label: str | None = None


class ReplayedRun(NamedTuple):
    """The run that a dead letter has become: its job, its fire time, and when it is due."""

    job_id: int
    fire_at: datetime
    due_at: datetime


class ReplayRate(NamedTuple):
    """When the replay of number 0 is due, and how many seconds each comes after the one before."""

    start_at: datetime
    seconds_apart: float


_SQL = statements.load("runs")
_OF_JOB = _SQL["of_job"].rows(RunRow)
_OF_TENANT = _SQL["of_tenant"].rows(PlacedRun)
_ATTEMPTS = _SQL["attempts"].rows(AttemptRow)
_GAPS = _SQL["gaps"].rows(GapRow)
_GIVEN = _SQL["given"].rows(GivenToRun)
_GOING_ON = _SQL["going_on"].rows(RunTime)
_UNFINISHED = _SQL["unfinished"].rows(UnfinishedRun)
_REQUEST = _SQL["request"].values(datetime)
_CANCEL_ATTEMPT = _SQL["cancel_attempt"].values(bool)
_WITHDRAW = _SQL["withdraw"].values(bool)
_DEAD_LETTERS_PAGE = _SQL["dead_letters_page"].rows(LetterRow)
_LETTER_GROUPS = _SQL["letter_groups"].rows(LetterGroupRow)
_TAKE_DEAD_LETTER = _SQL["take_dead_letter"].values(int)
_REPLAY_DEAD_LETTERS = _SQL["replay_dead_letters"].rows(ReplayedRun)


async def of_job(connection: Connection, job_id: int, stretch: FireTimeRange, most: int) -> list[RunRow]:
    """A job's runs, newest first."""
    return await _OF_JOB.all(connection, job_id=job_id, most=most, **stretch._asdict())


async def of_tenant(
    connection: Connection, tenant_id: int, stretch: FireTimeRange, walk: Walk, most: int
) -> list[PlacedRun]:
    """The places that come next in a walk through a tenant's runs, newest first."""
    given = {"tenant_id": tenant_id, "most": most, **walk._asdict(), **stretch._asdict()}
    found: list[PlacedRun] = []
    for per_lane in few_per_lane(most):
        found = await _OF_TENANT.all(connection, per_lane=per_lane, **given)
        if len(found) == most or not any(each.is_cut for each in found):
            break
    return found


async def attempts(connection: Connection, job_id: int, fire_at: datetime, from_seq: int) -> list[AttemptRow]:
    """One run, attempt by attempt; empty if there is no such run."""
    return await _ATTEMPTS.all(connection, job_id=job_id, fire_at=fire_at, from_seq=from_seq)


async def gaps(connection: Connection, job_id: int, stretch: FireTimeRange, most: int) -> list[GapRow]:
    """A job's gaps, newest first."""
    return await _GAPS.all(connection, job_id=job_id, from_at=stretch.from_at, before_at=stretch.before_at, most=most)


async def given(connection: Connection, job_id: int, fire_at: datetime, spec_version: int) -> GivenToRun:
    """What a run was given; nothing if its version is gone."""
    found = await _GIVEN.one_or_none(connection, job_id=job_id, fire_at=fire_at, spec_version=spec_version)
    return found or GivenToRun(None, None)


async def request(connection: Connection, job_id: int, wanted: RequestedRun) -> datetime | None:
    """Ask for a run of a locked job and return its fire time. None: there was no free instant, try again."""
    return await _REQUEST.one_or_none(connection, job_id=job_id, tries=FREE_INSTANT_TRIES, **wanted._asdict())


async def going_on(connection: Connection, runs: Sequence[tuple[int, datetime, int]]) -> set[tuple[int, datetime]]:
    """Those of these runs (job, fire time, seq of the first attempt at the earliest) that are not over."""
    return set(await _GOING_ON.all(connection, **columns(("job_ids", "fire_ats", "from_seqs"), runs)))


async def unfinished(connection: Connection, job_id: int, most: int) -> list[UnfinishedRun]:
    """Runs of a job that are open or wait, the oldest first."""
    return await _UNFINISHED.all(connection, job_id=job_id, most=most)


async def lock(connection: Connection, job_id: int, fire_at: datetime) -> None:
    """The first step of a cancellation: until its end the job does not fire, and cannot be edited."""
    await _SQL["lock_job"].execute(connection, job_id=job_id)
    await _SQL["lock_timers"].execute(connection, job_id=job_id, fire_at=fire_at)


async def cancel_attempt(connection: Connection, run: RunRow, error: str) -> bool:
    """End an open attempt as cancelled. False: it has its outcome already."""
    return await _CANCEL_ATTEMPT.one(
        connection,
        lane_id=run.lane_id,
        seq=run.seq,
        job_id=run.job_id,
        fire_at=run.fire_at,
        started_at=run.started_at,
        worker=run.worker,
        error=error,
    )


async def withdraw(connection: Connection, run: RunRow) -> bool:
    """Cancel a run that waits for its timer. False: that is gone."""
    return await _WITHDRAW.one(connection, job_id=run.job_id, fire_at=run.fire_at)


async def dead_letters_page(connection: Connection, tenant_id: int, wanted: LetterRange, most: int) -> list[LetterRow]:
    """A tenant's dead letters, newest first: `most` are looked at."""
    return await _DEAD_LETTERS_PAGE.all(connection, tenant_id=tenant_id, most=most, **wanted._asdict())


async def letter_groups(connection: Connection, tenant_id: int, looked_at: int, most: int) -> list[LetterGroupRow]:
    """The largest groups among the newest dead letters of a tenant."""
    return await _LETTER_GROUPS.all(connection, tenant_id=tenant_id, looked_at=looked_at, most=most)


async def take_dead_letter(connection: Connection, tenant_id: int, job_id: int, fire_at: datetime) -> int | None:
    """Remove a dead letter, and return its run's spec_version. None: there is none."""
    return await _TAKE_DEAD_LETTER.one_or_none(connection, tenant_id=tenant_id, job_id=job_id, fire_at=fire_at)


async def replay_dead_letters(
    connection: Connection, tenant_id: int, letters: Sequence[tuple[int, datetime, int]], pace: ReplayRate, shift: int
) -> list[ReplayedRun]:
    """Make runs of dead letters (job, fire time, number) of locked jobs. One whose instant is taken stays a letter."""
    return await _REPLAY_DEAD_LETTERS.all(
        connection,
        tenant_id=tenant_id,
        **columns(("job_ids", "fire_ats", "numbers"), letters),
        shift=shift,
        **pace._asdict(),
    )
