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


class Drafter:
    """Drafts new jobs of one tenant at one instant; those with the same schedule and policies are defined once."""

    def __init__(self, tenant: Tenant, now_at: datetime) -> None:
        self._tenant = tenant
        self._now_at = now_at
        self._shared: dict[Timing, Definition] = {}

    def draft(self, spec: JobSpec, number: int) -> Draft:
        """Draft a job; InvalidFields says why its schedule cannot be used."""
        job_id = job_id_of(number, partition_for(self._tenant.tenant_id, number, self._tenant.fanout))
        return Draft(job_id, with_name(spec, job_id), self._define(spec, job_id))

    def _define(self, spec: JobSpec, job_id: int) -> Definition:
        timing = timing_of(spec)
        made = self._shared.get(timing)
        if made is None:
            made = define(spec, job_id, self._now_at, self._now_at, self._tenant.shortest)
            if not spec.jitter_seconds and binding_of(*timing[:4]) is not Binding.JOB:
                self._shared[timing] = made
        return made


async def refer(connection: Connection, tenant: Tenant, drafts: Sequence[Draft]) -> Ids:
    """The ids that drafts refer to."""
    rules = {made.digest: made.canonical for _, _, made in drafts}
    places = {
        Place(spec.target.queue_name, partition_of(job_id), priority_number(spec.priority))
        for job_id, spec, _ in drafts
    }
    return await tenant.catalogue.add(connection, tenant.tenant_id, rules, places)


async def write(
    connection: Connection, tenant: Tenant, drafts: Sequence[Draft], ids: Ids, now_at: datetime
) -> set[int]:
    """Write drafts, and return the ids of those whose name was free."""
    rows = [
        job_row(job_id, spec, (made.digest, made.first_fire_at, made.first_due_at), ids)
        for job_id, spec, made in drafts
    ]
    gaps = [(job_id, gap) for job_id, _, made in drafts for gap in _swallowed(made, now_at)]
    return await jobs.create(connection, tenant.tenant_id, now_at, rows, gaps)


def _swallowed(made: Definition, now_at: datetime) -> tuple[Gap, ...]:
    return () if made.first_fire_at is None else swallowed(made.rule, to_us(now_at), to_us(made.first_fire_at))
