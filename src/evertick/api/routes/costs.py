"""What requests draw from their tenant's quotas."""

from collections.abc import Sequence
from datetime import UTC, datetime

from evertick.api.bodies.batches import BatchText
from evertick.api.requests import AuthenticatedRequest
from evertick.contract.annotations import DEFAULT_TIMEZONE
from evertick.domain.admission import AdmissionRequest
from evertick.domain.job.timing import fires_at_once
from evertick.runtime.loop import Slices


async def of_submission(_: AuthenticatedRequest, body: object) -> AdmissionRequest:  # noqa: ARG001 - whatever it says
    return AdmissionRequest()


async def of_run(_: AuthenticatedRequest, body: object) -> AdmissionRequest:  # noqa: ARG001 - whatever it says
    return AdmissionRequest(runs=1)


async def of_new_job(_: AuthenticatedRequest, body: object) -> AdmissionRequest:
    return AdmissionRequest(jobs=1, runs=_runs(body))


async def of_edit(_: AuthenticatedRequest, body: object) -> AdmissionRequest:
    return AdmissionRequest(runs=_runs(body))


async def of_batch(_: AuthenticatedRequest, text: BatchText) -> AdmissionRequest:
    """What is known of a batch before it is decoded."""
    jobs = len(text.numbers)
    return AdmissionRequest(submits=max(1, jobs), jobs=jobs)


async def of_decoded_batch(lines: Sequence[object]) -> AdmissionRequest:
    """What a batch draws in addition to that."""
    now, slices = _now(), Slices()
    runs = 0
    for line in lines:
        runs += _fires_at_once(line, now)
        if slices.is_over:
            await slices.pause()
    return AdmissionRequest(submits=0, runs=runs)


def _runs(job: object) -> int:
    return int(_fires_at_once(job, _now()))


def _fires_at_once(job: object, now: datetime) -> bool:
    """Whether a job, as its author wrote it, has a run within a second: only such runs can overload the workers."""
    if not isinstance(job, dict):
        return False
    schedule, timezone = job.get("schedule"), job.get("timezone") or DEFAULT_TIMEZONE
    return isinstance(schedule, str) and isinstance(timezone, str) and fires_at_once(schedule, timezone, now)


def _now() -> datetime:
    """By this machine's clock, which may be off: it decides about admission alone, not about when anything runs."""
    return datetime.now(UTC)
