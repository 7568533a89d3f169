"""Editing jobs: a new version from now on. Nothing of it is retroactive, and no tick of the version before is lost.

1. Lock the job, then its tick's timer: a firing that has it ends first.
2. The same specification again changes nothing.
3. Same ticks as before: the timer keeps its place, whatever else changes. Otherwise it moves to the new schedule's
   first tick after now, and ticks whose fire time has passed and that have not fired are a gap.
4. Runs that exist already keep their version.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import NamedTuple

from evertick.contract.broker_targets import BrokerTarget, check_connection
from evertick.contract.job import Job, JobSpec, timing_of
from evertick.contract.job_reading import patched, read_spec
from evertick.domain.errors import Fault, InvalidFields
from evertick.domain.ids import Prefix, format_id
from evertick.domain.schedule.instants import from_us
from evertick.domain.schedule.text import is_costly
from evertick.store.database import Session
from evertick.store.jobs import jobs
from evertick.store.jobs.jobs import EditRefusal, LockedJob, NewJob, ReferenceIds, TickTimer, lane_keys
from evertick.store.tenants import broker_connections
from evertick.usecases.context import TenantContext, job_key
from evertick.usecases.errors import JobNotFound, NameTaken, VersionConflict
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.reading import read_job
from evertick.usecases.jobs.rescheduling import Reschedule, reschedule, unfired
from evertick.usecases.jobs.rows import (
    job_row,
    read_stored,
    stored_spec,
    with_jitter,
    with_name,
    write_payload,
    write_spec,
)
from evertick.usecases.references import References
from evertick.usecases.transactions import Computed, compute_outside


class Put(NamedTuple):
    """The job that now has the name, and whether it is new."""

    job: Job
    is_new: bool


async def edit(
    tenant: TenantContext, job_id: str, fields: object, *, expected_version: int | Collection[int] | None = None
) -> Job:
    """Change the given fields of a job; null resets one to its default."""
    key = job_key(job_id)

    async def work(connection: Session) -> Job:
        job = await locked(connection, tenant, key, expected_version)
        before = stored_spec(job.spec, job.payload)
        spec = patched(before, _with_default_jitter(tenant, before, fields))
        return await _replace(connection, tenant, job, spec)

    return await tenant.change_job(key, work)


async def put(
    tenant: TenantContext,
    name: str,
    fields: object,
    *,
    expected_version: int | Collection[int] | None = None,
    must_exist: bool = False,
) -> Put:
    """Create the job of this name, or replace its whole specification. An equal one changes nothing.

    JobNotFound: there is none, and it must exist or be of some version.
    """
    spec = read_spec(with_jitter(_with_name(name, fields), tenant.default_jitter_seconds))
    while True:
        key = await jobs.named(tenant.pool, tenant.tenant_id, name)
        if key is None and (must_exist or expected_version is not None):
            raise JobNotFound(repr(name))
        try:
            if key is None:
                return Put(await create(tenant, spec), is_new=True)
            return Put(await _put(tenant, key, spec, expected_version), is_new=False)
        except (JobNotFound, NameTaken):
            continue  # created, renamed or deleted since the look: look again


async def _put(tenant: TenantContext, key: int, spec: JobSpec, expected_version: int | Collection[int] | None) -> Job:
    async def work(connection: Session) -> Job:
        job = await locked(connection, tenant, key, expected_version)
        if read_stored(job.spec).name != spec.name:
            raise JobNotFound(repr(spec.name))
        return await _replace(connection, tenant, job, spec)

    return await tenant.change_job(key, work)


def _with_name(name: str, fields: object) -> object:
    if not isinstance(fields, Mapping):
        return fields  # which is refused where it is read
    given = fields.get("name")
    if not isinstance(given, str | None):
        raise InvalidFields([Fault("/name", "must be a string")])
    if given not in {None, name}:
        raise InvalidFields([Fault("/name", f"must be {name!r}, the name that is put, or left out")])
    return {**fields, "name": name}


def _with_default_jitter(tenant: TenantContext, before: JobSpec, fields: object) -> object:
    """A null resets the jitter to the tenant's default; a patch that does not name it leaves it."""
    if not isinstance(fields, Mapping) or "jitter_seconds" not in fields or fields["jitter_seconds"] is not None:
        return fields
    filled = with_jitter({"schedule": before.schedule, **fields}, tenant.default_jitter_seconds)
    assert isinstance(filled, Mapping)
    return {name: filled[name] for name in fields}


