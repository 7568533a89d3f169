"""The shapes of what is asked and answered, as far as they are not the use cases' own. All refuse unknown fields."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from evertick.api import patterns
from evertick.api.instants import YEARS, Instant, Reported
from evertick.domain.access import KeyRole
from evertick.domain.job.limits import LONGEST_WAIT_S
from evertick.domain.job.values import NAME_MAX_LENGTH
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.preview import MAX_ROWS
from evertick.domain.states import GapStatus, RunStatus
from evertick.usecases.context import MAX_PER_PAGE
from evertick.usecases.jobs.lifecycle import Missed
from evertick.usecases.jobs.views import JobStatus
from evertick.usecases.runs.dead_letters import DEFAULT_RATE
from evertick.usecases.tenants.keys import LONGEST_GRACE

LONGEST_POLL_SECONDS = 30
"""Proxies that cut idle requests off do so later, as a rule after a minute."""

Limit = Annotated[int, Meta(ge=1, le=MAX_PER_PAGE, description="How many at most.")]
_CURSOR = "Where the page before ended, from its Link header. Not to be made up or taken apart."
JobCursor = Annotated[str, Meta(pattern=patterns.JOB_ID, description=_CURSOR)]
HistoryCursor = Annotated[str, Meta(pattern=patterns.HISTORY, description=_CURSOR)]
RunCursor = Annotated[str, Meta(pattern=patterns.RUNS, description=_CURSOR)]
LetterCursor = Annotated[str, Meta(pattern=patterns.LETTER, description=_CURSOR)]
TenantCursor = Annotated[str, Meta(pattern=patterns.TENANT_ID, description=_CURSOR)]
KeyCursor = Annotated[str, Meta(pattern=patterns.KEY_ID, description=_CURSOR)]
ChangeCursor = Annotated[str, Meta(pattern=patterns.ENTRY, description=_CURSOR)]
WorkerId = Annotated[str, Meta(pattern=patterns.WORKER_ID, description="A name that no other worker has.")]
Token = Annotated[str, Meta(pattern=patterns.FENCING, examples=["412.1781532000000001"])]
Text = Annotated[str, Meta(max_length=1000, pattern=patterns.STORABLE)]
Name = Annotated[str, Meta(max_length=NAME_MAX_LENGTH, pattern=patterns.STORABLE)]
JobId = Annotated[str, Meta(pattern=patterns.JOB_ID)]
TenantId = Annotated[str, Meta(pattern=patterns.TENANT_ID)]
Label = Annotated[str, Meta(pattern=patterns.LABEL, max_length=400)]


class HistoryStatus(StrEnum):
    """The status of a run, or of a gap in its place."""

    PENDING = RunStatus.PENDING
    RUNNING = RunStatus.RUNNING
    RETRYING = RunStatus.RETRYING
    SUCCESS = RunStatus.SUCCESS
    DEAD = RunStatus.DEAD
    CANCELLED = RunStatus.CANCELLED
    SKIPPED = GapStatus.SKIPPED
    MISSED = GapStatus.MISSED

    @property
    def meant(self) -> RunStatus | GapStatus:
        return GapStatus(self.value) if self.value in set(GapStatus) else RunStatus(self.value)


class Nothing(Struct, forbid_unknown_fields=True):
    """An empty object, or no body at all."""


class JobsQuery(Struct, forbid_unknown_fields=True):
    status: JobStatus | None = None
    label: Annotated[list[Label], Meta(max_length=64, description="`key:value`; several must all be there.")] = []
    name_prefix: Name | None = None
    queue: Annotated[str, Meta(max_length=63, pattern=patterns.STORABLE)] | None = None
    limit: Limit = 50
    cursor: JobCursor | None = None


class JobRunsQuery(Struct, forbid_unknown_fields=True, rename={"from_at": "from", "to_at": "to"}):
    status: HistoryStatus | None = None
    from_at: Instant | None = None
    to_at: Instant | None = None
    limit: Limit = 20
    cursor: HistoryCursor | None = None


class RunsQuery(Struct, forbid_unknown_fields=True, rename={"from_at": "from", "to_at": "to"}):
    status: RunStatus | None = None
    from_at: Instant | None = None
    to_at: Instant | None = None
    limit: Limit = 20
    cursor: RunCursor | None = None


class LettersQuery(Struct, forbid_unknown_fields=True):
    job_id: JobId | None = None
    limit: Limit = 50
    cursor: LetterCursor | None = None


class TenantsQuery(Struct, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: TenantCursor | None = None


class ChangesQuery(Struct, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: ChangeCursor | None = None


class KeysQuery(Struct, forbid_unknown_fields=True):
    tenant_id: TenantId | None = None
    limit: Limit = 50
    cursor: KeyCursor | None = None


class UpcomingQuery(Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=MAX_ROWS, description="How many fire times.")] = 10


class PauseRequest(Struct, forbid_unknown_fields=True):
    reason: Text | None = None


class ResumeRequest(Struct, forbid_unknown_fields=True):
    missed: Missed = Missed.SKIP


class TriggerRequest(Struct, forbid_unknown_fields=True):
    payload: Any = msgspec.UNSET


class LetterFilter(Struct, forbid_unknown_fields=True):
    """Which dead letters; without a word, all of them."""

    job_id: JobId | None = None
    died_from: Instant | None = None
    died_before: Instant | None = None


class ReplayRequest(Struct, forbid_unknown_fields=True):
    filter: LetterFilter = msgspec.field(default_factory=LetterFilter)
    rate_per_second: Annotated[float, Meta(ge=0.01, le=1000)] = DEFAULT_RATE


class LeaseRequest(Struct, forbid_unknown_fields=True):
    worker_id: WorkerId
    max: Annotated[int, Meta(ge=1, le=1000)] = 100
    wait_seconds: Annotated[float, Meta(ge=0, le=LONGEST_POLL_SECONDS, description="For the first of them.")] = 20.0
    handlers: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=255)]],
            Meta(min_length=1, max_length=1000, description="Those that the worker has; without it, any."),
        ]
        | None
    ) = None


class HeartbeatRequest(Struct, forbid_unknown_fields=True):
    tokens: Annotated[list[Token], Meta(max_length=10_000, description="All that the worker holds.")] | None = None


class OutcomeReport(Struct, forbid_unknown_fields=True):
    token: Token
    result: Literal["success", "failed", "timed_out", "deferred"]
    started_at: Reported | None = None
    finished_at: Reported | None = None
    error: str | None = None
    retryable: bool | None = None
    retry_after_seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    output: Any = None


class OutcomesRequest(Struct, forbid_unknown_fields=True):
    worker_id: WorkerId
    outcomes: Annotated[list[OutcomeReport], Meta(max_length=10_000)]


class TenantRequest(Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=NAME_MAX_LENGTH, pattern=patterns.NAME)]
    weight: Annotated[int, Meta(ge=1, le=1000)] | None = None
    fanout: Annotated[int, Meta(ge=1, le=256)] | None = None
    jobs_quota: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    submits_per_second: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    submit_burst: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    running_quota: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ready_quota: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    shortest_interval_seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    http_timeout_max_seconds: Annotated[int, Meta(ge=1, le=3600)] | None = None
    storage_quota_bytes: Annotated[int, Meta(ge=0, le=2**53)] | None = None


class TenantPatch(Struct, forbid_unknown_fields=True):
    weight: Annotated[int, Meta(ge=1, le=1000)] | None = None
    fanout: Annotated[int, Meta(ge=1, le=256)] | None = None
    jobs_quota: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    submits_per_second: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    submit_burst: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    running_quota: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ready_quota: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    shortest_interval_seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    http_timeout_max_seconds: Annotated[int, Meta(ge=1, le=3600)] | None = None
    storage_quota_bytes: Annotated[int, Meta(ge=0, le=2**53)] | None = None


class KeyRequest(Struct, forbid_unknown_fields=True):
    role: KeyRole
    name: Name = ""
    expires_at: (
        Annotated[datetime, Meta(tz=True, description="An instant in the future, with its zone."), YEARS] | None
    ) = None
    tenant_id: TenantId | None = None


class RotateRequest(Struct, forbid_unknown_fields=True):
    grace_seconds: Annotated[float, Meta(ge=0, le=LONGEST_GRACE.total_seconds())] = 0.0


class PreviewRequest(Struct, forbid_unknown_fields=True):
    schedule: str
    timezone: str | None = None
    dst_gap: DstGap | None = None
    dst_overlap: DstOverlap | None = None
    start_at: Instant | None = None
    end_at: Instant | None = None
    jitter_seconds: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)] | None = None
    count: Annotated[int, Meta(ge=1, le=MAX_ROWS)] | None = None
    after: Instant | None = None
