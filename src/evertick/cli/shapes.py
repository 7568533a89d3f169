"""Jobs, runs and dead letters as JSON objects: the names and the order of the HTTP contract."""

import dataclasses
from typing import Any

from evertick.client import models
from evertick.client.runs import Entry
from evertick.domain.job.spec import JobSpec
from evertick.usecases.runs import views as history
from evertick.usecases.runs.dead_letters import DeadLetter


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


_STANDING = (
    "job_id",
    "name",
    "status",
    "next_run_at",
    "spec_version",
    "created_at",
    "updated_at",
    "paused_at",
    "pause_reason",
)
_JOB = (*_STANDING, *(name for name in JobSpec.__struct_fields__ if name not in _STANDING))
_RUN = _names(history.Run)
_GAP = _names(history.SkippedTicks)
_ATTEMPT = (*_names(history.Attempt), "result")
_LETTER = _names(DeadLetter)


def job_shape(job: models.Job) -> dict[str, Any]:
    return {**_shape(job, _JOB), "payload": job.payload}


def run_shape(entry: Entry) -> dict[str, Any]:
    """A run, or a gap in its place."""
    return _shape(entry, _GAP if isinstance(entry, models.Gap) else _RUN)


def detail_shape(detail: models.RunDetail) -> dict[str, Any]:
    return {**run_shape(detail), "attempts": [_shape(attempt, _ATTEMPT) for attempt in detail.attempts]}


def letter_shape(letter: models.DeadLetter) -> dict[str, Any]:
    return _shape(letter, _LETTER)


def _shape(model: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: _whole(getattr(model, name)) for name in names}


def _whole(value: Any) -> Any:
    """Seconds are whole where they can be: the models have them as floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
