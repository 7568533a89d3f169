"""From specifications to new jobs in the database."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.domain.ids import job_id_of, partition_for, partition_of
from evertick.domain.job.definition import Definition, define
from evertick.domain.job.spec import JobSpec
from evertick.domain.job.timing import Binding, Timing, binding_of, timing_of
from evertick.domain.misfire import Gap
from evertick.domain.schedule.instants import to_us
from evertick.domain.schedule.text import is_recurrence
from evertick.runtime.courtesy import aside
from evertick.store import jobs
from evertick.store.statements import Connection
from evertick.usecases.catalogue import Ids, Place, priority_number
from evertick.usecases.context import Tenant
from evertick.usecases.settling import swallowed
from evertick.usecases.writing import job_row, with_name


class Draft(NamedTuple):
    """A job that is not written yet."""

    job_id: int
    spec: JobSpec
    made: Definition
    gaps: tuple[Gap, ...]


class Drafter:
    """Drafts new jobs of one tenant at one instant; those with the same schedule and policies are defined once."""

    def __init__(self, tenant: Tenant, now_at: datetime) -> None:
        self._tenant = tenant
        self._now_at = now_at
        self._now_us = to_us(now_at)
        self._shared: dict[Timing, tuple[Definition, tuple[Gap, ...]]] = {}

    def draft(self, spec: JobSpec, number: int) -> Draft:
        """Draft a job; InvalidFields says why its schedule cannot be used."""
        job_id = job_id_of(number, partition_for(self._tenant.tenant_id, number, self._tenant.fanout))
        return Draft(job_id, with_name(spec, job_id), *self._define(spec, job_id))

    async def draft_with_care(self, spec: JobSpec, number: int) -> Draft:
        """Draft a job without keeping the event loop from its other work, however long its ticks take to find."""
        if is_recurrence(spec.schedule):
            return await aside(lambda: self.draft(spec, number))
        return self.draft(spec, number)

    def _define(self, spec: JobSpec, job_id: int) -> tuple[Definition, tuple[Gap, ...]]:
        """When the job fires, and the ticks that the clocks jump over before it first does."""
        timing = timing_of(spec)
        found = self._shared.get(timing)
        if found is None:
            made = define(spec, job_id, self._now_at, self._now_at, self._tenant.shortest)
            found = made, self._swallowed(made)
            if binding_of(*timing[:4]) is not Binding.JOB:
                self._shared[timing] = found
        elif spec.jitter_seconds:
            made, gaps = found
            found = made.for_job(job_id), gaps  # the one thing that is each job's own
        return found

    def _swallowed(self, made: Definition) -> tuple[Gap, ...]:
        return () if made.first_fire_at is None else swallowed(made.rule, self._now_us, to_us(made.first_fire_at))


async def refer(connection: Connection, tenant: Tenant, drafts: Sequence[Draft]) -> Ids:
    """The ids that drafts refer to."""
    rules = {made.digest: made.canonical for _, _, made, _ in drafts}
    places = {(spec.target.queue_name, partition_of(job_id), spec.priority) for job_id, spec, _, _ in drafts}
    wanted = [Place(queue, partition, priority_number(priority)) for queue, partition, priority in places]
    return await tenant.catalogue.add(connection, tenant.tenant_id, rules, wanted)


async def write(
    connection: Connection, tenant: Tenant, drafts: Sequence[Draft], ids: Ids, now_at: datetime
) -> set[int]:
    """Write drafts, and return the ids of those whose name was free."""
    rows = [
        job_row(job_id, spec, (made.digest, made.first_fire_at, made.first_due_at), ids)
        for job_id, spec, made, _ in drafts
    ]
    gaps = [(job_id, gap) for job_id, _, _, gaps in drafts for gap in gaps]
    return await jobs.create(connection, tenant.tenant_id, now_at, rows, gaps)
