"""Every form of schedule, said in sentences: when it fires, and why a text is refused."""

import pickle
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import TypedDict, Unpack

import pytest

from evertick import InvalidSchedule, Schedule
from evertick.domain.schedule.zoned import ZonedTicks

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
NEW_YORK = "America/New_York"
BERLIN = "Europe/Berlin"


class Policies(TypedDict, total=False):
    dst_gap: str
    dst_overlap: str
    key: str


def fires(
    text: str,
    zone: str = "UTC",
    *,
    after: str = "2026-01-01T00:00Z",
    count: int = 3,
    **options: Unpack[Policies],
) -> list[str]:
    """The first fire times after an instant, as short texts in UTC."""
    schedule = Schedule(text, zone, **options)
    return [at.strftime("%Y-%m-%d %H:%M") for at in schedule.upcoming(datetime.fromisoformat(after), count)]


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1_000_000


# Cron


@pytest.mark.parametrize(
    ("nickname", "cron"),
    {
        "@hourly": "0 * * * *",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@weekly": "0 0 * * 0",
        "@monthly": "0 0 1 * *",
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@Daily": "0 0 * * *",
    }.items(),
)
def test_a_nickname_is_the_cron_expression_that_it_stands_for(nickname: str, cron: str) -> None:
    assert Schedule(nickname) == Schedule(cron)


def test_five_fields_fire_at_second_zero() -> None:
    assert Schedule("*/5 * * * *").next(NEW_YEAR) == datetime(2026, 1, 1, 0, 5, tzinfo=UTC)


def test_six_fields_put_seconds_first() -> None:
    found = Schedule("*/20 0 12 * * *").upcoming(NEW_YEAR, 3)
    assert [(at.hour, at.minute, at.second) for at in found] == [(12, 0, 0), (12, 0, 20), (12, 0, 40)]


def test_names_of_months_and_days_are_read_in_any_case() -> None:
    assert Schedule("0 9 * jan-Mar mon,WED") == Schedule("0 9 * 1-3 1,3")


@pytest.mark.parametrize("sunday", ["0", "7", "SUN", "sun", "7-7", "SUN-SUN", "0,7"])
def test_sunday_is_0_or_7_or_its_name(sunday: str) -> None:
    assert Schedule(f"0 12 * * {sunday}") == Schedule("0 12 * * 0")


@pytest.mark.parametrize(
    ("written", "days"),
    {
        "5-7": "0,5,6",
        "FRI-SUN": "0,5,6",
        "SAT-SUN": "0,6",
        "SUN-TUE": "0,1,2",
        "0-7": "*",
        "MON-SUN": "*",
        "1-5/2": "1,3,5",
    }.items(),
)
def test_a_range_of_days_may_end_or_begin_with_sunday(written: str, days: str) -> None:
    assert Schedule(f"0 12 * * {written}") == Schedule(f"0 12 * * {days}")


def test_l_is_the_last_day_of_the_month() -> None:
    assert fires("0 0 L * *") == ["2026-01-31 00:00", "2026-02-28 00:00", "2026-03-31 00:00"]


def test_lw_is_the_last_weekday_of_the_month() -> None:
    assert fires("0 0 LW * *") == ["2026-01-30 00:00", "2026-02-27 00:00", "2026-03-31 00:00"]


def test_a_hash_counts_weekdays_of_the_month() -> None:
    assert fires("0 0 * * 1#1") == ["2026-01-05 00:00", "2026-02-02 00:00", "2026-03-02 00:00"]


def test_a_month_without_a_fifth_monday_is_passed_over() -> None:
    assert fires("0 0 * * MON#5") == ["2026-03-30 00:00", "2026-06-29 00:00", "2026-08-31 00:00"]


def test_5l_is_the_last_friday_of_the_month() -> None:
    assert fires("0 0 * * 5L") == ["2026-01-30 00:00", "2026-02-27 00:00", "2026-03-27 00:00"]


def test_a_question_mark_leaves_a_day_field_open() -> None:
    assert Schedule("0 9 ? * MON") == Schedule("0 9 * * MON")
    assert Schedule("0 9 15 * ?") == Schedule("0 9 15 * *")


def test_when_both_day_fields_are_restricted_either_matches() -> None:
    assert fires("0 0 13 * 5", count=5) == [
        "2026-01-02 00:00",
        "2026-01-09 00:00",
        "2026-01-13 00:00",
        "2026-01-16 00:00",
        "2026-01-23 00:00",
    ]


