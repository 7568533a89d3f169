"""The forecast: firings to come, what makes its hottest minutes, and the jitter that would lower them."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from evertick.contract import patterns
from evertick.contract.annotations import CURSOR, Count, Instant, Limit, Schema, SmearId, Time, words
from evertick.contract.jobs import Label
from evertick.domain.limits import NEVER_LABEL, NEVER_VALUE, SMEAR_JITTERS_S
from evertick.domain.states import SmearStatus

MAX_HOTTEST = 50
MAX_APPLIED_RULES = 1_000

RuleId = Annotated[str, Meta(pattern=patterns.RULE_ID)]
Labels = Annotated[list[Label], Meta(max_length=64, description="`key:value`; several must all be there.")]
QueueName = Annotated[str, Meta(max_length=63, pattern=patterns.STORABLE)]


class ForecastHorizon(StrEnum):
    """How far a forecast looks ahead."""

    DAY = "24h"  # in minutes
    MONTH = "30d"  # in hours


class ForecastQuery(Struct, forbid_unknown_fields=True, rename={"from_at": "from", "to_at": "to"}):
    horizon: Annotated[
        ForecastHorizon, Meta(description="`24h` in minutes or `30d` in hours, unless `from` and `to` are given.")
    ] = ForecastHorizon.DAY
    from_at: Annotated[Instant, Meta(description="The beginning; now, if it is left out.")] | None = None
    to_at: (
        Annotated[Instant, Meta(description="The end, up to a year later; as `horizon` says, if it is left out.")]
        | None
    ) = None
    bucket_seconds: (
        Annotated[int, Meta(ge=60, le=86_400, description="As `horizon` says, if it is left out.")] | None
    ) = None
    label: Labels = []
    queue: QueueName | None = None
    hottest: Annotated[int, Meta(ge=0, le=MAX_HOTTEST, description="How many of the fullest buckets to explain.")] = 10
    all_tenants: Annotated[
        bool, Meta(description="The jobs of all tenants: for admins of the hosting tenant alone.")
    ] = False


class RuleShare(Struct, frozen=True, kw_only=True):
    """What jobs of one rule add to a bucket. `rule_id` is null for timers that fire once: one-offs, retries."""

    rule_id: RuleId | None
    schedule: Annotated[str, Meta(description="As the author of one of the jobs wrote it.")]
    timezone: str | None
    jitter_seconds: float
    jobs: Count
    firings: Count
    job_names: Annotated[tuple[str, ...], Meta(description="Some of the jobs.")]


class HotBucket(Struct, frozen=True, kw_only=True):
    """One of the fullest buckets, and the rules that make it, the largest first."""

    at: Time
    firings: Count
    rules: tuple[RuleShare, ...]


class Forecast(Struct, frozen=True, kw_only=True, rename={"from_at": "from", "to_at": "to"}):
    """How many firings each bucket has. `counts` are those from `from` on, `bucket_seconds` apart.

    Buckets are whole minutes, and longer than asked for where there would be more than 3,000. What is due already is in
    the bucket of `now`. Retries and manual runs that do not wait yet are not forecast.
    """

    now: Time
    from_at: Time
    to_at: Time
    bucket_seconds: Count
    counts: tuple[Count, ...]
    total: Count
    peak: Count
    peak_at: Time | None
    counted_jobs: Annotated[Count, Meta(description="Jobs with a firing before the end, and timers that fire once.")]
    uncounted_jobs: Annotated[Count, Meta(description="Jobs whose schedules cannot be computed.")]
    is_estimate: Annotated[
        bool,
        Meta(
            description="It is scaled up from a sample of the jobs, or costly rules are spread evenly, or jitter"
            " counts in minutes where ticks are at several seconds of the minute."
        ),
    ]
    relative_error: Annotated[float, Meta(description="Of the peak, as a fraction: one standard error.")]
    hottest: tuple[HotBucket, ...]


class AdviceQuery(Struct, forbid_unknown_fields=True):
    label: Labels = []
    queue: QueueName | None = None


class ForecastAdvice(Struct, frozen=True, kw_only=True):
    """Which jobs should get jitter so that the highest minute of the next 24 hours is lower. Null: none.

    They are as many as one smear may have at most. For very many, `peak_after` is computed as if they spread evenly:
    then `is_estimate` is true.
    """

    text: Annotated[str, Meta(description="The advice in a sentence.")]
    jitter_seconds: Count | None
    jobs: Annotated[Count, Meta(description="How many jobs would get it.")]
    rules: Annotated[tuple[RuleShare, ...], Meta(description="Their rules; `firings` are those in the highest minute.")]
    peak_before: Count
    peak_before_at: Time | None
    peak_after: Count
    peak_after_at: Time | None
    left_alone: Annotated[
        dict[str, int],
        Meta(
            description="Firings in the highest minute of jobs that must not get it: `has_jitter`, `too_frequent`,"
            f" `one_off`, and `opted_out` by the label `{NEVER_LABEL}:{NEVER_VALUE}`."
        ),
    ]
    is_estimate: bool


class ApplyAdviceRequest(Struct, forbid_unknown_fields=True):
    """The rules and the jitter of an advice, and the filter that it was asked with."""

    rules: Annotated[list[RuleId], Meta(min_length=1, max_length=MAX_APPLIED_RULES)]
    jitter_seconds: Annotated[int, Meta(ge=1, le=SMEAR_JITTERS_S[-1])]
    label: Labels = []
    queue: QueueName | None = None
    json_schema: ClassVar[Schema] = {"examples": [{"rules": ["0123456789abcdef"], "jitter_seconds": 300}]}


class Smear(Struct, frozen=True, kw_only=True):
    """Jitter that is given to many jobs, each of which gets a new version; or taken back."""

    smear_id: SmearId
    status: Annotated[str, words(SmearStatus)]
    jitter_seconds: Count
    jobs: Annotated[Count, Meta(description="All that it is about. The other numbers add up to it.")]
    waiting: Count
    changed: Annotated[Count, Meta(description="They have the jitter.")]
    skipped: Annotated[Count, Meta(description="They were left alone: edited or deleted meanwhile, or opted out.")]
    undone: Annotated[Count, Meta(description="The jitter is taken back.")]
    kept: Annotated[Count, Meta(description="They were edited or deleted since, so the jitter was not taken back.")]
    created_at: Time
    created_by: Annotated[str, Meta(description="As in the audit log.")]
    finished_at: Time | None


class SmearsQuery(Struct, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Annotated[SmearId, CURSOR] | None = None
