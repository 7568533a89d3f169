"""The next fire times of a schedule before it exists: when, at what local time, and why where the clocks change."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime, timedelta

from evertick import tzdb
from evertick.domain.errors import ScheduleTooCostly
from evertick.domain.limits import PREVIEW_MAX_ROWS
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.budget import LIST_STEPS, ROW_STEPS, at_most, finished
from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.describe.english import length, local, wall_time
from evertick.domain.schedule.instants import SECOND_US, from_seconds, from_wall, to_us, to_wall
from evertick.domain.schedule.interval import read_instant
from evertick.domain.schedule.lint import Finding, Severity, uses_hash
from evertick.domain.schedule.patterns.wall import ListPattern
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.schedule.spec import Once, Soon, fixed_times
from evertick.domain.schedule.text import split_zone
from evertick.domain.schedule.ticks import LostTicks
from evertick.domain.schedule.zone import Stretch
from evertick.domain.schedule.zoned import CORRECTION_S, ZonedTicks
from evertick.domain.stable_hash import due_at, jitter_offset

YEAR = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """One fire time. `due_at` is later than `fire_at` by the job's jitter; `local` is `fire_at` in its zone."""

    fire_at: datetime
    due_at: datetime
    local: datetime
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LostTimes:
    """Wall times that will not run, since the clocks jump over them at `at`."""

    at: datetime
    ticks: int
    first_local: datetime  # readings of a clock that never shows them, so without a zone
    last_local: datetime
    note: str


@dataclass(frozen=True, slots=True)
class SchedulePreview:
    """What a schedule will do, by the time zone database of today.

    `runs_a_year` counts the year after the instant that was asked about; None: that takes too long.
    """

    schedule: Schedule
    description: str
    tzdb_version: str
    rows: tuple[PreviewRow, ...]
    lost: tuple[LostTimes, ...]
    findings: tuple[Finding, ...]
    runs_a_year: int | None


def preview(
    schedule: Schedule,
    after: datetime,
    count: int,
    *,
    jitter: timedelta = timedelta(0),
    job_id: int | None = None,
) -> SchedulePreview:
    """The first `count` fire times after `after`. Without a `job_id` the jitter shown is an example."""
    return finished(preview_in_steps(schedule, after, count, jitter=jitter, job_id=job_id))


def preview_in_steps(
    schedule: Schedule,
    after: datetime,
    count: int,
    *,
    jitter: timedelta = timedelta(0),
    job_id: int | None = None,
) -> Generator[None, None, SchedulePreview]:
    """Do `preview` in steps, none of which takes longer than one question may."""
    # As soon as possible is `after` itself, not the first instant behind it.
    since = after - timedelta(microseconds=1) if schedule.spec == Soon(0) else after
    wanted = min(count, PREVIEW_MAX_ROWS)
    fires = yield from schedule.upcoming_in_steps(since, wanted)
    offset = jitter_offset(job_id or 0, jitter)
    with at_most(LIST_STEPS + ROW_STEPS * len(fires)):
        rows = yield from _rows(schedule, fires, offset)
    with at_most(LIST_STEPS + ROW_STEPS * len(fires)):
        lost = _lost(schedule, after, fires)
    yield
    return SchedulePreview(
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
        runs_a_year=_runs_a_year(schedule, since),
    )


def as_new_job(build: Callable[[datetime | None], Schedule], created_at: datetime) -> Schedule:
    """The schedule that a job created at `created_at` would have; `build` makes it for an `anchor_at`."""
    anchored = build(created_at)
    # One-offs stay as written: `now` would lie at `created_at`, and so not after it.
    return build(None) if isinstance(anchored.spec, Once) else anchored


def _rows(
    schedule: Schedule, fires: list[datetime], offset: timedelta
) -> Generator[None, None, tuple[PreviewRow, ...]]:
    notes = _ClockNotes(schedule)
    rows, previous = [], None
    for fire_at in fires:
        at = to_us(fire_at) // SECOND_US
        rows.append(PreviewRow(fire_at, due_at(fire_at, offset), local(fire_at, schedule.zone), notes.of(at, previous)))
        previous = at
        yield
    return tuple(rows)


