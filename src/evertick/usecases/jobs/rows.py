"""Jobs between their forms: specification, rows that hold it, and what owners see."""

import functools
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from evertick.contract.derived import lenient
from evertick.contract.job import Job, JobSpec, job_fields
from evertick.contract.job_reading import read_spec
from evertick.contract.target import WorkerTarget
from evertick.domain.errors import InvalidInput
from evertick.domain.gate import gate_of
from evertick.domain.idempotency import DEFAULT_TEMPLATE
from evertick.domain.ids import Prefix, format_id
from evertick.domain.job.checks import Json
from evertick.domain.policies import Backoff
from evertick.domain.schedule.instants import SECOND_US
from evertick.domain.states import JobStatus, OpenAttempt, Outcome, RunStatus, run_status
from evertick.store.jobs.jobs import JobRow, NewJob
from evertick.usecases.references import priority_number

MAX_HANDLER_PART = 200
"""Of a generated name, which has room for an id."""
_SOON = re.compile(r"\s*(now|manual|in\s)", re.IGNORECASE)
_json = msgspec.json.Encoder()
_compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

When: TypeAlias = tuple[bytes, datetime | None, datetime | None]
"""The digest of a job's rule, and its timer's fire and due time; None where it has no timer."""
_stored = msgspec.json.Decoder(lenient(JobSpec))


def as_spec(job: object, default_jitter_seconds: float) -> JobSpec:
    """A specification, read if it comes as fields. InvalidFields says what is wrong with it."""
    return job if isinstance(job, JobSpec) else read_spec(with_jitter(job, default_jitter_seconds))


def with_jitter(fields: object, default_jitter_seconds: float) -> object:
    """The fields with the tenant's jitter where their author chose none. What is asked for now is not delayed."""
    if not default_jitter_seconds or not isinstance(fields, Mapping) or fields.get("jitter_seconds") is not None:
        return fields
    schedule = fields.get("schedule")
    if not isinstance(schedule, str) or _SOON.match(schedule):
        return fields
    return {**fields, "jitter_seconds": default_jitter_seconds}


def with_name(spec: JobSpec, job_id: int) -> JobSpec:
    """The specification with a name. Where its author gave none, it is the job's id, after its handler if any."""
    if spec.name is not None:
        return spec
    name = format_id(Prefix.JOB, job_id)
    if isinstance(spec.target, WorkerTarget):
        name = f"{spec.target.handler[:MAX_HANDLER_PART]}-{name.removeprefix(f'{Prefix.JOB}_')}"
    return replace(spec, name=name)


def write_payload(payload: Json) -> str | None:
    if payload is None:
        return None
    try:
        return _json.encode(payload).decode()
    except OverflowError:
        return _compact.encode(payload)  # an integer beyond 64 bits, which msgspec may not know


def write_spec(spec: JobSpec) -> str:
    """The specification as it is stored: JSON of all its fields but the payload, and those that have their default.

    Defaults are part of the API's contract. A release that changes one writes the old one into what is stored.
    """
    return _json.encode(replace(spec, payload=msgspec.UNSET)).decode()


def job_row(tenant_id: int, job_id: int, spec: JobSpec, when: When, trace_parent: str | None) -> NewJob:
    digest, fire_at, due_at = when
    target = spec.target
    assert spec.name is not None
    return NewJob(
        job_id,
        spec.name,
        write_payload(spec.payload),
        write_spec(spec),
        _gate(tenant_id, job_id, spec),
        trace_parent,
        target.queue_name,
        _json.encode(spec.labels).decode() if spec.labels else "{}",
        digest,
        spec.timeout_seconds,
        spec.timezone,
        target.handler if isinstance(target, WorkerTarget) else None,
        None if spec.idempotency_key_template == DEFAULT_TEMPLATE else spec.idempotency_key_template,
        _retry(spec.max_retries, spec.retry_backoff, spec.retry_delay_seconds, spec.retry_max_delay_seconds),
        fire_at,
        due_at,
        priority_number(spec.priority),
        spec.gate_fields.limit,
        spec.has_alerts,
    )


def _gate(tenant_id: int, job_id: int, spec: JobSpec) -> int | None:
    """The gate of its ticks; None: it has none, or leaves it to the payloads of triggers."""
    try:
        return gate_of(spec.gate_fields, tenant_id, job_id, spec.payload)
    except InvalidInput:
        return None


@functools.lru_cache(maxsize=1024)
def _retry(max_retries: int, backoff: Backoff, delay_seconds: float, max_delay_seconds: float) -> str:
    fields = {
        "max_retries": max_retries,
        "backoff": str(backoff),
        "delay_seconds": delay_seconds,
        "max_delay_seconds": max_delay_seconds,
    }
    return _json.encode(fields).decode()


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
        last_run_at=row.last_fire_at,
        last_run_status=_last_status(row),
        consecutive_failures=row.consecutive_failures,
        **fields_in_force(spec, row.grace_us) | {"payload": None if row.payload is None else json.loads(row.payload)},
    )


def _last_status(row: JobRow) -> RunStatus | None:
    if row.last_fire_at is None:
        return None
    latest = OpenAttempt.LEASED if row.is_last_leased else OpenAttempt.READY
    attempt = latest if row.last_result is None else Outcome(row.last_result)
    return run_status(attempt, timer_pending=row.has_last_timer, withdrawn=row.is_last_withdrawn)


def read_stored(spec: str) -> JobSpec:
    """A stored specification, without its payload, whatever release wrote it. Its target is a mapping."""
    return _stored.decode(spec)


def stored_spec(spec: str, payload: str | None) -> JobSpec:
    """A stored specification, checked as a new one is."""
    return read_spec({**json.loads(spec), "payload": None if payload is None else json.loads(payload)})


def fields_in_force(spec: JobSpec, grace_us: int) -> dict[str, Any]:
    """The fields of a specification, with what was worked out where the author chose nothing."""
    fields = job_fields(spec)
    if spec.misfire_grace_seconds is None and spec.schedule != "manual":
        grace = grace_us / SECOND_US
        fields["misfire_grace_seconds"] = int(grace) if grace.is_integer() else grace
    if spec.concurrency_key is not None and spec.max_running is None:
        fields["max_running"] = 1
    return fields
