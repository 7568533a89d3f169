"""A job's specification: every field that its author decides, with the API's names, words and defaults."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from evertick.domain.idempotency import DEFAULT_TEMPLATE, Template, parse_template
from evertick.domain.job.payload import Json
from evertick.domain.job.target import Target
from evertick.domain.policies import Backoff, ConcurrentPolicy, DstGap, DstOverlap, MissedWindow, Priority
from evertick.domain.retry import RetryPolicy
from evertick.domain.rule import DEFAULT_MAX_MISSED

cached_template = functools.lru_cache(maxsize=1024)(parse_template)
"""Most jobs share a few templates, so each is parsed once."""

DEFAULT_TIMEZONE = "UTC"
DEFAULT_RETRY_DELAY_SECONDS = 10
DEFAULT_RETRY_MAX_DELAY_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What a job is to do, and when. `fields.read_spec` makes checked ones.

    A name of None is generated when the job is made. A grace of None is as long as the interval, an hour at most.
    """

    name: str | None = None
    schedule: str
    timezone: str = DEFAULT_TIMEZONE
    dst_gap: DstGap = DstGap.CATCH_UP
    dst_overlap: DstOverlap = DstOverlap.FIRST
    start_at: datetime | None = None
    end_at: datetime | None = None
    target: Target
    payload: Json = None
    idempotency_key_template: str = DEFAULT_TEMPLATE
    max_retries: int = 3
    retry_backoff: Backoff = Backoff.EXPONENTIAL
    retry_delay_seconds: float = DEFAULT_RETRY_DELAY_SECONDS
    retry_max_delay_seconds: float = DEFAULT_RETRY_MAX_DELAY_SECONDS
    timeout_seconds: int = 300
    missed_window: MissedWindow = MissedWindow.RUN_ONCE
    misfire_grace_seconds: float | None = None
    max_missed: int = DEFAULT_MAX_MISSED
    concurrent_policy: ConcurrentPolicy = ConcurrentPolicy.SKIP
    max_concurrent: int = 1
    jitter_seconds: float = 0
    priority: Priority = Priority.NORMAL
    labels: Mapping[str, str] = field(default_factory=dict)
    retain_seconds: int = 86_400

    @property
    def retry_policy(self) -> RetryPolicy:
        return RetryPolicy(
            max_retries=self.max_retries,
            backoff=self.retry_backoff,
            delay=timedelta(seconds=self.retry_delay_seconds),
            max_delay=timedelta(seconds=self.retry_max_delay_seconds),
        )

    @property
    def template(self) -> Template:
        return cached_template(self.idempotency_key_template)

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.timeout_seconds)


def default_retry_max_delay(retry_delay_seconds: float) -> float:
    """An hour, or the delay itself where that is longer: a long delay alone must be a usable choice."""
    return max(DEFAULT_RETRY_MAX_DELAY_SECONDS, retry_delay_seconds)
