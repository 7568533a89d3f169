"""Schedules before they happen: previews, and a job's next fire times."""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from evertick.contract import patterns
from evertick.contract.annotations import (
    DEFAULT_TIMEZONE,
    LONGEST_WAIT_S,
    Count,
    EndAt,
    Instant,
    ScheduleText,
    Schema,
    StartAt,
    Time,
    ZoneName,
    accepted,
)
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.preview import MAX_ROWS

DEFAULT_ROWS = 10


class PreviewRequest(Struct, forbid_unknown_fields=True):
    schedule: ScheduleText
    timezone: ZoneName | None = DEFAULT_TIMEZONE
    dst_gap: DstGap | None = DstGap.CATCH_UP
    dst_overlap: DstOverlap | None = DstOverlap.FIRST
    start_at: StartAt | None = None
    end_at: EndAt | None = None
    jitter_seconds: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)] | None = 0
    count: Annotated[int, Meta(ge=1, le=MAX_ROWS)] | None = DEFAULT_ROWS
    after: Annotated[Instant, accepted(pattern=patterns.START_AT)] | None = None
    json_schema: ClassVar[Schema] = {
        "examples": [{"schedule": "30 2 * * *", "timezone": "America/New_York", "count": 3}]
    }


class UpcomingQuery(Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=MAX_ROWS, description="How many fire times.")] = DEFAULT_ROWS


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
