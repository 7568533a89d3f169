"""Dead letters, and replaying many of them."""

from typing import Annotated

from msgspec import Meta, Struct, field

from evertick.contract import patterns
from evertick.contract.annotations import CURSOR, Count, Instant, JobId, Limit, Ordinal, RunId, Time, words
from evertick.domain.retry import GiveUpReason

DEFAULT_RATE = 100.0


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A run that failed for good. `result_code` and `error` are its last attempt's."""

    run_id: RunId
    job_id: JobId
    name: str
    scheduled_at: Time
    died_at: Time
    attempt: Count
    reason: Annotated[str, words(GiveUpReason)]
    spec_version: Ordinal
    result_code: int | None
    error: str | None


class Replaying(Struct, frozen=True, kw_only=True):
    """What becomes of the dead letters that a request replays."""

    replayed: Annotated[Count, Meta(description="So many dead letters are runs now.")]
    run_ids: Annotated[tuple[RunId, ...], Meta(description="Of the first thousand.")]
    last_due_at: Annotated[Time, Meta(description="When the last of them is due.")] | None
    has_more: Annotated[bool, Meta(description="More match than one request takes: ask again.")]


class LettersQuery(Struct, forbid_unknown_fields=True):
    job_id: JobId | None = None
    limit: Limit = 50
    cursor: Annotated[str, Meta(pattern=patterns.LETTER), CURSOR] | None = None


class LetterFilter(Struct, forbid_unknown_fields=True):
    """Which dead letters; without a member, all of them."""

    job_id: JobId | None = None
    died_from: Instant | None = None
    died_before: Instant | None = None


class ReplayRequest(Struct, forbid_unknown_fields=True):
    filter: LetterFilter = field(default_factory=LetterFilter)
    rate_per_second: Annotated[float, Meta(ge=0.01, le=1000)] = DEFAULT_RATE
