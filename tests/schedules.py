"""Schedules for tests that look at the time from now on, whatever the time of day is."""

from datetime import UTC, datetime, timedelta


def daily_in_half_a_day() -> datetime:
    """When a daily job may fire so that neither the present nor the end of a day from now is near."""
    return (datetime.now(UTC) + timedelta(hours=12)).replace(second=0, microsecond=0)


def daily(at: datetime) -> str:
    return f"{at.minute} {at.hour} * * *"
