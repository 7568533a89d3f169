"""Owns how long an attempt may take, and when its worker must stop."""

from datetime import datetime, timedelta

from evertick.domain.errors import InvalidInput

TIMEOUT_MIN = timedelta(seconds=1)
TIMEOUT_MAX = timedelta(seconds=86_400)


def check_timeout(timeout: timedelta) -> timedelta:
    if not TIMEOUT_MIN <= timeout <= TIMEOUT_MAX:
        raise InvalidInput("timeout_seconds", "must be from 1 to 86400")
    return timeout


def deadline_at(started_at: datetime, timeout: timedelta) -> datetime:
    """When the attempt is `timed_out`. Counted from its start: waiting in a lane costs nothing."""
    return started_at + timeout


def stop_at(deadline_at: datetime, lease_expires_at: datetime) -> datetime:
    """When a worker must stop at the latest.

    Heartbeats move the lease on, so it does not shorten an attempt. But a worker that cannot renew it has to
    stop there: the reaper then gives the attempt away, and both would run it.
    """
    return min(deadline_at, lease_expires_at)


def remaining(until: datetime, now: datetime) -> timedelta:
    """The time left, never negative: zero is "too late"."""
    return max(until - now, timedelta(0))
