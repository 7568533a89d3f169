"""A job's specification: every field that its author decides, with the API's names, words and defaults."""

import functools
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from evertick.domain.idempotency import DEFAULT_TEMPLATE, TEMPLATE_MAX_LENGTH, Template, parse_template
from evertick.domain.job.limits import (
    LONGEST_RETENTION_S,
    LONGEST_TIMEOUT_S,
    LONGEST_WAIT_S,
    MAX_CONCURRENT,
    MAX_RETRIES,
    SHORTEST_TIMEOUT_S,
    ZONE_NAME_MAX_LENGTH,
)
from evertick.domain.job.target import Target
from evertick.domain.job.values import NAME_MAX_LENGTH
from evertick.domain.policies import Backoff, ConcurrentPolicy, DstGap, DstOverlap, MissedWindow, Priority
from evertick.domain.rule import DEFAULT_MAX_MISSED, MAX_MISSED
from evertick.domain.schedule.rrule.text import MAX_CHARACTERS

cached_template = functools.lru_cache(maxsize=1024)(parse_template)
"""Most jobs share a few templates, so each is parsed once."""

DEFAULT_TIMEZONE = "UTC"
DEFAULT_RETRY_DELAY_SECONDS = 10
DEFAULT_RETRY_MAX_DELAY_SECONDS = 3600


Wait: TypeAlias = Annotated[int, Meta(ge=0, le=LONGEST_WAIT_S)] | Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)]


class JobSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a job is to do, and when. `fields.read_spec` makes checked ones: these bounds alone are not enough.

    A name of None is generated when the job is made. A grace of None is as long as the interval, an hour at most.
    """

    name: Annotated[str, Meta(min_length=1, max_length=NAME_MAX_LENGTH)] | None = None
    schedule: Annotated[str, Meta(max_length=MAX_CHARACTERS)]
    timezone: Annotated[str, Meta(max_length=ZONE_NAME_MAX_LENGTH)] = DEFAULT_TIMEZONE
    dst_gap: DstGap = DstGap.CATCH_UP
    dst_overlap: DstOverlap = DstOverlap.FIRST
    start_at: datetime | None = None
    end_at: datetime | None = None
    target: Target
    payload: Any = None
    idempotency_key_template: Annotated[str, Meta(max_length=TEMPLATE_MAX_LENGTH)] = DEFAULT_TEMPLATE
    max_retries: Annotated[int, Meta(ge=0, le=MAX_RETRIES)] = 3
    retry_backoff: Backoff = Backoff.EXPONENTIAL
    retry_delay_seconds: Wait = DEFAULT_RETRY_DELAY_SECONDS
    retry_max_delay_seconds: Wait = DEFAULT_RETRY_MAX_DELAY_SECONDS
    timeout_seconds: Annotated[int, Meta(ge=SHORTEST_TIMEOUT_S, le=LONGEST_TIMEOUT_S)] = 300
    missed_window: MissedWindow = MissedWindow.RUN_ONCE
    misfire_grace_seconds: Wait | None = None
    max_missed: Annotated[int, Meta(ge=1, le=MAX_MISSED)] = DEFAULT_MAX_MISSED
    concurrent_policy: ConcurrentPolicy = ConcurrentPolicy.SKIP
    max_concurrent: Annotated[int, Meta(ge=1, le=MAX_CONCURRENT)] = 1
    jitter_seconds: Wait = 0
    priority: Priority = Priority.NORMAL
    labels: Mapping[str, str] = {}
    retain_seconds: Annotated[int, Meta(ge=0, le=LONGEST_RETENTION_S)] = 86_400

    @property
    def template(self) -> Template:
        return cached_template(self.idempotency_key_template)

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.timeout_seconds)


def default_retry_max_delay(retry_delay_seconds: float) -> float:
    """An hour, or the delay itself where that is longer: a long delay alone must be a usable choice."""
    return max(DEFAULT_RETRY_MAX_DELAY_SECONDS, retry_delay_seconds)
