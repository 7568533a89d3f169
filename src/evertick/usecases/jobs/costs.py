"""What submissions draw from a tenant's quotas, the same for API, App and command line."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from evertick.contract.annotations import DEFAULT_TIMEZONE
from evertick.domain.admission import AdmissionRequest
from evertick.domain.job.timing import fires_at_once
from evertick.domain.policies import Priority
from evertick.runtime.loop import Slices
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs import reading

_PRIORITIES = [each.value for each in Priority]

OF_RUN = AdmissionRequest(runs=1, priority=Priority.NORMAL)
"""A trigger or a replay. Whatever the priority of its job: somebody asked for it."""
OF_REPLAYS = AdmissionRequest(priority=Priority.NORMAL)
"""A replay of many dead letters, apart from what it replays."""
OF_CHANGE = AdmissionRequest(is_stored=False)
"""A change that stores only its entry in the audit log."""


def of_creation(job: object) -> AdmissionRequest:
    return AdmissionRequest(jobs=1, runs=_runs_at_once(job, datetime.now(UTC)), priority=priority_of(job))


def of_edit(job: object) -> AdmissionRequest:
    return AdmissionRequest(runs=_runs_at_once(job, datetime.now(UTC)))


async def of_put(tenant: TenantContext, name: str, job: object) -> AdmissionRequest:
    is_new = not await reading.has_name(tenant, name)
    priority = priority_of(job) if is_new else None
    return AdmissionRequest(jobs=int(is_new), runs=_runs_at_once(job, datetime.now(UTC)), priority=priority)


def of_batch(jobs: int) -> AdmissionRequest:
    """What is known of a batch before it is decoded. `of_runs` has the rest, once it is, and each job its priority."""
    return AdmissionRequest(submits=max(1, jobs), jobs=jobs, is_batch=jobs > 0, priority=Priority.HIGH)


async def of_runs(jobs: Sequence[object]) -> AdmissionRequest:
    """The runs of a batch's jobs that are due at once."""
    now, slices = datetime.now(UTC), Slices()
    runs = 0
    for job in jobs:
        runs += _runs_at_once(job, now)
        if slices.is_over:
            await slices.pause()
    return AdmissionRequest(submits=0, runs=runs)


def priority_of(job: object) -> Priority:
    """The priority of a job as its author wrote it. A word that is none is refused later."""
    word = job.get("priority") if isinstance(job, Mapping) else None
    return Priority(word) if word in _PRIORITIES else Priority.NORMAL


def _runs_at_once(job: object, now: datetime) -> int:
    """How many runs a job, as its author wrote it, has within a second: only such runs can overload the workers.

    By this machine's clock, which may be off: it decides about admission alone, not about when anything runs.
    """
    fields = job if isinstance(job, Mapping) else {}
    schedule, timezone = fields.get("schedule"), fields.get("timezone") or DEFAULT_TIMEZONE
    if not (isinstance(schedule, str) and isinstance(timezone, str)):
        return 0
    return int(fires_at_once(schedule, timezone, now))
