"""Previews of schedules: of fields that are not a job yet, and of a job that exists."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from evertick.contract.annotations import LONGEST_WAIT_S, ZONE_NAME_MAX_LENGTH
from evertick.contract.job import Job, JobStatus
from evertick.domain.errors import Fault, InvalidFields
from evertick.domain.ids import Prefix, parse_id
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.describe.english import local
from evertick.domain.schedule.preview import PreviewRow, SchedulePreview, as_new_job, preview_in_steps
from evertick.domain.schedule.rrule.text import MAX_CHARACTERS
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.schedule.spec import Once
from evertick.domain.stable_hash import due_at, jitter_offset
from evertick.runtime import background
from evertick.runtime.background import Steps
from evertick.store.engine import lanes
from evertick.usecases.context import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewFields:
    """The fields that decide when; `after` is now unless it is given."""

    schedule: str
    timezone: str
    dst_gap: DstGap
    dst_overlap: DstOverlap
    start_at: datetime | None
    end_at: datetime | None
    jitter: timedelta
    after: datetime | None


async def preview(tenant: Tenant, wanted: PreviewFields, count: int) -> SchedulePreview:
    """What a schedule would do. InvalidInput says why it cannot be used."""
    _check(wanted)
    after = wanted.after or await lanes.clock(tenant.pool)

    def build(anchor_at: datetime | None) -> Schedule:
        return Schedule(
            wanted.schedule,
            wanted.timezone,
            wanted.dst_gap,
            wanted.dst_overlap,
            wanted.start_at,
            wanted.end_at,
            anchor_at=anchor_at,
        )

    def steps() -> Steps[SchedulePreview]:
        schedule = as_new_job(build, after)
        yield
        return (yield from preview_in_steps(schedule, after, count, jitter=wanted.jitter))

    try:
        return await background.run_steps(tenant.tenant_id, steps())
    except OverflowError:  # an instant in the text that its zone moves beyond the years 1 to 9999
        raise InvalidFields([Fault("/schedule", "a date in it is beyond the calendar")]) from None


async def upcoming(tenant: Tenant, job: Job, count: int) -> tuple[PreviewRow, ...]:
    """A job's next fire times, from its timer on; none if nothing is to come."""
    if job.status is not JobStatus.ACTIVE or job.next_run_at is None:
        return ()
    return await background.run_steps(tenant.tenant_id, _upcoming(job, job.next_run_at, count))


def _upcoming(job: Job, next_run_at: datetime, count: int) -> Steps[tuple[PreviewRow, ...]]:
    schedule = _schedule_of(job)
    yield
    number, jitter = parse_id(Prefix.JOB, job.job_id), timedelta(seconds=job.jitter_seconds)
    if isinstance(schedule.spec, Once):  # a delay may have been counted from an edit
        due = due_at(next_run_at, jitter_offset(number, jitter))
        return (PreviewRow(next_run_at, due, local(next_run_at, schedule.zone), ()),)
    after = next_run_at - timedelta(microseconds=1)
    shown = yield from preview_in_steps(schedule, after, count, jitter=jitter, job_id=number)
    return shown.rows


def _schedule_of(job: Job) -> Schedule:
    return Schedule(
        job.schedule,
        job.timezone,
        job.dst_gap,
        job.dst_overlap,
        job.start_at,
        job.end_at,
        job.job_id,
        anchor_at=job.created_at,
    )


def _check(wanted: PreviewFields) -> None:
    faults = []
    if len(wanted.schedule) > MAX_CHARACTERS:
        faults.append(Fault("/schedule", f"has at most {MAX_CHARACTERS} characters"))
    if len(wanted.timezone) > ZONE_NAME_MAX_LENGTH:
        faults.append(Fault("/timezone", f"has at most {ZONE_NAME_MAX_LENGTH} characters"))
    if wanted.jitter.total_seconds() > LONGEST_WAIT_S:
        faults.append(Fault("/jitter_seconds", f"must be from 0 to {LONGEST_WAIT_S}"))
    if faults:
        raise InvalidFields(faults)
