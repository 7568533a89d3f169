"""Creating a job.

Its number comes from a sequence and the time from the database before anything is written, so that the job, its version
and its timer are one statement. A rule, queue or lane that is missing is committed before: nothing ever refers to one
that was rolled back, and one that nothing refers to does no harm.
"""

from datetime import datetime

from evertick.contract.job import Job, JobSpec, JobStatus, timing_of
from evertick.domain.ids import Prefix, format_id
from evertick.domain.job.timing import Timing
from evertick.domain.schedule.text import is_costly
from evertick.store import jobs
from evertick.store.jobs import NumbersTaken
from evertick.usecases.context import Tenant
from evertick.usecases.errors import NameTaken
from evertick.usecases.jobs.drafting import Draft, Drafter, numbered, write
from evertick.usecases.jobs.rows import as_spec
from evertick.usecases.jobs.views import fields_in_force
from evertick.usecases.transactions import Computed, compute_outside, forget_computed


async def create(tenant: Tenant, job: object) -> Job:
    """Create a job from its fields or its specification.

    InvalidFields says what is wrong with it, NameTaken that another job has its name.
    """
    spec = as_spec(job)
    return await numbered(lambda: _create(tenant, spec))


async def _create(tenant: Tenant, spec: JobSpec) -> Job:
    now_at, new = await _draft(tenant, spec)
    try:
        created = await write(tenant.pool, tenant, [new], now_at)
    except NumbersTaken:
        forget_computed(_key(spec))
        raise
    if not created:
        raise NameTaken(str(new.spec.name))
    tenant.notify(created)
    return view(new, now_at)


async def _draft(tenant: Tenant, spec: JobSpec) -> tuple[datetime, Draft]:
    now_at, (number,) = await jobs.numbers(tenant.pool, 1)
    drafter = Drafter(tenant, now_at)
    if not is_costly(spec.schedule):
        return now_at, drafter.draft(spec, number)
    return await compute_outside(tenant.tenant_id, _key(spec), lambda: Computed((now_at, drafter.draft(spec, number))))


def _key(spec: JobSpec) -> tuple[str, str | None, Timing]:
    return "create", spec.name, timing_of(spec)


def view(new: Draft, now_at: datetime) -> Job:
    """A new job as its owner sees it."""
    return Job(
        job_id=format_id(Prefix.JOB, new.job_id),
        name=str(new.spec.name),
        status=JobStatus.ACTIVE,
        next_run_at=new.made.first_fire_at,
        spec_version=1,
        created_at=now_at,
        updated_at=now_at,
        paused_at=None,
        pause_reason=None,
        **fields_in_force(new.spec, new.made.rule.grace_us),
    )