async def locked(
    connection: Session,
    tenant: TenantContext,
    key: int,
    expected_version: int | Collection[int] | None = None,
    *,
    to_delete: bool = False,
) -> LockedJob:
    """Lock a job and its tick's timer, and return its state. Of several expected versions, one is enough."""
    if not await jobs.lock(connection, tenant.tenant_id, key, to_delete=to_delete):
        raise JobNotFound(format_id(Prefix.JOB, key))
    job = await jobs.locked(connection, key)
    expected = {expected_version} if isinstance(expected_version, int) else expected_version
    if expected is not None and job.spec_version not in expected:
        raise VersionConflict(max(expected, default=None), job.spec_version)
    return job


async def _replace(connection: Session, tenant: TenantContext, job: LockedJob, spec: JobSpec) -> Job:
    spec = with_name(spec, job.job_id)
    # Whether a default was written or left out makes no difference.
    is_same = read_stored(job.spec) == read_stored(write_spec(spec))
    payload = write_payload(spec.payload)
    if not (is_same and await jobs.has_payload(connection, job.job_id, job.spec_version, payload)):
        await _write(connection, tenant, job, spec)
    return await read_job(connection, tenant, job.job_id)


async def _write(connection: Session, tenant: TenantContext, job: LockedJob, spec: JobSpec) -> None:
    if isinstance(spec.target, BrokerTarget):
        check_connection(spec.target, await broker_connections.types(connection, tenant.tenant_id))
    change = await _change(tenant, job, spec)
    when = change.digest, change.fire_at, change.due_at
    row = job_row(tenant.tenant_id, job.job_id, spec, when, tenant.trace_parent)
    version = job.spec_version + 1
    referred = await tenant.references.write(
        connection,
        References(tenant.tenant_id, {change.digest: change.canonical}, lane_keys([row])),
        lambda: _write_version(connection, tenant, row, version, job.now_at),
    )
    if change.is_rescheduled:
        await jobs.forget_ahead(connection, job.job_id, job.now_at)
        await jobs.add_gaps(connection, job.job_id, job.spec_version, await unfired(tenant, job))
        await jobs.add_gaps(connection, job.job_id, version, change.gaps)
    belongs = *referred, version, row.priority, row.gate_id
    await _set_timer(connection, tenant, job, change, belongs)


async def _change(tenant: TenantContext, job: LockedJob, spec: JobSpec) -> Reschedule:
    if not is_costly(spec.schedule):
        return reschedule(job, spec, tenant.shortest)
    before = timing_of(read_stored(job.spec))
    key = "edit", job.job_id, before, timing_of(spec), job.canonical, job.fire_at
    return await compute_outside(
        tenant.tenant_id, key, lambda: _answer(reschedule(job, spec, tenant.shortest)), job.now_at
    )


def _answer(change: Reschedule) -> Computed[Reschedule]:
    """It is valid until its first tick, or the first one before that which the clocks jump over."""
    if not change.is_rescheduled or change.fire_at is None:
        return Computed(change)
    return Computed(change, min([change.fire_at, *(from_us(gap.first_us) for gap in change.gaps)]))


async def _write_version(
    connection: Session, tenant: TenantContext, row: NewJob, version: int, now_at: datetime
) -> ReferenceIds | None:
    written = await jobs.edit(connection, tenant.tenant_id, row, version, now_at)
    if written is EditRefusal.NAME_TAKEN:
        raise NameTaken(row.name)
    return None if written is EditRefusal.INCOMPLETE else written


async def _set_timer(
    connection: Session,
    tenant: TenantContext,
    job: LockedJob,
    change: Reschedule,
    belongs: tuple[int, int, int, int, int | None],
) -> None:
    if change.fire_at is None or change.due_at is None:
        if change.is_rescheduled:  # to manual
            await jobs.drop_timer(connection, job.job_id, job.now_at, is_finished=False)
            await jobs.unfinish(connection, job.job_id)
        return
    timer = TickTimer(change.fire_at, change.due_at, job.status == "paused", *belongs)
    if job.fire_at is None:
        await jobs.add_timer(connection, tenant.tenant_id, job.job_id, timer)
    else:
        await jobs.move_timer(connection, job.job_id, timer)
