"""Traps that a schedule's author should hear of before they fire."""

from datetime import UTC, datetime, timedelta

import pytest

from bounded_work import MAX_CALLS, calls_at_most
from evertick import Schedule
from evertick.domain.schedule.lint import Finding, Severity

NEW_YORK = "America/New_York"
MARCH_2026 = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def the(code: str, findings: list[Finding]) -> Finding:
    return next(finding for finding in findings if finding.code == code)


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule("17 12 * * *", NEW_YORK),
        Schedule("*/5 * * * *", NEW_YORK),
        Schedule("every 5m", NEW_YORK),
        Schedule("manual"),
        Schedule("now"),
    ],
    ids=lambda schedule: schedule.text,
)
def test_an_honest_schedule_has_no_findings(schedule: Schedule) -> None:
    assert schedule.lint(after=MARCH_2026) == []


# Nothing left to fire


@pytest.mark.parametrize(
    ("schedule", "last"),
    [
        (Schedule("2026-02-03T13:00:00Z"), "Tuesday 3 February 2026 at 13:00 UTC"),
        (Schedule("7 2 * * *", end_at=datetime(2026, 2, 1, tzinfo=UTC)), "Saturday 31 January 2026 at 02:07 UTC"),
        (Schedule("RRULE:FREQ=DAILY;BYMINUTE=7;UNTIL=20260110T000000Z"), "Friday 9 January 2026 at 00:07 UTC"),
        (Schedule("DTSTART:20260101T000700\nRRULE:FREQ=DAILY;COUNT=3"), "Saturday 3 January 2026 at 00:07 UTC"),
    ],
    ids=["one-off", "end_at", "UNTIL", "COUNT"],
)
def test_a_schedule_that_is_over_never_fires(schedule: Schedule, last: str) -> None:
    (finding,) = schedule.lint(after=MARCH_2026)
    assert (finding.code, finding.severity) == ("never_fires", Severity.ERROR)
    assert finding.message.endswith(f"the last fire time was {last}")


def test_the_last_fire_time_may_be_this_very_instant() -> None:
    (finding,) = Schedule("2026-03-01T00:00:00Z").lint(after=MARCH_2026)
    assert finding.message.endswith("the last fire time was Sunday 1 March 2026 at 00:00 UTC")


def test_a_delay_that_ends_behind_the_window_never_fires() -> None:
    delayed = Schedule("in 2h", end_at=MARCH_2026 + HOUR)
    assert codes(delayed.lint(after=MARCH_2026)) == ["never_fires"]
    assert delayed.lint(after=MARCH_2026 - 2 * HOUR) == []


def test_without_an_instant_nothing_is_said_about_what_is_left() -> None:
    assert Schedule("2026-02-03T13:00:00Z").lint() == []


# Days


def test_two_restricted_day_fields_mean_either() -> None:
    finding = the("dom_and_dow", Schedule("7 0 1 * 1").lint())
    assert finding.severity is Severity.WARNING
    assert finding.message == (
        "either day field is enough: the 1st of the month, and also every Monday, not only days that are both"
    )


def test_a_star_step_beside_a_weekday_means_both() -> None:
    assert the("dom_and_dow", Schedule("7 0 */10 * 1").lint()).message == (
        "a day field that begins with a star must match together with the other: "
        "only Monday when it is the 1st, the 11th, the 21st or the 31st of the month"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "7 0 31 * *",
            (
                "February, April, June, September and November have no 31st and are left out: "
                "`L` is every month's last day"
            ),
        ),
        (
            "RRULE:FREQ=MONTHLY;BYMONTHDAY=30,31;BYMINUTE=7",
            "February has no 30th and is left out: BYMONTHDAY=-1 is every month's last day",
        ),
    ],
)
def test_the_31st_leaves_out_short_months(text: str, message: str) -> None:
    (finding,) = Schedule(text).lint()
    assert (finding.code, finding.message) == ("short_months", message)


@pytest.mark.parametrize("text", ["7 0 15,31 * *", "7 0 31,L * *", "7 0 31 1,3 *", "R/2026-01-31T00:07:00Z/P1M"])
def test_a_31st_that_leaves_out_no_month_is_fine(text: str) -> None:
    assert Schedule(text).lint() == []


@pytest.mark.parametrize("text", ["7 0 29 2 *", "7 0 29 * *", "RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;BYMINUTE=7"])
def test_the_leap_day_is_rare(text: str) -> None:
    assert codes(Schedule(text).lint()) == ["leap_day"]


def test_a_date_as_until_leaves_out_that_day() -> None:
    finding = the("until_date", Schedule("RRULE:FREQ=DAILY;BYHOUR=9;BYMINUTE=7;UNTIL=20271231").lint())
    assert finding.message.startswith("UNTIL=20271231 is the midnight that begins Friday 31 December 2027")


@pytest.mark.parametrize(
    "rule", ["FREQ=DAILY;UNTIL=20271231", "FREQ=DAILY;BYHOUR=9;UNTIL=20271231T235959", "FREQ=DAILY;BYHOUR=9"]
)
def test_an_until_that_loses_nothing_is_fine(rule: str) -> None:
    assert "until_date" not in codes(Schedule(f"RRULE:{rule}").lint())


# The top of the hour


