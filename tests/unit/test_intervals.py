"""Intervals: fixed ones and those of the calendar."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from evertick import Schedule
from firing import NEW_YEAR, NEW_YORK, fires


@pytest.mark.parametrize(
    ("text", "step"),
    {
        "every 5m": timedelta(minutes=5),
        "every 90s": timedelta(seconds=90),
        "every 2h": timedelta(hours=2),
        "@every 1h30m": timedelta(minutes=90),
        "every 1 hour 30 minutes": timedelta(minutes=90),
        "every day": timedelta(days=1),
        "EVERY 2 weeks": timedelta(days=14),
        "every 1.5h": timedelta(minutes=90),
    }.items(),
)
def test_every_is_a_fixed_interval(text: str, step: timedelta) -> None:
    first, second, third = Schedule(text).upcoming(NEW_YEAR, 3)
    assert second - first == third - second == step


def test_every_counts_from_start_at() -> None:
    start = datetime(2026, 1, 1, 0, 3, 20, 500_000, tzinfo=UTC)
    schedule = Schedule("every 5m", start_at=start)
    assert schedule.upcoming(NEW_YEAR, 3) == [start, start + timedelta(minutes=5), start + timedelta(minutes=10)]


def test_every_counts_from_the_jobs_creation_in_whole_seconds() -> None:
    created = datetime(2026, 1, 1, 0, 3, 20, 700_000, tzinfo=UTC)
    assert Schedule("every 5m", anchor_at=created).next(created) == datetime(2026, 1, 1, 0, 8, 20, tzinfo=UTC)


def test_every_prefers_start_at_to_the_creation() -> None:
    start, created = datetime(2026, 1, 1, 12, 1, tzinfo=UTC), datetime(2025, 12, 31, tzinfo=UTC)
    assert Schedule("every 1h", start_at=start, anchor_at=created).next(created) == start


def test_every_never_drifts_however_late_it_is_asked() -> None:
    schedule = Schedule("every 7m", anchor_at=NEW_YEAR)
    years_on = datetime(2056, 7, 1, 12, 0, 0, 1, tzinfo=UTC)
    found = schedule.next(years_on)
    assert found is not None
    assert (found - NEW_YEAR) % timedelta(minutes=7) == timedelta(0)
    assert found - years_on < timedelta(minutes=7)


def test_every_pays_no_heed_to_daylight_saving() -> None:
    steps = Schedule("every 6h", NEW_YORK, anchor_at=NEW_YEAR).upcoming(datetime(2026, 3, 7, tzinfo=UTC), 12)
    assert {later - earlier for earlier, later in pairwise(steps)} == {timedelta(hours=6)}


def test_r_without_a_number_repeats_for_ever_from_its_start() -> None:
    schedule = Schedule("R/2026-01-01T00:00:00Z/PT1H")
    assert schedule.next(datetime(2020, 1, 1, tzinfo=UTC)) == NEW_YEAR
    assert schedule.next(datetime(2126, 1, 1, 0, 30, tzinfo=UTC)) == datetime(2126, 1, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("step", ["PT1H", "P1D", "P1M", "P1Y"])
def test_r5_gives_five_ticks(step: str) -> None:
    schedule = Schedule(f"R5/2026-01-01T00:00:00Z/{step}")
    found = schedule.upcoming(NEW_YEAR - timedelta(days=1), 9)
    assert len(found) == 5
    assert found[0] == NEW_YEAR
    assert schedule.count_between(NEW_YEAR, datetime(2100, 1, 1, tzinfo=UTC)) == 5


def test_r_may_name_an_end_instead_of_a_step() -> None:
    assert Schedule("R/2026-01-01T00:00:00Z/2026-01-01T00:30:00Z") == Schedule("R/2026-01-01T00:00:00Z/PT30M")


def test_steps_of_months_keep_the_31st() -> None:
    assert fires("R/2026-01-31T09:00:00Z/P1M", count=5) == [
        "2026-01-31 09:00",
        "2026-02-28 09:00",
        "2026-03-31 09:00",
        "2026-04-30 09:00",
        "2026-05-31 09:00",
    ]


def test_steps_of_years_keep_the_29th_of_february() -> None:
    assert fires("R/2024-02-29T09:00:00Z/P1Y", after="2024-01-01T00:00Z", count=5) == [
        "2024-02-29 09:00",
        "2025-02-28 09:00",
        "2026-02-28 09:00",
        "2027-02-28 09:00",
        "2028-02-29 09:00",
    ]


def test_steps_of_months_keep_the_time_of_day_in_their_zone() -> None:
    monthly = fires("R/2026-02-08T02:30/P1M", NEW_YORK, count=3)
    assert monthly == ["2026-02-08 07:30", "2026-03-08 07:00", "2026-04-08 06:30"]
