"""Requests about jobs besides their fields, the verdicts on a batch of them, and previews of schedules."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import UNSET, Meta, Struct

from evertick.contract import patterns
from evertick.contract.annotations import (
    CURSOR,
    DEFAULT_TIMEZONE,
    LONGEST_WAIT_S,
    Count,
    EndAt,
    Instant,
    JobId,
    Limit,
    Name,
    Ordinal,
    ScheduleText,
    Schema,
    StartAt,
    Time,
    ZoneName,
    accepted,
)
from evertick.contract.job import Payload
from evertick.contract.problem import InputError
from evertick.domain.limits import PREVIEW_MAX_ROWS
from evertick.domain.policies import DstGap, DstOverlap, Missed
from evertick.domain.states import JobStatus

DEFAULT_ROWS = 10
"""Fire times in a preview."""

Label = Annotated[str, Meta(pattern=patterns.LABEL, max_length=400)]


class JobSort(StrEnum):
    """The order of a list of jobs."""

    CREATED = "created"  # oldest first
    NAME = "name"  # byte by byte
    NEXT_RUN = "next_run"  # those that fire next; jobs without a next run are left out
    LAST_STATUS = "last_status"  # those whose latest run has failed, the latest failure first; others are left out
    FAILURES = "failures"  # those with most dead letters; jobs without any are left out


class JobsQuery(Struct, forbid_unknown_fields=True):
    status: JobStatus | None = None
    label: Annotated[list[Label], Meta(max_length=64, description="`key:value`; several must all be there.")] = []
    name_prefix: Name | None = None
    queue: Annotated[str, Meta(max_length=63, pattern=patterns.STORABLE)] | None = None
    handler: Annotated[str, Meta(max_length=255, pattern=patterns.STORABLE)] | None = None
    target_host: (
        Annotated[
            str,
            Meta(max_length=255, pattern=patterns.STORABLE, description="The host of an HTTP target's URL."),
        ]
        | None
    ) = None
    sort: Annotated[
        JobSort,
        Meta(
            description="`created` has the oldest first, `name` compares byte by byte. `next_run` lists jobs that fire"
            " next, `last_status` those whose latest run has failed, the latest failure first, `failures` those with"
            " most of the newest 10,000 dead letters; each leaves out all others."
        ),
    ] = JobSort.CREATED
    finished: Annotated[bool, Meta(description="False leaves out jobs whose last tick has passed.")] = True
    limit: Limit = 50
    cursor: Annotated[str, Meta(max_length=300, pattern=patterns.STORABLE), CURSOR] | None = None


PauseReason = Annotated[str, Meta(max_length=1000, pattern=patterns.STORABLE)]


class PauseRequest(Struct, forbid_unknown_fields=True):
    reason: PauseReason | None = None


class ResumeRequest(Struct, forbid_unknown_fields=True):
    missed: Missed = Missed.SKIP


class TriggerRequest(Struct, forbid_unknown_fields=True):
    payload: Payload = UNSET
    force: Annotated[
        bool, Meta(description="Start a run in any case, even beside others that `concurrent_policy` does not allow.")
    ] = False
    json_schema: ClassVar[Schema] = {"examples": [{}, {"payload": {"report_type": "daily"}}]}


class Nothing(Struct, forbid_unknown_fields=True):
    """An empty object, or no body at all."""


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one job of a batch: created if it has a `job_id`, else `errors` say why not."""

    line: Ordinal
    status: Annotated[int, Meta(extra_json_schema={"enum": [201, 400, 422, 429]})]
    job_id: JobId | None = None
    quota: Annotated[str, Meta(description="With status 429: which quota stood in the way.")] | None = None
    errors: tuple[InputError, ...] = ()


class PreviewRequest(Struct, forbid_unknown_fields=True):
    schedule: ScheduleText
    timezone: ZoneName | None = DEFAULT_TIMEZONE
    dst_gap: DstGap | None = DstGap.CATCH_UP
    dst_overlap: DstOverlap | None = DstOverlap.FIRST
    start_at: StartAt | None = None
    end_at: EndAt | None = None
    jitter_seconds: (
        Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S, description="If it is not given, the tenant's default.")] | None
    ) = None
    count: Annotated[int, Meta(ge=1, le=PREVIEW_MAX_ROWS)] | None = DEFAULT_ROWS
    after: Annotated[Instant, accepted(pattern=patterns.START_AT)] | None = None
    json_schema: ClassVar[Schema] = {
        "examples": [{"schedule": "30 2 * * *", "timezone": "America/New_York", "count": 3}]
    }


class UpcomingQuery(Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=PREVIEW_MAX_ROWS, description="How many fire times.")] = DEFAULT_ROWS


class Upcoming(Struct, frozen=True, kw_only=True):
    """A fire time to come. `due_at` is later by the job's jitter, `local` is in its zone."""

    fire_at: Time
    due_at: Time
    local: str
    notes: tuple[str, ...]


class DstNote(Struct, frozen=True, kw_only=True):
    """Ticks that a change of the clocks takes away."""

    at: Time
    ticks: Count
    first_local: str
    last_local: str
    note: str


class Warned(Struct, frozen=True, kw_only=True):
    """What may not be meant about a schedule."""

    code: str
    severity: str
    message: str


class Preview(Struct, frozen=True, kw_only=True):
    """What a schedule would do."""

    schedule: str
    timezone: str
    tzdb: str
    description: str
    upcoming: tuple[Upcoming, ...]
    dst_notes: tuple[DstNote, ...]
    warnings: tuple[Warned, ...]
