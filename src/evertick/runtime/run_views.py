"""Runs and gaps as their owners see them."""

from datetime import datetime, timedelta

from evertick.contract.runs import Attempt, Gap, Run
from evertick.domain.gate import waiting_for
from evertick.domain.ids import Prefix, format_id, format_run_id, format_token
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import (
    FINAL_RUNS,
    AttemptStatus,
    GapReason,
    OpenAttempt,
    Outcome,
    RunReason,
    RunStatus,
    gap_status,
    run_status,
)
from evertick.store.jobs.runs import AttemptRow, GapRow, RunRow

_MILLISECOND = timedelta(milliseconds=1)


def run_of(row: RunRow) -> Run:
    status = status_of(row)
    # A run that goes on has not finished, whatever its latest attempt has.
    finished_at = row.finished_at if status in FINAL_RUNS else None
    return Run(
        run_id=format_run_id(row.job_id, to_us(row.fire_at)),
        job_id=format_id(Prefix.JOB, row.job_id),
        scheduled_at=row.fire_at,
        started_at=row.started_at,
        finished_at=finished_at,
        duration_ms=_milliseconds(row.started_at, finished_at),
        status=status,
        attempt=row.attempt or 0,
        reason=RunReason(row.reason),
        spec_version=row.spec_version,
        worker_id=row.worker,
        result_code=row.code,
        error=row.error,
        waiting_for=None if row.waits_at_gate is None else waiting_for(row.waits_at_gate),
        name=row.name,
        handler=row.handler,
        queue=row.queue,
        progress=row.progress,
    )


def status_of(row: RunRow) -> RunStatus:
    """A run's status by its latest attempt."""
    return run_status(_attempt_status(row), timer_pending=row.has_timer, withdrawn=row.is_withdrawn)


def gap_of(row: GapRow) -> Gap:
    reason = GapReason(row.reason)
    return Gap(
        job_id=format_id(Prefix.JOB, row.job_id),
        status=gap_status(reason),
        reason=reason,
        scheduled_at=row.first_at,
        until=row.last_at,
        count=row.ticks,
        spec_version=row.spec_version,
        behind=None if row.behind_at is None else format_run_id(row.job_id, to_us(row.behind_at)),
    )


def attempt_of(row: AttemptRow) -> Attempt:
    run = row.run
    status = _attempt_status(run)
    assert status is not None
    assert run.lane_id is not None
    assert run.seq is not None
    assert run.attempt is not None
    assert row.due_at is not None
    return Attempt(
        token=format_token(run.lane_id, run.seq),
        attempt=run.attempt,
        status=status,
        due_at=row.due_at,
        leased_at=row.leased_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        duration_ms=_milliseconds(run.started_at, run.finished_at),
        worker_id=run.worker,
        result_code=run.code,
        error=run.error,
        excerpt=row.excerpt,
        result=status if isinstance(status, Outcome) else None,
    )


def worker_name(tenant_id: int, worker: str | None) -> str | None:
    """A worker's name as its tenant gave it: its leases are held under a name that no other tenant's worker has."""
    return None if worker is None else worker.removeprefix(f"{tenant_id}/")


def _attempt_status(row: RunRow) -> AttemptStatus | None:
    if row.seq is None:
        return None
    if row.result is not None:
        return Outcome(row.result)
    return OpenAttempt.LEASED if row.is_leased else OpenAttempt.READY


def _milliseconds(started_at: datetime | None, finished_at: datetime | None) -> int | None:
    return None if started_at is None or finished_at is None else (finished_at - started_at) // _MILLISECOND
