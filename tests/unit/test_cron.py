"""Cron expressions: what their fields and `H` mean."""

from datetime import UTC, datetime, timedelta

import pytest

from evertick import Schedule
from firing import NEW_YEAR, fires

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