def test_when_a_day_field_begins_with_a_star_both_must_match() -> None:
    assert fires("0 0 */10 * 0") == ["2026-01-11 00:00", "2026-02-01 00:00", "2026-03-01 00:00"]
    assert fires("0 0 13 * */5") == ["2026-02-13 00:00", "2026-03-13 00:00", "2026-09-13 00:00"]


@pytest.mark.parametrize("text", ["0 0 1-31 * 1", "0 0 15 * 0-6", "0 0 15 * 1-7", "0 0 1-31 * 1#1"])
def test_a_day_field_that_lists_every_day_makes_the_other_one_moot(text: str) -> None:
    assert fires(text) == ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00"]


def test_a_step_counts_from_the_start_of_its_field() -> None:
    assert fires("*/25 * * * *", count=4) == [
        "2026-01-01 00:25",
        "2026-01-01 00:50",
        "2026-01-01 01:00",
        "2026-01-01 01:25",
    ]


# H


def test_h_is_the_same_for_the_same_job_always() -> None:
    assert fires("H H * * *", key="job-1") == ["2026-01-01 08:36", "2026-01-02 08:36", "2026-01-03 08:36"]
    assert Schedule("H H * * *", key="job-1") == Schedule("H H * * *", key="job-1")


def test_h_spreads_jobs_over_the_hour() -> None:
    minutes = [Schedule("H * * * *", key=f"job-{number}").upcoming(NEW_YEAR, 1)[0].minute for number in range(600)]
    assert set(minutes) == set(range(60))
    assert max(minutes.count(minute) for minute in range(60)) < 30


@pytest.mark.parametrize("written", ["H(10-19)", "H(10-19)/3", "H(10-19)/10", "H(10-19)/40", "H(10-19)/1"])
def test_h_stays_within_its_range_for_every_job(written: str) -> None:
    for number in range(60):
        schedule = Schedule(f"{written} * * * *", key=f"job-{number}")
        assert {at.minute for at in schedule.upcoming(NEW_YEAR, 30)} <= set(range(10, 20))


def test_h_of_one_value_is_that_value() -> None:
    assert Schedule("H(10-10)/5 * * * *") == Schedule("10 * * * *")


def test_h_with_a_step_keeps_the_step() -> None:
    for number in range(20):
        first, second, third, fourth, again = Schedule("H/15 * * * *", key=f"job-{number}").upcoming(NEW_YEAR, 5)
        assert {second - first, third - second, fourth - third} == {timedelta(minutes=15)}
        assert again - first == timedelta(hours=1)


def test_h_in_the_day_of_month_is_a_day_that_every_month_has() -> None:
    for number in range(60):
        assert len(fires("0 0 H * *", key=f"job-{number}", count=12)) == 12
        assert all(at[8:10] <= "28" for at in fires("0 0 H * *", key=f"job-{number}", count=12))


def test_h_differs_between_the_fields_of_one_job() -> None:
    pairs = {
        (at.minute, at.second)
        for at in (Schedule("H H * * * *", key=f"job-{number}").upcoming(NEW_YEAR, 1)[0] for number in range(40))
    }
    assert any(minute != second for minute, second in pairs)


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


# Intervals


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


# RRULE


def test_byhour_14_means_14_00() -> None:
    rule = "RRULE:FREQ=MONTHLY;BYDAY=1MO;BYHOUR=14"
    assert fires(rule) == ["2026-01-05 14:00", "2026-02-02 14:00", "2026-03-02 14:00"]
    created = datetime(2025, 12, 24, 17, 45, 12, tzinfo=UTC)
    assert Schedule(rule, anchor_at=created).next(NEW_YEAR) == datetime(2026, 1, 5, 14, tzinfo=UTC)


def test_without_byhour_a_recurrence_runs_at_midnight_or_at_the_time_of_start_at() -> None:
    assert fires("RRULE:FREQ=WEEKLY;BYDAY=FR", count=2) == ["2026-01-02 00:00", "2026-01-09 00:00"]
    opening = datetime(2026, 1, 1, 10, 23, tzinfo=UTC)
    assert Schedule("RRULE:FREQ=DAILY", start_at=opening).upcoming(NEW_YEAR, 2) == [
        opening,
        opening + timedelta(days=1),
    ]


