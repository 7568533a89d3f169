"""The next fire times of a schedule before it exists: when, at what local time, and why where the clocks change."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime, timedelta

from evertick import tzdb
from evertick.domain.jitter import due_at, jitter_offset
from evertick.domain.schedule.budget import LIST_STEPS, ROW_STEPS, at_most, finished
from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.english import local
from evertick.domain.schedule.finding import Finding, Severity
from evertick.domain.schedule.instants import SECOND_US, from_seconds, from_wall, to_us
from evertick.domain.schedule.lint_calendar import uses_hash
from evertick.domain.schedule.notes import ClockNotes, lost_note
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.schedule.spec import Once, Soon

MAX_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """One fire time. `due_at` is later than `fire_at` by the job's jitter; `local` is `fire_at` in its zone."""

    fire_at: datetime
    due_at: datetime
    local: datetime
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """Wall times that will not run, since the clocks jump over them at `at`."""

    at: datetime
    ticks: int
    first_local: datetime  # readings of a clock that never shows them, so without a zone
    last_local: datetime
    note: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What a schedule will do, as far as can be said now."""

    schedule: Schedule
    description: str
    tzdb_version: str
    rows: tuple[Row, ...]
    lost: tuple[Lost, ...]
    findings: tuple[Finding, ...]


def preview(
    schedule: Schedule,
    after: datetime,
    count: int,
    *,
    jitter: timedelta = timedelta(0),
    job_id: int | None = None,
) -> Preview:
    """The first `count` fire times after `after`. Without a `job_id` the jitter shown is an example."""
    return finished(preview_in_steps(schedule, after, count, jitter=jitter, job_id=job_id))


def preview_in_steps(
    schedule: Schedule,
    after: datetime,
    count: int,
    *,
    jitter: timedelta = timedelta(0),
    job_id: int | None = None,
) -> Generator[None, None, Preview]:
    """Do `preview` in steps, none of which takes longer than one question may."""
    # As soon as possible is `after` itself, not the first instant behind it.
    since = after - timedelta(microseconds=1) if schedule.spec == Soon(0) else after
    wanted = min(count, MAX_ROWS)
    fires = yield from schedule.upcoming_in_steps(since, wanted)
    offset = jitter_offset(job_id or 0, jitter)
    with at_most(LIST_STEPS + ROW_STEPS * len(fires)):
        rows = yield from _rows(schedule, fires, offset)
    with at_most(LIST_STEPS + ROW_STEPS * len(fires)):
        lost = _lost(schedule, after, fires)
    yield
    return Preview(
        schedule=schedule,
        description=schedule.describe(),
        tzdb_version=tzdb.VERSION,
        rows=rows,
        lost=lost,
        findings=(
            *schedule.lint(after=after, jitter=jitter),
            *_examples(schedule, jitter, job_id),
            *_cut_short(schedule, fires, wanted),
        ),
    )


def as_new_job(build: Callable[[datetime | None], Schedule], created_at: datetime) -> Schedule:
    """The schedule that a job created at `created_at` would have; `build` makes it for an `anchor_at`."""
    anchored = build(created_at)
    # One-offs stay as written: `now` would lie at `created_at`, and so not after it.
    return build(None) if isinstance(anchored.spec, Once) else anchored


def _rows(schedule: Schedule, fires: list[datetime], offset: timedelta) -> Generator[None, None, tuple[Row, ...]]:
    notes = ClockNotes(schedule)
    rows, previous = [], None
    for fire_at in fires:
        at = to_us(fire_at) // SECOND_US
        rows.append(Row(fire_at, due_at(fire_at, offset), local(fire_at, schedule.zone), notes.of(at, previous)))
        previous = at
        yield
    return tuple(rows)


def _lost(schedule: Schedule, after: datetime, fires: list[datetime]) -> tuple[Lost, ...]:
    if not fires:
        return ()
    after_us = to_us(after)
    found = schedule.ticks(after_us).lost(after_us + 1, to_us(fires[-1]) + 1)
    return tuple(
        Lost(
            from_seconds(lost.at),
            lost.ticks,
            from_wall(lost.first_wall),
            from_wall(lost.last_wall),
            lost_note(lost, schedule.dst_gap),
        )
        for lost in found
    )


def _examples(schedule: Schedule, jitter: timedelta, job_id: int | None) -> list[Finding]:
    """What follows from a job's id is only an example as long as there is none."""
    hashed = isinstance(schedule.spec, Cron) and uses_hash(schedule.text) and not schedule.key
    if not hashed and (not jitter or job_id is not None):
        return []
    which = "`H` and jitter follow" if hashed and jitter else "`H` follows" if hashed else "jitter follows"
    return [
        Finding("example_times", Severity.INFO, f"{which} from the job's id: without one, these times are an example")
    ]


def _cut_short(schedule: Schedule, fires: list[datetime], wanted: int) -> list[Finding]:
    """Whether the list ends before the schedule does."""
    if len(fires) in {0, wanted} or schedule.next(fires[-1]) is None:
        return []
    message = f"only {len(fires)} fire times are listed: they are so far apart that more take too long to compute"
    return [Finding("list_cut_short", Severity.INFO, message)]
