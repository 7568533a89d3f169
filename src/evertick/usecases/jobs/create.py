"""Creating a job; and drafts of new jobs, and writing them, which all ways of creating share.

Its number comes from a sequence and the time from the database before anything is written, so that the job, its version
and its timer are one statement. A rule, queue or lane that is missing is committed before: nothing ever refers to one
that was rolled back, and one that nothing refers to does no harm.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from evertick.contract.broker_targets import check_connection
from evertick.contract.job import Job, JobSpec, timing_of
from evertick.domain.ids import Prefix, format_id, job_id_of, partition_for
from evertick.domain.job.definition import Definition, define
from evertick.domain.job.timing import Binding, Timing, binding_of
from evertick.domain.misfire import TickGap, swallowed
from evertick.domain.schedule.instants import to_us
from evertick.domain.schedule.text import is_costly
from evertick.domain.states import JobStatus
from evertick.store.jobs import jobs
from evertick.store.jobs.jobs import JobNumbers, NewJob, NumbersTaken, lane_keys
from evertick.store.statements import Connection
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import NameTaken
from evertick.usecases.jobs.rows import as_spec, fields_in_force, job_row, with_name
from evertick.usecases.references import References
from evertick.usecases.transactions import Computed, compute_outside, forget_computed

_T = TypeVar("_T")
_TRIES = 5


class Draft(NamedTuple):
    """A job that is not written yet. `trace_parent`: the trace context of the request for it."""

    job_id: int
    spec: JobSpec
    made: Definition
    gaps: tuple[TickGap, ...]
    trace_parent: str | None


class Drafter:
    """Drafts new jobs of one tenant at one instant; those with the same schedule and policies are defined once."""

    def __init__(self, tenant: TenantContext, drawn: JobNumbers) -> None:
        self._tenant = tenant
        self._now_at = now_at = drawn.now_at
        self._now_us = to_us(now_at)
        self._connections = drawn.connection_types
        self._shared: dict[Timing, tuple[Definition, tuple[TickGap, ...]]] = {}

    def read(self, job: object) -> JobSpec:
        """A specification, read if it comes as fields."""
        return as_spec(job, self._tenant.default_jitter_seconds)

    def draft(self, spec: JobSpec, number: int) -> Draft:
        """Draft a job; InvalidFields says why its schedule or its target cannot be used. Costly ones in the background
        thread.
        """
        check_connection(spec.target, self._connections)
        job_id = job_id_of(number, partition_for(self._tenant.tenant_id, number))
        return Draft(job_id, with_name(spec, job_id), *self._define(spec, job_id), self._tenant.trace_parent)

    def _define(self, spec: JobSpec, job_id: int) -> tuple[Definition, tuple[TickGap, ...]]:
        """When the job fires, and the ticks before its first that the clocks jump over."""
        timing = timing_of(spec)
        found = self._shared.get(timing)
        if found is None:
            made = define(timing, job_id, self._now_at, self._now_at, self._tenant.shortest)
            found = made, self._swallowed(made)
            if binding_of(timing) is not Binding.JOB:
                self._shared[timing] = found
        elif spec.jitter_seconds:
            made, gaps = found
            found = made.for_job(job_id), gaps  # jitter is the one thing that differs between them
        return found

    def _swallowed(self, made: Definition) -> tuple[TickGap, ...]:
        return () if made.first_fire_at is None else swallowed(made.rule, self._now_us, to_us(made.first_fire_at))


async def create(tenant: TenantContext, job: object) -> Job:
    """Create a job from its fields or its specification.

    InvalidFields says what is wrong with it, NameTaken that another job has its name.
    """
    spec = as_spec(job, tenant.default_jitter_seconds)
    return await numbered(lambda: _create(tenant, spec))


async def _create(tenant: TenantContext, spec: JobSpec) -> Job:
    now_at, new = await draft_one(tenant, spec)
    try:
        created = await write(tenant.pool, tenant, [new], now_at)
    except NumbersTaken:
        forget_computed(_key(spec))
        raise
    if not created:
        raise NameTaken(str(new.spec.name))
    tenant.notify(created)
    return view(new, now_at)


async def draft_one(tenant: TenantContext, spec: JobSpec) -> tuple[datetime, Draft]:
    """The database's time, and the draft of a job at this time."""
    drawn = await jobs.numbers(tenant.pool, tenant.tenant_id, 1)
    now_at, (number,), drafter = drawn.now_at, drawn.numbers, Drafter(tenant, drawn)
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


async def write(connection: Connection, tenant: TenantContext, drafts: Sequence[Draft], now_at: datetime) -> set[int]:
    """Write drafts, and return the ids of those whose name was free."""
    rows = rows_of(tenant, drafts)
    gaps = [(draft.job_id, gap) for draft in drafts for gap in draft.gaps]
    return await tenant.references.write(
        connection,
        references_of(tenant, drafts, rows),
        lambda: jobs.create(connection, tenant.tenant_id, now_at, rows, gaps),
    )


async def add_references(connection: Connection, tenant: TenantContext, drafts: Sequence[Draft]) -> None:
    """Add all that drafts refer to, before they are written part by part."""
    await tenant.references.add_all(connection, references_of(tenant, drafts, rows_of(tenant, drafts)))


def rows_of(tenant: TenantContext, drafts: Sequence[Draft]) -> list[NewJob]:
    return [
        job_row(tenant.tenant_id, job_id, spec, (made.digest, made.first_fire_at, made.first_due_at), trace_parent)
        for job_id, spec, made, _, trace_parent in drafts
    ]


def references_of(tenant: TenantContext, drafts: Sequence[Draft], rows: Sequence[NewJob]) -> References:
    return References(tenant.tenant_id, {draft.made.digest: draft.made.canonical for draft in drafts}, lane_keys(rows))


async def numbered(work: Callable[[], Awaitable[_T]]) -> _T:
    """Do work that numbers jobs and writes them; again, with new numbers, if other jobs have these."""
    for _ in range(_TRIES - 1):
        try:
            return await work()
        except NumbersTaken:
            continue
    return await work()
