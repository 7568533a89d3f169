"""The fields of a job by their names in the API, for type checkers. The server checks their values, and says what is
wrong with each.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict


class JobFields(TypedDict, total=False):
    """None stands for a field's default."""

    name: str | None
    schedule: str
    target: Mapping[str, Any]
    timezone: str | None
    dst_gap: Literal["catch_up", "skip", "shift"] | None
    dst_overlap: Literal["first", "second", "both"] | None
    start_at: datetime | str | None
    end_at: datetime | str | None
    payload: Any
    idempotency_key_template: str | None
    max_retries: int | None
    retry_backoff: Literal["fixed", "linear", "exponential"] | None
    retry_delay_seconds: float | None
    retry_max_delay_seconds: float | None
    timeout_seconds: int | None
    missed_window: Literal["SKIP", "RUN_ONCE", "RUN_ALL"] | None
    misfire_grace_seconds: float | None
    max_missed: int | None
    concurrent_policy: Literal["SKIP", "ALLOW", "QUEUE", "REPLACE"] | None
    max_concurrent: int | None
    jitter_seconds: float | None
    priority: Literal["high", "normal", "low"] | None
    labels: Mapping[str, str] | None
    retain_seconds: int | None
