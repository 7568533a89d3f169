"""What the use cases answer with, as the HTTP API's models."""

import dataclasses

import msgspec

from evertick.client import models
from evertick.client.runs import Entry
from evertick.usecases.jobs.create_many import LineResult
from evertick.usecases.jobs.views import Job
from evertick.usecases.runs import views as history
from evertick.usecases.runs.dead_letters import DeadLetter


def job_model(job: Job) -> models.Job:
    own = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    return msgspec.convert({**own, **job.fields}, models.Job)


def entry_model(entry: history.Entry) -> Entry:
    kind: type[Entry] = models.Gap if isinstance(entry, history.SkippedTicks) else models.Run
    return msgspec.convert(entry, kind, from_attributes=True)


def detail_model(detail: history.RunDetail) -> models.RunDetail:
    attempts = [{**dataclasses.asdict(attempt), "result": attempt.result} for attempt in detail.attempts]
    return msgspec.convert({**dataclasses.asdict(detail.run), "attempts": attempts}, models.RunDetail)


def letter_model(letter: DeadLetter) -> models.DeadLetter:
    return msgspec.convert(letter, models.DeadLetter, from_attributes=True)


def verdict_model(line: int, verdict: LineResult) -> models.Verdict:
    errors = tuple(models.InputError(pointer, reason) for pointer, reason in verdict.faults)
    return models.Verdict(line=line, status=422 if errors else 201, job_id=verdict.job_id, errors=errors)