def test_bysetpos_over_numbered_weeks_is_found_from_the_first_year_on() -> None:
    assert fires("RRULE:FREQ=YEARLY;WKST=TU;BYWEEKNO=1;BYDAY=TU;BYSETPOS=1") == [
        "2026-12-29 00:00",
        "2028-01-04 00:00",
        "2029-01-02 00:00",
    ]


def test_a_list_of_weekdays_may_mix_counted_and_plain_ones() -> None:
    assert fires("RRULE:FREQ=MONTHLY;BYDAY=MO,1TU", count=6) == [
        "2026-01-05 00:00",
        "2026-01-06 00:00",
        "2026-01-12 00:00",
        "2026-01-19 00:00",
        "2026-01-26 00:00",
        "2026-02-02 00:00",
    ]


def test_exdate_takes_ticks_away_and_rdate_adds_some() -> None:
    text = (
        "DTSTART:20260101T090000\nRRULE:FREQ=DAILY;COUNT=4\n"
        "EXDATE:20260102T090000,20260103T090000\nRDATE:20260102T120000,20260110T090000"
    )
    assert fires(text, count=9) == ["2026-01-01 09:00", "2026-01-02 12:00", "2026-01-04 09:00", "2026-01-10 09:00"]
    assert Schedule(text).count_between(NEW_YEAR, datetime(2027, 1, 1, tzinfo=UTC)) == 4


def test_exdate_wins_over_rdate() -> None:
    text = "DTSTART:20260101T090000\nRRULE:FREQ=DAILY;COUNT=1\nRDATE:20260105T090000\nEXDATE:20260105T090000"
    assert fires(text, count=9) == ["2026-01-01 09:00"]


def test_a_date_that_is_added_twice_fires_once() -> None:
    text = "DTSTART:20260101T090000\nRRULE:FREQ=DAILY;COUNT=2\nRDATE:20260102T090000\nRDATE:20260102T090000"
    assert fires(text, count=9) == ["2026-01-01 09:00", "2026-01-02 09:00"]


def test_an_exdate_in_utc_or_another_zone_means_the_same_instant() -> None:
    text = "DTSTART;TZID=America/New_York:20260101T090000\nRRULE:FREQ=DAILY;COUNT=3\nEXDATE"
    expected = ["2026-01-01 14:00", "2026-01-03 14:00"]
    assert fires(f"{text}:20260102T140000Z", count=9) == expected
    assert fires(f"{text};TZID=Europe/Berlin:20260102T150000", count=9) == expected
    assert fires(f"{text}:20260102T090000", count=9) == expected


@pytest.mark.parametrize("until", ["20260103T090000", "20260103T090000Z"])
def test_until_ends_the_rule_itself_included_and_not_the_dates_added_to_it(until: str) -> None:
    text = f"DTSTART:20260101T090000\nRRULE:FREQ=DAILY;UNTIL={until}\nRDATE:20260201T090000"
    assert fires(text, count=9) == ["2026-01-01 09:00", "2026-01-02 09:00", "2026-01-03 09:00", "2026-02-01 09:00"]


def test_long_lines_may_be_folded_as_the_standard_does() -> None:
    text = "DTSTART;TZID=America/\r\n New_York:20260101T090000\r\nRRULE:FREQ=DAILY;\r\n COUNT=2"
    assert fires(text, count=9) == ["2026-01-01 14:00", "2026-01-02 14:00"]


def test_a_recurrence_with_interval_counts_from_the_jobs_creation() -> None:
    created = datetime(2026, 1, 6, 15, 30, tzinfo=UTC)
    found = Schedule("RRULE:FREQ=DAILY;INTERVAL=3;BYHOUR=9", anchor_at=created).upcoming(created, 2)
    assert found == [datetime(2026, 1, 9, 9, tzinfo=UTC), datetime(2026, 1, 12, 9, tzinfo=UTC)]


# Once


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


# Windows and questions


def test_a_window_includes_both_of_its_ends() -> None:
    start, end = datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 7, tzinfo=UTC)
    schedule = Schedule("@daily", start_at=start, end_at=end)
    assert schedule.upcoming(NEW_YEAR, 9) == [start, datetime(2026, 1, 6, tzinfo=UTC), end]
    assert schedule.count_between(NEW_YEAR, datetime(2027, 1, 1, tzinfo=UTC)) == 3
    assert schedule.next(end) is None


