"""Owns a job's jitter: its constant offset in the window, so that a thousand `@hourly` jobs spread out."""

from datetime import datetime, timedelta

from evertick.domain.errors import InvalidInput
from evertick.domain.stable_hash import stable_int

_MICROSECOND = timedelta(microseconds=1)


def jitter_offset(job_id: int, window: timedelta) -> timedelta:
    """The job's offset in [0, window), to the microsecond; the same for as long as job and window are."""
    if window < timedelta(0):
        raise InvalidInput("jitter_seconds", "must not be negative")
    if not window:
        return window
    return timedelta(microseconds=stable_int(window // _MICROSECOND, "jitter", job_id))


def due_at(fire_at: datetime, offset: timedelta) -> datetime:
    """When the scheduler acts on a fire time. Only this moves: the fire time keeps naming the run."""
    return fire_at + offset
