"""Jobs, runs and dead letters as JSON objects, with the names of the HTTP contract."""

import dataclasses
from typing import Any

from evertick.domain.job.spec import JobSpec
from evertick.usecases.dead_letters import DeadLetter
from evertick.usecases.history import Attempt, Entry, RunDetail
from evertick.usecases.views import Job

_FIELDS = tuple(field.name for field in dataclasses.fields(JobSpec))


def job_shape(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "name": job.name,
        "status": job.status,
        "next_run_at": job.next_run_at,
        "spec_version": job.spec_version,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "paused_at": job.paused_at,
        "pause_reason": job.pause_reason,
        # In the order of the contract: the database keeps none.
        **{name: job.fields[name] for name in _FIELDS},
    }


def run_shape(entry: Entry) -> dict[str, Any]:
    """A run, or a gap in its place."""
    return dataclasses.asdict(entry)


def detail_shape(detail: RunDetail) -> dict[str, Any]:
    return {**run_shape(detail.run), "attempts": [attempt_shape(attempt) for attempt in detail.attempts]}


def attempt_shape(attempt: Attempt) -> dict[str, Any]:
    return {**dataclasses.asdict(attempt), "result": attempt.result}


def letter_shape(letter: DeadLetter) -> dict[str, Any]:
    return dataclasses.asdict(letter)