def test_between_includes_its_start_and_not_its_end() -> None:
    start, end = datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 7, tzinfo=UTC)
    assert Schedule("@daily").between(start, end) == [start, datetime(2026, 1, 6, tzinfo=UTC)]
    assert Schedule("@daily").count_between(start, end) == 2
    assert Schedule("@daily").between(end, start) == []
    assert Schedule("@daily").count_between(end, start) == 0


def test_next_is_strictly_later_than_a_fire_time() -> None:
    assert Schedule("@daily").next(NEW_YEAR) == NEW_YEAR + timedelta(days=1)
    assert Schedule("@daily").next(NEW_YEAR - timedelta(microseconds=1)) == NEW_YEAR


# Identity


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0 9 * * MON-WED", "0 9 * * 1,2,3"),
        ("every 60m", "every 1h"),
        ("RRULE:FREQ=DAILY;BYHOUR=3,1", "RRULE:BYHOUR=1,3;FREQ=DAILY"),
        ("2026-06-09T13:00:00Z", "2026-06-09T15:00:00+02:00"),
        ("0 9 * * 0-6", "0 9 * * *"),
    ],
)
def test_schedules_that_say_the_same_are_equal_and_hash_alike(one: str, other: str) -> None:
    assert Schedule(one) == Schedule(other)
    assert hash(Schedule(one)) == hash(Schedule(other))


def test_schedules_that_differ_in_anything_that_matters_are_not_equal() -> None:
    base = Schedule("30 2 * * *", NEW_YORK)
    assert base != Schedule("30 3 * * *", NEW_YORK)
    assert base != Schedule("30 2 * * *", "America/Toronto")
    assert base != Schedule("30 2 * * *", NEW_YORK, dst_gap="skip")
    assert base != Schedule("30 2 * * *", NEW_YORK, dst_overlap="second")
    assert base != Schedule("30 2 * * *", NEW_YORK, end_at=NEW_YEAR)
    assert Schedule("*/30 2 * * *", NEW_YORK) != Schedule("0,30 2 * * *", NEW_YORK)  # one follows elapsed time
    assert base != "30 2 * * *"


def test_a_schedule_shows_its_text_and_zone() -> None:
    assert repr(Schedule("0 9 * * *", NEW_YORK)) == "Schedule('0 9 * * *', timezone='America/New_York')"


# Refusals

