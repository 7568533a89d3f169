"""Schedules that fire once, or only when triggered."""

from datetime import UTC, datetime, timedelta

import pytest

from evertick import InvalidSchedule, Schedule
from firing import BERLIN, NEW_YEAR, NEW_YORK, fires, us


def test_an_instant_with_an_offset_fires_once_there() -> None:
    for text in ("2026-06-09T13:00:00Z", "2026-06-09T15:00:00+02:00", "20260609T130000Z", "2026-06-09 13:00Z"):
        assert fires(text, BERLIN, count=9) == ["2026-06-09 13:00"]


def test_an_instant_without_an_offset_is_in_the_timezone() -> None:
    assert fires("2026-06-09T09:00", NEW_YORK, count=9) == ["2026-06-09 13:00"]
    assert fires("CRON_TZ=Asia/Tokyo 2026-06-09T09:00", count=9) == ["2026-06-09 00:00"]


def test_an_instant_keeps_its_fraction_of_a_second() -> None:
    at = datetime(2026, 6, 9, 13, 0, 0, 250_000, tzinfo=UTC)
    assert Schedule("2026-06-09T13:00:00.25Z").next(NEW_YEAR) == at
    assert Schedule("2026-06-09T09:00:00.25", NEW_YORK).next(NEW_YEAR) == at


def test_a_local_instant_in_the_gap_goes_by_the_gap_policy() -> None:
    assert fires("2026-03-08T02:30", NEW_YORK) == ["2026-03-08 07:00"]
    assert fires("2026-03-08T02:30", NEW_YORK, dst_gap="shift") == ["2026-03-08 07:30"]
    with pytest.raises(InvalidSchedule, match="does not exist in America/New_York, the clocks jump over it"):
        Schedule("2026-03-08T02:30", NEW_YORK, dst_gap="skip")


def test_a_local_instant_in_the_overlap_fires_once_even_under_both() -> None:
    assert fires("2026-11-01T01:30", NEW_YORK, count=9) == ["2026-11-01 05:30"]
    assert fires("2026-11-01T01:30", NEW_YORK, count=9, dst_overlap="second") == ["2026-11-01 06:30"]
    assert fires("2026-11-01T01:30", NEW_YORK, count=9, dst_overlap="both") == ["2026-11-01 05:30"]


def test_now_fires_as_soon_as_it_is_asked_about() -> None:
    found = Schedule("now").next(NEW_YEAR)
    assert found is not None
    assert timedelta(0) < found - NEW_YEAR < timedelta(seconds=1)


def test_now_fires_at_the_jobs_creation_once_it_exists() -> None:
    schedule = Schedule("now", anchor_at=NEW_YEAR)
    assert schedule.next(NEW_YEAR - timedelta(days=9)) == NEW_YEAR
    assert schedule.next(NEW_YEAR) is None


def test_in_counts_from_the_instant_asked_about_or_from_the_jobs_creation() -> None:
    assert Schedule("in 90s").next(NEW_YEAR) == NEW_YEAR + timedelta(seconds=90)
    assert Schedule("in 90s").upcoming(NEW_YEAR, 5) == [NEW_YEAR + timedelta(seconds=90)]
    schedule = Schedule("in 1h30m", anchor_at=NEW_YEAR)
    assert schedule.next(NEW_YEAR + timedelta(minutes=80)) == NEW_YEAR + timedelta(minutes=90)
    assert schedule.next(NEW_YEAR + timedelta(minutes=90)) is None


def test_manual_never_fires_by_itself_and_is_not_refused_for_it() -> None:
    schedule = Schedule("manual")
    assert schedule.next(NEW_YEAR) is None
    assert schedule.between(NEW_YEAR, NEW_YEAR + timedelta(days=999)) == []
    assert schedule.count_between(NEW_YEAR, NEW_YEAR + timedelta(days=999)) == 0
    assert schedule.ticks(0).prev(us("2026-01-01T00:00Z")) is None
