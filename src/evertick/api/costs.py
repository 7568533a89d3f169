"""What requests draw from their tenant's quotas."""

from collections.abc import Sequence
from datetime import UTC, datetime

from evertick.domain.admission import Request
from evertick.domain.job.at_once import runs_at_once


def of_new_job(body: object) -> Request:
    return Request(jobs=1, runs=_runs([body]))


def of_edit(body: object) -> Request:
    return Request(runs=_runs([body]))


def of_batch(lines: Sequence[object]) -> Request:
    return Request(submits=max(1, len(lines)), jobs=len(lines), runs=_runs(lines))


def _runs(jobs: Sequence[object]) -> int:
    # This machine's clock may be off: it decides about admission alone, not about when anything runs.
    now = datetime.now(UTC)
    return sum(runs_at_once(job, now) for job in jobs)