REFUSED = {
    "": "is empty",
    "   ": "is empty",
    "* * *": "a cron expression has 5 or 6 fields, this has 3",
    "* * * * * * *": "a cron expression has 5 or 6 fields, this has 7",
    "60 * * * *": "cron field minute '60': expected 0-59",
    "60 0 0 * * *": "cron field second '60': expected 0-59",
    "0 24 * * *": "cron field hour '24': expected 0-23",
    "0 0 32 * *": "cron field day-of-month '32': expected 1-31, L or LW",
    "0 0 0 * *": "cron field day-of-month '0'",
    "0 0 * 13 *": "cron field month '13': expected 1-12 or JAN-DEC",
    "0 0 * MAI *": "cron field month 'MAI'",
    "0 0 * * 8": "cron field day-of-week '8': expected 0-7 or SUN-SAT, 5L or 1#1",
    "0 0 * * 1#6": "cron field day-of-week '1#6'",
    "0 0 * * FRI-MON": "cron field day-of-week 'FRI-MON'",
    "*/0 * * * *": "cron field minute '*/0'",
    "5-1 * * * *": "cron field minute '5-1'",
    "? * * * *": "cron field minute '?': `?` stands only for a day-of-month or day-of-week",
    "HH * * * *": "cron field minute 'HH': `H` is written H, H/15, H(0-29) or H(0-29)/10",
    "H(9-3) * * * *": "cron field minute 'H(9-3)': the range is empty",
    "H/0 * * * *": "cron field minute 'H/0': the step is zero",
    "0 0 30 2 *": "never fires: day 30 does not occur in month 2",
    "0 0 31 4,6 *": "never fires: day 31 does not occur in month 4,6",
    "0," * 256 + "0 * * * *": "at most 512 characters",
    "@reboot": "'@reboot' is not one of @hourly, @daily",
    "every": "a cron expression has 5 or 6 fields, this has 1",
    "every 5": "write an interval as `every 5m`",
    "every five minutes": "write an interval as `every 5m`",
    "every 0s": "the interval must be longer than zero",
    "every 10ms": "the interval is shorter than 1 second",
    "every 101 years": "write an interval as",
    "every 40000d": "the interval is longer than 100 years",
    "in": "a cron expression has 5 or 6 fields, this has 1",
    "in a while": "write a delay as `in 90s`",
    "in 40000d": "at most 100 years",
    "R/PT1H": "write `R/2026-01-01T00:00:00Z/PT1H`",
    "R0/2026-01-01T00:00:00Z/PT1H": "never fires: it repeats zero times",
    "R/2026-01-01T00:00:00Z/1h": "'1h' is neither an ISO 8601 duration nor an instant",
    "R/2026-01-01T00:00:00Z/2025-01-01T00:00:00Z": "the interval must be longer than zero",
    "R/2026-01-01T00:00:00Z/PT0.2S": "the interval is shorter than 1 second",
    "R/2026-01-01T00:00:00Z/P101Y": "at most 100 years",
    "2026-06-09": "write an instant as `2026-06-09T13:00:00Z`",
    "2026-13-09T00:00Z": "write an instant as `2026-06-09T13:00:00Z`",
    "FREQ=DAILY": "write a recurrence as `RRULE:FREQ=DAILY`",
    "RRULE:": "RRULE part '' is not known",
    "RRULE:INTERVAL=2": "RRULE part FREQ is one of YEARLY, MONTHLY",
    "RRULE:FREQ=FORTNIGHTLY": "RRULE part FREQ is one of YEARLY, MONTHLY",
    "RRULE:FREQ=DAILY;EVERY=2": "RRULE part 'EVERY' is not known",
    "RRULE:FREQ=DAILY;FREQ=DAILY": "RRULE part FREQ needs one value, given once",
    "RRULE:FREQ=DAILY;INTERVAL=0": "RRULE part INTERVAL is a number from 1",
    "RRULE:FREQ=DAILY;INTERVAL=99999": "RRULE part INTERVAL is longer than 100 years",
    "RRULE:FREQ=DAILY;COUNT=0": "RRULE part COUNT is a number from 1",
    "RRULE:FREQ=DAILY;COUNT=3;UNTIL=20260101T000000Z": "RRULE has COUNT and UNTIL; only one of them may end it",
    "RRULE:FREQ=DAILY;UNTIL=tomorrow": "UNTIL is written 20260131T090000",
    "RRULE:FREQ=DAILY;BYHOUR=24": "RRULE part BYHOUR is a number from 0 to 23, not '24'",
    "RRULE:FREQ=DAILY;BYHOUR=": "RRULE part BYHOUR needs one value",
    "RRULE:FREQ=MONTHLY;BYMONTHDAY=0": "RRULE part BYMONTHDAY is a number from 1 to 31 or -31 to -1, not '0'",
    "RRULE:FREQ=MONTHLY;BYDAY=0MO": "RRULE part BYDAY is written MO, 1MO or -1FR, not '0MO'",
    "RRULE:FREQ=MONTHLY;BYDAY=MON": "RRULE part BYDAY is written MO, 1MO or -1FR, not 'MON'",
    "RRULE:FREQ=WEEKLY;BYDAY=1MO": "RRULE part BYDAY may count weekdays (1MO) only with FREQ=MONTHLY or YEARLY",
    "RRULE:FREQ=WEEKLY;BYMONTHDAY=1": "RRULE part BYMONTHDAY does not go with FREQ=WEEKLY",
    "RRULE:FREQ=MONTHLY;BYYEARDAY=1": "RRULE part BYYEARDAY goes only with FREQ=YEARLY",
    "RRULE:FREQ=MONTHLY;BYWEEKNO=1": "RRULE part BYWEEKNO goes only with FREQ=YEARLY",
    "RRULE:FREQ=MONTHLY;BYSETPOS=1": "RRULE part BYSETPOS needs another BY… part to choose from",
    "RRULE:FREQ=WEEKLY;WKST=XX": "RRULE part WKST is one of MO, TU",
    "RRULE:FREQ=DAILY\nRRULE:FREQ=WEEKLY": "exactly one RRULE line is needed, this has 2",
    "DTSTART:20260101T000000": "exactly one RRULE line is needed, this has 0",
    "RRULE:FREQ=DAILY\nSUMMARY:Tea": "line 'SUMMARY:Tea' is not RRULE, DTSTART, RDATE or EXDATE",
    "RRULE:FREQ=DAILY\nDTSTART:20260101T000000,20260102T000000": "DTSTART is one instant",
    "RRULE:FREQ=DAILY\nDTSTART:20260230T000000": "DTSTART is written 20260131T090000",
    "RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30": "never fires: no date in fifty years matches",
    "CRON_TZ=Mars/Olympus 0 0 * * *": "'Mars/Olympus' is not a zone of the IANA database",
    "tomorrow at nine": "a cron expression has 5 or 6 fields, this has 3",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_text_that_cannot_be_used_is_refused_with_its_field_and_reason(text: str) -> None:
    with pytest.raises(InvalidSchedule) as refusal:
        Schedule(text)
    assert REFUSED[text] in refusal.value.reason
    assert refusal.value.field == ("timezone" if "Mars" in text else "schedule")
    assert str(refusal.value) == f"{refusal.value.field}: {refusal.value.reason}"


@pytest.mark.parametrize(
    "text",
    [
        "DTSTART;TZID=America/New_York:20260101T000000\nRRULE:FREQ=DAILY\nRDATE:00010101T000000Z",
        "DTSTART;TZID=Asia/Tokyo:20260101T000000\nRRULE:FREQ=DAILY\nEXDATE:99991231T235959Z",
        "DTSTART:00010101T000000Z\nRRULE:FREQ=YEARLY;BYWEEKNO=1",
        "R/0001-01-01T00:00:00+14:00/P1M",
        "R/9999-12-31T23:59:59-14:00/PT1H",
        "9999-12-31T23:59:59-14:00",
        "9999-12-31T23:59:59",
        "0001-01-01T00:00",
    ],
)
@pytest.mark.parametrize("zone", [NEW_YORK, "Asia/Tokyo", "UTC"])
def test_an_instant_at_the_ends_of_the_calendar_is_used_or_refused_but_never_crashes(text: str, zone: str) -> None:
    with suppress(InvalidSchedule):
        schedule = Schedule(text, zone)
        found = schedule.next(NEW_YEAR)
        assert found is None or found > NEW_YEAR


def test_a_policy_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidSchedule, match="dst_gap: 'jump' is not one of catch_up, skip, shift"):
        Schedule("@daily", dst_gap="jump")
    with pytest.raises(InvalidSchedule, match="dst_overlap: 'third' is not one of first, second, both"):
        Schedule("@daily", dst_overlap="third")


