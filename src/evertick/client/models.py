"""What the API answers with. Words such as a status are plain texts, for a newer server may know more of them."""

from datetime import datetime
from typing import Any

from msgspec import Struct


class Job(Struct, frozen=True, kw_only=True):
    """A job, every field with its value in force. `spec_version` is what `if_match` takes."""

    job_id: str
    name: str
    status: str
    next_run_at: datetime | None
    spec_version: int
    schedule: str
    target: dict[str, Any]
    timezone: str = "UTC"
    created_at: datetime | None = None
    updated_at: datetime | None = None
    paused_at: datetime | None = None
    pause_reason: str | None = None
    dst_gap: str = "catch_up"
    dst_overlap: str = "first"
    start_at: datetime | None = None
    end_at: datetime | None = None
    payload: Any = None
    idempotency_key_template: str = ""
    max_retries: int = 3
    retry_backoff: str = "exponential"
    retry_delay_seconds: float = 10
    retry_max_delay_seconds: float = 3600
    timeout_seconds: float = 300
    missed_window: str = "RUN_ONCE"
    misfire_grace_seconds: float | None = None
    max_missed: int = 100
    concurrent_policy: str = "SKIP"
    max_concurrent: int = 1
    jitter_seconds: float = 0
    priority: str = "normal"
    labels: dict[str, str] = {}
    retain_seconds: float = 86_400


class InputError(Struct, frozen=True):
    """One thing wrong with an input; `pointer` is a JSON pointer."""

    pointer: str
    detail: str


class Verdict(Struct, frozen=True, kw_only=True):
    """What became of one job of a batch: created if it has a `job_id`, else `errors` say why not."""

    line: int
    status: int
    job_id: str | None = None
    errors: tuple[InputError, ...] = ()


class Run(Struct, frozen=True, kw_only=True):
    """A run by its latest attempt."""

    run_id: str
    job_id: str
    scheduled_at: datetime
    status: str
    attempt: int
    reason: str
    started_at: datetime | None = None
    finished_at: datetime | None = None
    duration_ms: float | None = None
    spec_version: int | None = None
    worker_id: str | None = None
    result_code: int | None = None
    error: str | None = None


class Gap(Struct, frozen=True, kw_only=True):
    """Ticks that did not run, from `scheduled_at` to `until`."""

    status: str
    reason: str
    scheduled_at: datetime
    until: datetime
    count: int
    job_id: str | None = None
    spec_version: int | None = None
    run_id: None = None


class Attempt(Struct, frozen=True, kw_only=True):
    """One attempt of a run. `result` is None while it is open."""

    token: str
    attempt: int
    status: str | None = None
    result: str | None = None
    due_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    duration_ms: float | None = None
    worker_id: str | None = None
    result_code: int | None = None
    error: str | None = None
    excerpt: str | None = None


class RunDetail(Run, frozen=True, kw_only=True):
    """A run with all its attempts, the first one first."""

    attempts: tuple[Attempt, ...] = ()


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A run whose attempts are used up."""

    run_id: str
    job_id: str
    name: str
    scheduled_at: datetime
    died_at: datetime
    attempt: int
    reason: str
    spec_version: int | None = None
    result_code: int | None = None
    error: str | None = None


class Replaying(Struct, frozen=True, kw_only=True):
    """How many dead letters are runs now, the first thousand of them, and when the last is due.

    `has_more`: more match than one request takes, so ask again.
    """

    replayed: int
    run_ids: tuple[str, ...] = ()
    last_due_at: datetime | None = None
    has_more: bool = False


class Upcoming(Struct, frozen=True, kw_only=True):
    """A fire time to come. `due_at` is later by the job's jitter, `local` is in its zone."""

    fire_at: datetime
    due_at: datetime
    local: str = ""
    notes: tuple[str, ...] = ()


class DstNote(Struct, frozen=True, kw_only=True):
    """Ticks that a change of the clocks takes away."""

    at: datetime
    ticks: int
    note: str
    first_local: str = ""
    last_local: str = ""


class Warned(Struct, frozen=True, kw_only=True):
    """What may not be meant about a schedule."""

    code: str
    severity: str
    message: str


class Preview(Struct, frozen=True, kw_only=True):
    """What a schedule would do."""

    schedule: str
    timezone: str
    description: str
    upcoming: tuple[Upcoming, ...]
    dst_notes: tuple[DstNote, ...] = ()
    warnings: tuple[Warned, ...] = ()
    tzdb: str = ""