@pytest.mark.parametrize("text", ["@daily", "0 9 * * 1", "0 * * * *", "RRULE:FREQ=HOURLY", "RRULE:FREQ=DAILY;BYHOUR=9"])
def test_a_job_on_the_hour_is_in_a_crowd(text: str) -> None:
    (finding,) = Schedule(text).lint()
    assert (finding.code, finding.severity) == ("top_of_hour_herd", Severity.INFO)
    remedy = "choose another minute" if text.startswith("RRULE") else "write `H` for the minute"
    assert finding.message == f"it fires on the hour, when most jobs do: {remedy} or give it jitter"


@pytest.mark.parametrize(
    "text", ["H 9 * * *", "CRON_TZ=Asia/Tokyo H 9 * * *", "*/30 * * * *", "30 0 9 * * *", "every 1h"]
)
def test_a_job_that_is_spread_or_elsewhere_is_not(text: str) -> None:
    assert "top_of_hour_herd" not in codes(Schedule(text).lint())


def test_a_hash_that_happens_to_be_zero_is_still_spread() -> None:
    key = next(str(n) for n in range(1000) if Schedule("H 9 * * *", key=str(n)) == Schedule("0 9 * * *"))
    assert Schedule("H 9 * * *", key=key).lint() == []


def test_jitter_spreads_as_well() -> None:
    assert Schedule("@daily").lint(jitter=MINUTE) == []


# Daylight saving


@pytest.mark.parametrize(
    ("dst_gap", "severity", "result"),
    [
        ("catch_up", Severity.INFO, "catch_up runs it at 03:00"),
        ("shift", Severity.INFO, "shift runs it at 03:30"),
        ("skip", Severity.WARNING, "skip leaves it out"),
    ],
)
def test_a_time_in_the_gap_is_told_with_what_becomes_of_it(dst_gap: str, severity: Severity, result: str) -> None:
    (finding,) = Schedule("30 2 * * *", NEW_YORK, dst_gap).lint(after=MARCH_2026)
    assert (finding.code, finding.severity) == ("dst_gap", severity)
    assert finding.message == (
        "02:30 does not exist on Sunday 8 March 2026, the clocks jump from 02:00 to 03:00: dst_gap " + result
    )


@pytest.mark.parametrize(
    ("dst_overlap", "severity", "result"),
    [
        ("first", Severity.INFO, "first runs only the first"),
        ("second", Severity.INFO, "second runs only the second"),
        ("both", Severity.WARNING, "both runs it twice"),
    ],
)
def test_a_repeated_time_is_told_with_which_one_runs(dst_overlap: str, severity: Severity, result: str) -> None:
    (finding,) = Schedule("30 1 * * *", NEW_YORK, dst_overlap=dst_overlap).lint(after=MARCH_2026)
    assert (finding.code, finding.severity) == ("dst_overlap", severity)
    assert finding.message == (
        "01:30 happens twice on Sunday 1 November 2026, the clocks go back from 02:00 to 01:00: dst_overlap " + result
    )


def test_the_coming_change_is_named_not_a_past_one() -> None:
    (finding,) = Schedule("30 2 * * *", NEW_YORK).lint(after=datetime(2026, 3, 8, 12, 0, tzinfo=UTC))
    assert "Sunday 14 March 2027" in finding.message


def test_a_weekly_job_is_told_only_of_a_change_on_its_day() -> None:
    assert codes(Schedule("30 2 * * SUN", NEW_YORK).lint()) == ["dst_gap"]
    assert codes(Schedule("30 2 * * MON", NEW_YORK).lint()) == []


def test_a_window_without_a_change_has_no_finding() -> None:
    summer = datetime(2026, 6, 1, tzinfo=UTC), datetime(2026, 9, 1, tzinfo=UTC)
    assert Schedule("30 1,2 * * *", NEW_YORK, "catch_up", "first", *summer).lint(after=MARCH_2026) == []
    assert (
        Schedule("RRULE:FREQ=DAILY;BYHOUR=2;BYMINUTE=30;UNTIL=20260307T000000Z", NEW_YORK).lint(after=MARCH_2026) == []
    )


def test_a_correction_of_the_calendar_is_made_up_for_by_nothing() -> None:
    found = Schedule("7 12 30 12 *", "Pacific/Apia").lint(after=datetime(2011, 1, 1, tzinfo=UTC))
    finding = the("dst_gap", found)
    assert finding.severity is Severity.WARNING
    assert "Friday 30 December 2011, the clocks jump 1 day ahead" in finding.message


def test_elapsed_schedules_have_no_gap() -> None:
    assert Schedule("*/30 2 * * *", NEW_YORK).lint(after=MARCH_2026) == []
    assert Schedule("RRULE:FREQ=MINUTELY;INTERVAL=30", NEW_YORK).lint(after=MARCH_2026) == []


def test_the_worst_comes_first() -> None:
    schedule = Schedule("0 2 1 * 1", NEW_YORK, end_at=datetime(2026, 2, 1, tzinfo=UTC))
    assert codes(schedule.lint(after=MARCH_2026)) == ["never_fires", "dom_and_dow", "top_of_hour_herd"]


@pytest.mark.parametrize(
    "text",
    [
        "0 0 */29 2 MON",
        "30 2 29 2 *",
        "RRULE:FREQ=YEARLY;INTERVAL=99;BYHOUR=2",
        "RRULE:FREQ=DAILY;BYHOUR=2;COUNT=100000",
    ],
)
def test_a_sparse_rule_is_judged_without_much_work(text: str) -> None:
    schedule = Schedule(text, NEW_YORK)
    with calls_at_most(MAX_CALLS):
        schedule.lint(after=MARCH_2026)
