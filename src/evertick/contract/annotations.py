"""Annotated types that several messages share, and what annotations say besides msgspec's own constraints.

- `checked(check)`: a check that only Python can do. `reading` runs it.
- `accepted(…)`: JSON Schema of what is certainly accepted, where JSON Schema cannot describe all that is. The published
  description shows it for requests alone.
- `words(enum)`: the words that a text is one of. In answers a word is a plain text, so that a client can read words
  that were added after it was released.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from evertick.contract import patterns
from evertick.domain.job.checks import NAME_MAX_LENGTH, Check, check_instant, check_text
from evertick.domain.limits import RRULE_MAX_CHARACTERS

MAX_PER_PAGE = 200
ZONE_NAME_MAX_LENGTH = 255
DEFAULT_TIMEZONE = "UTC"
LONGEST_WAIT_S = 366 * 86_400
"""A year, for every delay, grace and jitter: beyond it an instant could leave the calendar."""
ACCEPTED = "x-accepted"

Schema: TypeAlias = dict[str, Any]


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def checked(check: Check) -> Meta:
    return Meta(extra={"check": check})


def accepted(**schema: Any) -> Meta:
    return Meta(extra_json_schema={ACCEPTED: schema})


def words(*kinds: type[StrEnum]) -> Meta:
    return Meta(extra_json_schema={"enum": [str(word) for kind in kinds for word in kind]})


# Ids and names

JobId = Annotated[str, Meta(pattern=patterns.JOB_ID)]
RunId = Annotated[str, Meta(pattern=patterns.RUN_ID)]
ReplayId = Annotated[str, Meta(pattern=patterns.REPLAY_ID)]
AlertId = Annotated[str, Meta(pattern=patterns.ALERT_ID)]
SmearId = Annotated[str, Meta(pattern=patterns.SMEAR_ID)]
KeyId = Annotated[str, Meta(pattern=patterns.KEY_ID)]
TenantId = Annotated[str, Meta(pattern=patterns.TENANT_ID)]
Token = Annotated[str, Meta(pattern=patterns.FENCING, examples=["412.1781532000000001"])]
WorkerId = Annotated[str, Meta(pattern=patterns.WORKER_ID, description="A name that no other worker has.")]
Name = Annotated[str, Meta(max_length=NAME_MAX_LENGTH, pattern=patterns.STORABLE)]

# Numbers

Count = Annotated[int, Meta(ge=0)]
Ordinal = Annotated[int, Meta(ge=1)]
Wait: TypeAlias = Annotated[int, Meta(ge=0, le=LONGEST_WAIT_S)] | Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)]
RateLimit = Annotated[
    Annotated[float, Meta(ge=0.001, le=1_000_000)] | None,
    Meta(description="How many attempts start per second, in all processes together; null: no limit."),
]
RateBurst = Annotated[
    Annotated[int, Meta(ge=1, le=1_000_000)] | None,
    Meta(description="How many of them start at once after a pause; null: as many as a second allows."),
]
BURST_NEEDS_RATE: Schema = {
    "anyOf": [
        {"properties": {"rate_burst": {"type": "null"}}},
        {"properties": {"rate_limit": {"type": "number"}}, "required": ["rate_limit"]},
    ]
}

# Instants

Time = Annotated[datetime, Meta(tz=True)]
"""An instant in an answer."""
ReportedTime = Annotated[datetime, Meta(tz=True, description="RFC 3339, with its zone.")]
"""An instant by a worker's clock, which may say anything."""
Instant = Annotated[ReportedTime, checked(check_instant)]
_WINDOW = "The pattern shows what is always accepted: any instant that leaves room to fire is."
StartAt = Annotated[
    datetime,
    Meta(tz=True, description=f"It never fires before. {_WINDOW}"),
    accepted(pattern=patterns.START_AT),
    checked(check_instant),
]
EndAt = Annotated[
    datetime,
    Meta(tz=True, description=f"It never fires after. {_WINDOW}"),
    accepted(pattern=patterns.END_AT),
    checked(check_instant),
]

# Schedules

ScheduleText = Annotated[
    str,
    Meta(
        max_length=RRULE_MAX_CHARACTERS,
        description="When it fires: cron, `@daily`, `every 5m`, `R/…`, `RRULE:…`, an ISO 8601 instant, `now`,"
        " `in 90s` or `manual`. The patterns show what is always accepted; each form allows more.",
        examples=["0 9 * * 1", "every 5m", "RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17", "in 90s"],
    ),
    accepted(
        anyOf=[{"type": "string", "pattern": pattern, "title": title} for title, pattern in patterns.SCHEDULES.items()]
    ),
    checked(check_text),
]
ZoneName = Annotated[str, Meta(max_length=ZONE_NAME_MAX_LENGTH), accepted(**ref("Timezone")), checked(check_text)]

# Pages

Limit = Annotated[int, Meta(ge=1, le=MAX_PER_PAGE, description="How many at most.")]
CURSOR = Meta(description="Where the page before ended, from its Link header. Not to be made up or taken apart.")