def _lost(schedule: Schedule, after: datetime, fires: list[datetime]) -> tuple[LostTimes, ...]:
    if not fires:
        return ()
    after_us = to_us(after)
    found = schedule.ticks(after_us).lost(after_us + 1, to_us(fires[-1]) + 1)
    return tuple(
        LostTimes(
            from_seconds(lost.at),
            lost.ticks,
            from_wall(lost.first_wall),
            from_wall(lost.last_wall),
            _lost_note(lost, schedule.dst_gap),
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
    # A delay counts from whatever instant is asked about, so it would have a next one for ever.
    if isinstance(schedule.spec, Soon) or len(fires) in {0, wanted} or schedule.next(fires[-1]) is None:
        return []
    message = f"only {len(fires)} fire times are listed: they are so far apart that more take too long to compute"
    return [Finding("list_cut_short", Severity.INFO, message)]


def _runs_a_year(schedule: Schedule, since: datetime) -> int | None:
    try:
        return schedule.count_between(since, since + YEAR)
    except (ScheduleTooCostly, OverflowError):
        return None


class _ClockNotes:
    """What the clocks do to the fire times of one schedule, in a few words. Instants are seconds."""

    def __init__(self, schedule: Schedule) -> None:
        self._zone = schedule.zone
        self._gap, self._overlap = schedule.dst_gap, schedule.dst_overlap
        self._zoned = _fixed_ticks(schedule)
        self._runs_once = isinstance(schedule.spec, Once)

    def of(self, at: int, previous: int | None) -> tuple[str, ...]:
        """Notes on the fire time at `at`, of which `previous` is the one listed before."""
        if self._zone.is_utc:
            return ()
        stretch = self._zone.stretch_at(at)
        here = [note for note in (self._stands_in(at, stretch), self._repeated(at, stretch)) if note]
        if not here and previous is not None:
            here += _change(stretch.offset - self._zone.stretch_at(previous).offset)
        return tuple(here)

    def _stands_in(self, at: int, stretch: Stretch) -> str:
        """Whether it runs for wall times that the jump before it swallowed."""
        jump = stretch.offset - stretch.before
        if self._zoned is None or self._gap is DstGap.SKIP or not 0 < jump < CORRECTION_S:
            return ""
        low, high = stretch.since + stretch.before, stretch.since + stretch.offset
        if self._gap is DstGap.SHIFT:
            low, high = at + stretch.before, min(high, at + stretch.before + 1)
        elif at != stretch.since:
            return ""
        if not self._zoned.pattern.count(low, high):
            return ""
        missing = _missing(self._zoned.pattern.next_from(low), self._zoned.pattern.prev_before(high))
        if self._zoned.made_up_for(at) is None:
            return f"{missing}: this stands for both"
        verb = "caught up at" if self._gap is DstGap.CATCH_UP else "shifted to"
        return f"{missing}: {verb} {wall_time(at + stretch.offset)}"

    def _repeated(self, at: int, stretch: Stretch) -> str:
        wall = at + stretch.offset
        if wall < stretch.since + stretch.before:
            which = "second"
        elif wall >= stretch.until + stretch.after:
            which = "first"
        else:
            return ""
        only = self._zoned is not None and (self._runs_once or self._overlap is not DstOverlap.BOTH)
        return f"{wall_time(wall)} happens twice: " + (f"only the {which} runs" if only else f"{which} of two")


def _lost_note(lost: LostTicks, gap: DstGap) -> str:
    """Why wall times did not run."""
    missing = _missing(lost.first_wall, lost.last_wall)
    why = "left out by dst_gap skip" if gap is DstGap.SKIP else "lost to a correction of the clocks"
    return f"{missing}: {why}"


def _fixed_ticks(schedule: Schedule) -> ZonedTicks | None:
    """The ticks before any window, if they are readings of the clock rather than elapsed time."""
    pattern = _one_off(schedule) if isinstance(schedule.spec, Once) else fixed_times(schedule.spec)
    return ZonedTicks(pattern, schedule.zone, schedule.dst_gap, schedule.dst_overlap) if pattern else None


def _one_off(schedule: Schedule) -> ListPattern | None:
    """The reading of the clock that an instant without an offset names: its spec is an instant already."""
    at = read_instant(split_zone(schedule.text, "UTC")[0])
    return ListPattern([to_wall(at)]) if at is not None and at.tzinfo is None else None


def _change(seconds: int) -> list[str]:
    if not seconds:
        return []
    direction = "forward" if seconds > 0 else "back"
    return [f"after the clocks go {direction} {length(timedelta(seconds=abs(seconds)))}"]


def _missing(first: int | None, last: int | None) -> str:
    assert first is not None
    assert last is not None
    if first == last:
        return f"{wall_time(first)} does not exist on this day"
    return f"{wall_time(first)} to {wall_time(last)} do not exist on this day"
