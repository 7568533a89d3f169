"""Previews of schedules: of fields that are not a job yet, and of a job that exists."""

from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.contract.annotations import DEFAULT_TIMEZONE
from evertick.contract.job import Job
from evertick.contract.jobs import DEFAULT_ROWS, PreviewRequest
from evertick.domain.errors import Fault, InvalidFields, InvalidInput
from evertick.domain.ids import Prefix, parse_id
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.describe.english import local
from evertick.domain.schedule.preview import PreviewRow, SchedulePreview, as_new_job, preview_in_steps
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.schedule.spec import Once
from evertick.domain.stable_hash import due_at, jitter_offset
from evertick.domain.states import JobStatus
from evertick.runtime import background
from evertick.runtime.background import Steps
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.rows import with_jitter


async def preview(tenant: TenantContext, wanted: PreviewRequest, after: datetime) -> SchedulePreview:
    """What a schedule would do after an instant. InvalidInput says why it cannot be used."""
    fields = {"schedule": wanted.schedule, "jitter_seconds": wanted.jitter_seconds}
    filled = with_jitter(fields, tenant.default_jitter_seconds)
    assert isinstance(filled, dict)
    jitter = timedelta(seconds=filled["jitter_seconds"] or 0)

    def build(anchor_at: datetime | None) -> Schedule:
        return Schedule(
            wanted.schedule,
            wanted.timezone or DEFAULT_TIMEZONE,
            wanted.dst_gap or DstGap.CATCH_UP,
            wanted.dst_overlap or DstOverlap.FIRST,
            wanted.start_at,
            wanted.end_at,
            anchor_at=anchor_at,
        )

    def steps() -> Steps[SchedulePreview]:
        schedule = as_new_job(build, after)
        yield
        return (yield from preview_in_steps(schedule, after, wanted.count or DEFAULT_ROWS, jitter=jitter))

    try:
        return await background.run_steps(tenant.tenant_id, steps())
    except OverflowError:  # an instant in the text that its zone moves beyond the years 1 to 9999
        raise InvalidFields([Fault("/schedule", "a date in it is beyond the calendar")]) from None


class JobPreview(NamedTuple):
    """A job's schedule in English, empty if this release cannot read it, and its next fire times."""

    description: str
    rows: tuple[PreviewRow, ...]


async def of_job(tenant: TenantContext, job: Job, count: int) -> JobPreview:
    """What a job will do."""
    return await background.run_steps(tenant.tenant_id, _of_job(job, count))


def _of_job(job: Job, count: int) -> Steps[JobPreview]:
    try:
        description = _schedule_of(job).describe()
    except (InvalidInput, OverflowError):
        return JobPreview("", ())
    yield
    if job.status is not JobStatus.ACTIVE or job.next_run_at is None:
        return JobPreview(description, ())
    return JobPreview(description, (yield from _upcoming(job, job.next_run_at, count)))


async def upcoming(tenant: TenantContext, job: Job, count: int) -> tuple[PreviewRow, ...]:
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
