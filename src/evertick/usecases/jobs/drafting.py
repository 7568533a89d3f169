"""From specifications to new jobs in the database."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from evertick.contract.job import JobSpec, timing_of
from evertick.domain.ids import job_id_of, partition_for
from evertick.domain.job.definition import Definition, define
from evertick.domain.job.timing import Binding, Timing, binding_of
from evertick.domain.misfire import Gap
from evertick.domain.schedule.instants import to_us
from evertick.store import jobs
from evertick.store.jobs import NewJob, NumbersTaken, lane_keys
from evertick.store.statements import Connection
from evertick.usecases.context import Tenant
from evertick.usecases.jobs.rows import job_row, with_name
from evertick.usecases.jobs.unfired_ticks import swallowed
from evertick.usecases.references import References

_T = TypeVar("_T")
_TRIES = 5


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
        """Draft a job; InvalidFields says why its schedule cannot be used. Costly ones in the background thread."""
        job_id = job_id_of(number, partition_for(self._tenant.tenant_id, number, self._tenant.fanout))
        return Draft(job_id, with_name(spec, job_id), *self._define(spec, job_id))

    def _define(self, spec: JobSpec, job_id: int) -> tuple[Definition, tuple[Gap, ...]]:
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

    def _swallowed(self, made: Definition) -> tuple[Gap, ...]:
        return () if made.first_fire_at is None else swallowed(made.rule, self._now_us, to_us(made.first_fire_at))


async def write(connection: Connection, tenant: Tenant, drafts: Sequence[Draft], now_at: datetime) -> set[int]:
    """Write drafts, and return the ids of those whose name was free."""
    rows = _rows(drafts)
    gaps = [(job_id, gap) for job_id, _, _, gaps in drafts for gap in gaps]
    return await tenant.references.write(
        connection,
        _references(tenant, drafts, rows),
        lambda: jobs.create(connection, tenant.tenant_id, now_at, rows, gaps),
    )


async def add_references(connection: Connection, tenant: Tenant, drafts: Sequence[Draft]) -> None:
    """Add all that drafts refer to, before they are written part by part."""
    await tenant.references.add_all(connection, _references(tenant, drafts, _rows(drafts)))


def _rows(drafts: Sequence[Draft]) -> list[NewJob]:
    return [
        job_row(job_id, spec, (made.digest, made.first_fire_at, made.first_due_at)) for job_id, spec, made, _ in drafts
    ]


def _references(tenant: Tenant, drafts: Sequence[Draft], rows: Sequence[NewJob]) -> References:
    return References(tenant.tenant_id, {made.digest: made.canonical for _, _, made, _ in drafts}, lane_keys(rows))


async def numbered(work: Callable[[], Awaitable[_T]]) -> _T:
    """Do work that numbers jobs and writes them; again, with new numbers, if other jobs have these."""
    for _ in range(_TRIES - 1):
        try:
            return await work()
        except NumbersTaken:
            continue
    return await work()
