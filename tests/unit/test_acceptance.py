"""What only the clock and a tenant's limits can refuse when a job is made."""

from datetime import UTC, datetime, timedelta

import pytest

from evertick import InvalidSchedule, Schedule
from evertick.domain.job.definition import check_new

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize("text", ["manual", "now", "in 90s", "@daily", "2026-06-01T11:30:00Z", "2027-01-01T00:00:00Z"])
def test_a_schedule_with_something_left_to_fire_is_accepted(text: str) -> None:
    check_new(Schedule(text), NOW, HOUR)


def test_a_one_off_in_the_past_is_accepted_within_its_grace_only() -> None:
    check_new(Schedule("2026-06-01T11:00:00Z"), NOW, HOUR)
    with pytest.raises(InvalidSchedule, match="is past"):
        check_new(Schedule("2026-06-01T10:59:59Z"), NOW, HOUR)


def test_a_schedule_that_is_over_is_refused() -> None:
    ended = Schedule("@daily", end_at=datetime(2026, 5, 1, tzinfo=UTC))
    with pytest.raises(InvalidSchedule, match="never fires again"):
        check_new(ended, NOW, HOUR)


@pytest.mark.parametrize("text", ["every 30s", "* * * * * *", "*/30 * * * * *", "RRULE:FREQ=SECONDLY;INTERVAL=30"])
def test_an_interval_below_the_tenants_minimum_is_refused_in_every_form(text: str) -> None:
    check_new(Schedule(text), NOW, HOUR)
    with pytest.raises(InvalidSchedule, match="more often"):
        check_new(Schedule(text), NOW, HOUR, shortest=timedelta(minutes=1))