def test_a_window_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="end_at: must be later than start_at"):
        Schedule("@daily", start_at=NEW_YEAR, end_at=NEW_YEAR - timedelta(days=1))


def test_a_schedule_that_never_fires_within_its_window_is_refused_for_that() -> None:
    with pytest.raises(InvalidSchedule, match="never fires between start_at and end_at"):
        Schedule("0 0 29 2 *", start_at=NEW_YEAR, end_at=datetime(2027, 1, 1, tzinfo=UTC))


def test_an_instant_without_a_zone_is_an_error() -> None:
    naive = NEW_YEAR.replace(tzinfo=None)
    schedule = Schedule("@daily")
    for ask in (
        lambda: schedule.next(naive),
        lambda: schedule.upcoming(naive, 1),
        lambda: schedule.between(naive, NEW_YEAR),
        lambda: schedule.between(NEW_YEAR, naive),
        lambda: schedule.count_between(NEW_YEAR, naive),
    ):
        with pytest.raises(ValueError, match="needs a time zone"):
            ask()
    for field in ("start_at", "end_at", "anchor_at"):
        with pytest.raises(InvalidSchedule, match=f"{field}: needs a time zone or offset"):
            Schedule("@daily", **{field: naive})  # type: ignore[arg-type]


def test_a_refusal_survives_the_way_to_another_process() -> None:
    with pytest.raises(InvalidSchedule) as refusal:
        Schedule("60 * * * *")
    again = pickle.loads(pickle.dumps(refusal.value))
    assert type(again) is InvalidSchedule
    assert (again.field, again.reason) == (refusal.value.field, refusal.value.reason)
    assert str(again) == str(refusal.value)
