"""Zones, and what a change of the clocks does to a schedule."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from evertick import InvalidSchedule, Schedule
from evertick.domain.schedule.zoned import ZonedTicks
from firing import BERLIN, NEW_YEAR, NEW_YORK, Policies, fires, us

# Zones


def test_a_zone_in_the_text_equals_the_timezone() -> None:
    inside = Schedule("CRON_TZ=Asia/Tokyo 0 9 * * *")
    assert inside == Schedule("0 9 * * *", "Asia/Tokyo") == Schedule("CRON_TZ=Asia/Tokyo 0 9 * * *", "Asia/Tokyo")
    assert inside.timezone == "Asia/Tokyo"
    assert inside.next(NEW_YEAR) == datetime(2026, 1, 2, tzinfo=UTC)


def test_a_zone_in_the_text_that_contradicts_the_timezone_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="'Europe/Berlin' contradicts 'Asia/Tokyo'") as refusal:
        Schedule("CRON_TZ=Asia/Tokyo 0 9 * * *", BERLIN)
    assert refusal.value.field == "timezone"


def test_the_tzid_of_dtstart_equals_the_timezone() -> None:
    text = "DTSTART;TZID=America/New_York:20260101T090000\nRRULE:FREQ=DAILY"
    assert Schedule(text) == Schedule(text, NEW_YORK)
    assert fires(text, after="2026-03-07T12:00Z", count=3) == [
        "2026-03-07 14:00",
        "2026-03-08 13:00",
        "2026-03-09 13:00",
    ]
    with pytest.raises(InvalidSchedule, match="contradicts"):
        Schedule(text, BERLIN)


def test_an_unknown_zone_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidSchedule, match="did you mean 'America/New_York'") as refusal:
        Schedule("0 9 * * *", "America/New_Yrok")
    assert refusal.value.field == "timezone"


def test_all_fire_times_are_in_utc() -> None:
    found = Schedule("0 9 * * *", "Asia/Kathmandu").next(datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5))))
    assert found == datetime(2026, 1, 1, 3, 15, tzinfo=UTC)
    assert found is not None
    assert found.tzinfo is UTC


# Daylight saving


def test_a_time_in_the_gap_runs_once_at_the_first_instant_after_it() -> None:
    assert fires("30 2 * * *", NEW_YORK, after="2026-03-07T12:00Z", count=2) == ["2026-03-08 07:00", "2026-03-09 06:30"]


def test_several_times_in_the_gap_run_once_together() -> None:
    assert fires("0,15,30,45 2,3 * * *", NEW_YORK, after="2026-03-07T12:00Z", count=3) == [
        "2026-03-08 07:00",
        "2026-03-08 07:15",
        "2026-03-08 07:30",
    ]


@pytest.mark.parametrize("gap", ["catch_up", "shift"])
def test_a_tick_that_is_made_up_for_onto_another_is_one_with_it(gap: str) -> None:
    schedule = Schedule("0 2,3 * * *", NEW_YORK, gap)
    start, end = datetime(2026, 3, 8, 5, tzinfo=UTC), datetime(2026, 3, 9, 4, tzinfo=UTC)
    assert schedule.between(start, end) == [datetime(2026, 3, 8, 7, tzinfo=UTC)]
    assert schedule.count_between(start, end) == 1


def test_shift_keeps_the_distance_from_midnight() -> None:
    shifted = fires("30 2 * * *", NEW_YORK, after="2026-03-07T12:00Z", count=2, dst_gap="shift")
    assert shifted == ["2026-03-08 07:30", "2026-03-09 06:30"]


def test_skip_loses_the_tick_and_says_so() -> None:
    schedule = Schedule("0,30 2 * * *", NEW_YORK, dst_gap="skip")
    assert schedule.next(datetime(2026, 3, 7, 12, tzinfo=UTC)) == datetime(2026, 3, 9, 6, tzinfo=UTC)
    (lost,) = schedule.ticks(0).lost(us("2026-03-01T00:00Z"), us("2026-04-01T00:00Z"))
    assert lost.ticks == 2
    assert lost.at * 1_000_000 == us("2026-03-08T07:00Z")
    assert (lost.first_wall, lost.last_wall) == (us("2026-03-08T02:00Z") // 10**6, us("2026-03-08T02:30Z") // 10**6)


def test_what_is_made_up_for_is_not_lost() -> None:
    for gap in ("catch_up", "shift"):
        assert (
            Schedule("30 2 * * *", NEW_YORK, gap).ticks(0).lost(us("2026-01-01T00:00Z"), us("2027-01-01T00:00Z")) == []
        )


def test_a_correction_of_a_day_loses_its_tick_under_every_policy() -> None:
    for gap in ("catch_up", "shift", "skip"):
        lost = (
            Schedule("0 12 * * *", "Pacific/Apia", gap).ticks(0).lost(us("2011-12-01T00:00Z"), us("2012-01-31T00:00Z"))
        )
        assert [item.ticks for item in lost] == [1]


def test_lost_ticks_are_reported_only_from_the_window_asked_about() -> None:
    ticks = Schedule("30 2 * * *", NEW_YORK, "skip").ticks(0)
    assert ticks.lost(us("2026-03-08T07:00Z"), us("2026-03-08T07:01Z"))
    assert not ticks.lost(us("2026-03-08T07:01Z"), us("2026-12-31T00:00Z"))
    assert not ticks.lost(us("2026-01-01T00:00Z"), us("2026-03-08T07:00Z"))


def test_a_doubled_time_runs_at_its_first_second_or_both_instants() -> None:
    after = "2026-10-31T12:00Z"
    assert fires("30 1 * * *", NEW_YORK, after=after, count=2) == ["2026-11-01 05:30", "2026-11-02 06:30"]
    second = fires("30 1 * * *", NEW_YORK, after=after, count=2, dst_overlap="second")
    assert second == ["2026-11-01 06:30", "2026-11-02 06:30"]
    both = fires("30 1 * * *", NEW_YORK, after=after, count=3, dst_overlap="both")
    assert both == ["2026-11-01 05:30", "2026-11-01 06:30", "2026-11-02 06:30"]


@pytest.mark.parametrize("text", ["*/30 * * * *", "0,30 * * * *", "*/30 0-5 * * *", "0 */30 * * * *"])
def test_a_star_in_minute_or_hour_follows_elapsed_time(text: str) -> None:
    every: list[Policies] = [{}, {"dst_gap": "shift", "dst_overlap": "second"}, {"dst_gap": "skip"}]
    for options in every:
        assert fires(text, NEW_YORK, after="2026-03-08T06:10Z", **options) == [
            "2026-03-08 06:30",
            "2026-03-08 07:00",
            "2026-03-08 07:30",
        ]
        assert fires(text, NEW_YORK, after="2026-11-01T05:10Z", **options) == [
            "2026-11-01 05:30",
            "2026-11-01 06:00",
            "2026-11-01 06:30",
        ]


def test_a_fixed_time_with_seconds_is_a_fixed_time() -> None:
    found = Schedule("15 30 2 * * *", NEW_YORK).upcoming(datetime(2026, 3, 7, 12, tzinfo=UTC), 2)
    assert found == [datetime(2026, 3, 8, 7, tzinfo=UTC), datetime(2026, 3, 9, 6, 30, 15, tzinfo=UTC)]
    found = Schedule("15 30 1 * * *", NEW_YORK).upcoming(datetime(2026, 10, 31, 12, tzinfo=UTC), 2)
    assert found == [datetime(2026, 11, 1, 5, 30, 15, tzinfo=UTC), datetime(2026, 11, 2, 6, 30, 15, tzinfo=UTC)]


def test_a_made_up_tick_names_the_time_for_which_it_stands() -> None:
    ticks = Schedule("30 2 * * *", NEW_YORK).ticks(0)
    assert isinstance(ticks, ZonedTicks)
    assert ticks.made_up_for(us("2026-03-08T07:00Z") // 10**6) == us("2026-03-08T02:30Z") // 10**6
    assert ticks.made_up_for(us("2026-03-09T06:30Z") // 10**6) is None


def test_a_recurrence_by_the_day_is_made_up_for_and_one_by_the_hour_is_not() -> None:
    daily = "RRULE:FREQ=DAILY;BYHOUR=2;BYMINUTE=30"
    assert fires(daily, NEW_YORK, after="2026-03-07T12:00Z", count=1) == ["2026-03-08 07:00"]
    hourly = "RRULE:FREQ=HOURLY;BYMINUTE=30"
    assert fires(hourly, NEW_YORK, after="2026-03-08T06:00Z", count=2) == ["2026-03-08 06:30", "2026-03-08 07:30"]
