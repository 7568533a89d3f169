"""Jobs as their owners see them. Times are aware datetimes; what JSON makes of them is for the API to say."""

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from evertick.domain.ids import Prefix, format_id
from evertick.domain.job.fields import with_defaults
from evertick.domain.schedule.instants import SECOND_US
from evertick.store.jobs import JobRow


class JobStatus(StrEnum):
    """How a job stands; a deleted one is not there."""

    ACTIVE = "active"  # it fires, or waits for triggers
    PAUSED = "paused"  # by a person, or because its rule or target cannot be used
    FINISHED = "finished"  # its last tick has passed


@dataclass(frozen=True, slots=True)
class Job:
    """A job. `fields` has every field of its specification by the API's name, with the value in force."""

    job_id: str
    status: JobStatus
    next_run_at: datetime | None
    spec_version: int
    created_at: datetime
    updated_at: datetime
    paused_at: datetime | None
    pause_reason: str | None
    fields: dict[str, Any]

    @property
    def name(self) -> str:
        name: str = self.fields["name"]
        return name


def job_of(row: JobRow) -> Job:
    is_paused = row.status == JobStatus.PAUSED
    return Job(
        job_id=format_id(Prefix.JOB, row.job_id),
        status=JobStatus.PAUSED if is_paused else JobStatus.FINISHED if row.is_finished else JobStatus.ACTIVE,
        next_run_at=None if is_paused else row.fire_at,
        spec_version=row.spec_version,
        created_at=row.created_at,
        updated_at=row.updated_at,
        paused_at=row.paused_at,
        pause_reason=row.pause_reason,
        fields=in_force(stored_fields(row.spec, row.payload), row.grace_us),
    )


def stored_fields(spec: str, payload: str | None) -> dict[str, Any]:
    """The fields of a stored specification."""
    fields = with_defaults(json.loads(spec))
    fields["payload"] = None if payload is None else json.loads(payload)
    return fields


def in_force(fields: dict[str, Any], grace_us: int) -> dict[str, Any]:
    """The fields with the grace that was worked out where the author chose none."""
    if fields["misfire_grace_seconds"] is None and fields["schedule"] != "manual":
        grace = grace_us / SECOND_US
        return {**fields, "misfire_grace_seconds": int(grace) if grace.is_integer() else grace}
    return fields
