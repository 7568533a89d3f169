"""What an edit does to a job's timer: it stays as long as the ticks do, or moves to the first one after now."""

from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.contract.job import JobSpec, timing_of
from evertick.domain.errors import Fault, InvalidFields, InvalidInput
from evertick.domain.ids import Prefix, format_id
from evertick.domain.jitter import due_at, jitter_offset
from evertick.domain.job.definition import Definition, define
from evertick.domain.job.timing import Timing, resolve
from evertick.domain.misfire import Gap
from evertick.domain.rule import OneOff
from evertick.domain.schedule.instants import to_us
from evertick.domain.schedule.spec import Soon
from evertick.store.jobs import LockedJob
from evertick.usecases.jobs.unfired_ticks import jitter_us, swallowed
from evertick.usecases.jobs.views import read_stored


class Reschedule(NamedTuple):
    """When the edited job fires: by which rule, and when next; a `fire_at` of None: only triggers run it.

    `is_rescheduled`: its ticks are others than before. `gaps` are those that the clocks jump over before the next.
    """

    digest: bytes
    canonical: str
    fire_at: datetime | None
    due_at: datetime | None
    is_rescheduled: bool
    gaps: tuple[Gap, ...] = ()


def reschedule(job: LockedJob, spec: JobSpec, shortest: timedelta) -> Reschedule:
    """Decide on a locked job. InvalidFields says why the new schedule cannot be used."""
    old, new = timing_of(read_stored(job.spec)), timing_of(spec)
    if _ticks(old) == _ticks(new):
        # Not defined anew: its one-off may be past, its last tick fired, and neither is wrong now.
        resolved = resolve(new, format_id(Prefix.JOB, job.job_id), job.created_at)
        due = None if job.fire_at is None else due_at(job.fire_at, jitter_offset(job.job_id, resolved.jitter))
        return Reschedule(resolved.digest, resolved.canonical, job.fire_at, due, is_rescheduled=False)
    # A delay counts from the edit; all other schedules keep the phase that the job was created with.
    is_delay = _is_delay(new, job)
    made = define(new, job.job_id, job.now_at if is_delay else job.created_at, job.now_at, shortest)
    if job.fire_at is not None and _says_the_same(made, job):
        due = job.fire_at + timedelta(microseconds=jitter_us(job.job_id, made.rule))
        return Reschedule(made.digest, made.canonical, job.fire_at, due, is_rescheduled=False)
    if made.first_fire_at is None:
        return Reschedule(made.digest, made.canonical, None, None, is_rescheduled=True)
    if made.first_fire_at <= job.now_at and not is_delay:
        raise InvalidFields([Fault("/schedule", f"{spec.schedule!r} is past, and an edit is never retroactive")])
    gaps = swallowed(made.rule, to_us(job.now_at), to_us(made.first_fire_at))
    return Reschedule(
        made.digest, made.canonical, made.first_fire_at, made.first_due_at, is_rescheduled=True, gaps=gaps
    )


def _is_delay(timing: Timing, job: LockedJob) -> bool:
    try:
        return isinstance(resolve(timing, "", job.created_at).schedule.spec, Soon)
    except InvalidInput:
        return False  # defining it says what is wrong


def _ticks(timing: Timing) -> tuple[object, ...]:
    return timing[:6]  # schedule, zone, what it makes of changes of the clocks, and the window


def _says_the_same(made: Definition, job: LockedJob) -> bool:
    """Whether another text has the same ticks as the timer. All one-offs share a rule, so their ticks are compared."""
    if isinstance(made.rule.spec, OneOff):
        return made.first_fire_at == job.fire_at
    return made.canonical == job.canonical
