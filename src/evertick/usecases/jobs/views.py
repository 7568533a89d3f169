"""Jobs as their owners see them."""

import json
from typing import Any

import msgspec

from evertick.contract.derived import lenient
from evertick.contract.job import Job, JobSpec, JobStatus, job_fields
from evertick.contract.job_reading import read_spec
from evertick.domain.ids import Prefix, format_id
from evertick.domain.schedule.instants import SECOND_US
from evertick.store.jobs import JobRow

_stored = msgspec.json.Decoder(lenient(JobSpec))


def job_of(row: JobRow) -> Job:
    is_paused = row.status == JobStatus.PAUSED
    spec = read_stored(row.spec)
    return Job(
        job_id=format_id(Prefix.JOB, row.job_id),
        name=str(spec.name),
        status=JobStatus.PAUSED if is_paused else JobStatus.FINISHED if row.is_finished else JobStatus.ACTIVE,
        next_run_at=None if is_paused else row.fire_at,
        spec_version=row.spec_version,
        created_at=row.created_at,
        updated_at=row.updated_at,
        paused_at=row.paused_at,
        pause_reason=row.pause_reason,
        **fields_in_force(spec, row.grace_us) | {"payload": None if row.payload is None else json.loads(row.payload)},
    )


def read_stored(spec: str) -> JobSpec:
    """A stored specification, without its payload, whatever release wrote it. Its target is a mapping."""
    return _stored.decode(spec)


def stored_spec(spec: str, payload: str | None) -> JobSpec:
    """A stored specification, checked as a new one is."""
    return read_spec({**json.loads(spec), "payload": None if payload is None else json.loads(payload)})


def fields_in_force(spec: JobSpec, grace_us: int) -> dict[str, Any]:
    """The fields of a specification, with the grace that was worked out where the author chose none."""
    fields = job_fields(spec)
    if spec.misfire_grace_seconds is None and spec.schedule != "manual":
        grace = grace_us / SECOND_US
        fields["misfire_grace_seconds"] = int(grace) if grace.is_integer() else grace
    return fields
