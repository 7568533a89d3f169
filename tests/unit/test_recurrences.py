"""Recurrences: what their parts mean, and where dateutil or a shortcut around it would have misled a user."""

from datetime import UTC, datetime, timedelta

import pytest

from bounded_work import MAX_CALLS, calls_at_most
from evertick import InvalidSchedule, Schedule
from evertick.domain.rule import Policies, rule_of
from firing import NEW_YEAR, NEW_YORK, fires, us


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc] # year, month, day, hour, minute


def test_a_count_that_lasts_for_centuries_is_not_cut_short() -> None:
    schedule = Schedule("DTSTART:20000101T000000\nRRULE:FREQ=YEARLY;COUNT=150")
    assert schedule.count_between(at(1990, 1, 1), at(3000, 1, 1)) == 150
    assert schedule.next(at(2148, 6, 1)) == at(2149, 1, 1)
    assert schedule.next(at(2149, 1, 1)) is None


def test_the_last_tick_of_a_count_is_found_from_behind() -> None:
    schedule = Schedule("DTSTART:20260101T000000\nRRULE:FREQ=DAILY;COUNT=10")
    assert schedule.ticks(0).prev(4_000_000_000_000_000) == int(at(2026, 1, 10).timestamp()) * 1_000_000


def test_a_count_without_a_start_counts_from_the_instant_asked_about() -> None:
    schedule = Schedule("RRULE:FREQ=DAILY;BYHOUR=9;COUNT=3")
    assert schedule.upcoming(at(2026, 5, 1, 12), 9) == [at(2026, 5, day, 9) for day in (2, 3, 4)]
    assert schedule.count_between(at(2026, 5, 1), at(2027, 1, 1)) == 3


def test_a_count_without_a_start_is_no_rule_until_the_job_exists() -> None:
    with pytest.raises(ValueError, match="anchor_at"):
        rule_of(Schedule("RRULE:FREQ=DAILY;COUNT=3"), Policies())
    rule_of(Schedule("RRULE:FREQ=DAILY;COUNT=3", anchor_at=at(2026, 1, 1)), Policies())


def test_positions_among_every_second_of_a_year_are_computed_not_listed() -> None:
    every = ";".join(f"BY{part}={','.join(map(str, range(n)))}" for part, n in (("HOUR", 24), ("MINUTE", 60)))
    schedule = Schedule(f"RRULE:FREQ=YEARLY;BYSETPOS=-1;BYDAY=MO,TU,WE,TH,FR,SA,SU;{every}")
    assert schedule.upcoming(at(2026, 1, 1), 2) == [at(2026, 12, 31, 23, 59), at(2027, 12, 31, 23, 59)]


@pytest.mark.parametrize("text", ["FREQ=HOURLY;INTERVAL=10;BYHOUR=3", "FREQ=MINUTELY;INTERVAL=22;BYMINUTE=3"])
def test_steps_that_can_never_meet_their_limits_are_refused(text: str) -> None:
    with pytest.raises(InvalidSchedule, match="never fires"):
        Schedule(f"DTSTART:20260101T000000\nRRULE:{text}")


def test_a_month_without_that_day_is_refused_at_once() -> None:
    with pytest.raises(InvalidSchedule, match="never fires"):
        Schedule("RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30")


def test_numbered_weeks_that_start_on_another_day_are_found_from_the_first_year_on() -> None:
    schedule = Schedule("RRULE:FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO;BYSETPOS=1;WKST=TU")
    assert schedule.next(at(2026, 1, 1)) == at(2026, 5, 18)


def test_a_date_added_in_utc_keeps_its_pass_through_a_repeated_hour() -> None:
    text = f"DTSTART;TZID={NEW_YORK}:20260101T090000\nRRULE:FREQ=YEARLY\nRDATE:20261101T063000Z"
    assert at(2026, 11, 1, 6, 30) in Schedule(text).between(at(2026, 10, 1), at(2026, 12, 1))


def test_a_date_excluded_in_utc_excludes_one_pass_of_a_repeated_hour() -> None:
    text = f"DTSTART;TZID={NEW_YORK}:20261031T013000\nRRULE:FREQ=DAILY;COUNT=2\nEXDATE:20261101T063000Z"
    fires = Schedule(text, dst_overlap="both").upcoming(at(2026, 10, 1), 9)
    assert fires == [at(2026, 10, 31, 5, 30), at(2026, 11, 1, 5, 30)]


def test_a_date_added_to_an_hourly_rule_is_a_time_on_the_clock_and_caught_up() -> None:
    text = f"DTSTART;TZID={NEW_YORK}:20260308T010000\nRRULE:FREQ=HOURLY;INTERVAL=6\nRDATE:20260308T023000"
    assert Schedule(text).upcoming(at(2026, 3, 8, 5), 2) == [at(2026, 3, 8, 6), at(2026, 3, 8, 7)]


def test_a_repetition_with_a_local_start_follows_the_policies_for_clock_changes() -> None:
    starts = {
        gap: Schedule("R/2026-03-08T02:30/PT24H", NEW_YORK, dst_gap=gap).next(at(2026, 3, 8))
        for gap in ("catch_up", "shift")
    }
    assert starts == {"catch_up": at(2026, 3, 8, 7), "shift": at(2026, 3, 8, 7, 30)}
    second = Schedule("R/2026-11-01T01:30/PT24H", NEW_YORK, dst_overlap="second")
    assert second.next(at(2026, 11, 1)) == at(2026, 11, 1, 6, 30)


@pytest.mark.parametrize(
    "text",
    [
        f"every {'9' * 5000}s",
        f"every {'9' * 400}s",
        f"in {'9' * 400}d",
        f"R{'9' * 400}/2026-01-01T00:00:00Z/PT1H",
        f"R/2026-01-01T00:00:00Z/P{'9' * 400}Y",
        f"every {'1s' * 200_000}",
    ],
    ids=lambda text: text[:12],
)
def test_numbers_of_any_length_are_refused_not_tripped_over(text: str) -> None:
    with pytest.raises(InvalidSchedule):
        Schedule(text)


def test_positions_count_for_how_near_two_ticks_come() -> None:
    schedule = Schedule("RRULE:FREQ=DAILY;BYHOUR=9;BYMINUTE=0,1;BYSETPOS=1")
    assert schedule.shortest_interval() == timedelta(days=1)


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


@pytest.mark.parametrize("interval", [5, 7])
def test_a_count_of_steps_begins_after_the_instant_asked_about(interval: int) -> None:
    noon = at(2026, 6, 9, 12)
    fires_at = Schedule(f"RRULE:FREQ=MINUTELY;INTERVAL={interval};COUNT=3").upcoming(noon, 5)
    assert len(fires_at) == 3
    assert noon < fires_at[0] <= noon + timedelta(minutes=interval)


@pytest.mark.parametrize(
    ("text", "ticks"),
    [("FREQ=HOURLY;COUNT=5", 5), ("FREQ=DAILY;BYHOUR=9;COUNT=2", 2), ("FREQ=SECONDLY;INTERVAL=7;COUNT=1000", 1000)],
)
def test_none_of_a_count_is_used_up_before_the_job_exists(text: str, ticks: int) -> None:
    created_at = at(2026, 6, 9, 12)
    schedule = Schedule(f"RRULE:{text}", "Europe/Berlin", anchor_at=created_at)
    assert schedule.count_between(created_at, at(2030, 1, 1)) == ticks
    assert schedule.count_between(at(2000, 1, 1), created_at) == 0


def test_a_rule_keeps_the_policies_that_a_date_added_to_an_hourly_one_needs() -> None:
    text = "DTSTART;TZID=Europe/Berlin:20260301T003000\nRRULE:FREQ=HOURLY;INTERVAL=24\nRDATE:20260329T023000"
    schedule = Schedule(text, dst_gap="skip")
    window = us("2026-03-28T00:00Z"), us("2026-03-30T00:00Z")
    assert rule_of(schedule, Policies()).ticks().count(*window) == schedule.ticks(0).count(*window)


def test_a_rule_with_long_steps_is_looked_for_around_its_own_time() -> None:
    schedule = Schedule("RRULE:FREQ=DAILY;INTERVAL=100;BYMONTH=1;BYMONTHDAY=1", anchor_at=at(2029, 2, 18))
    assert schedule.next(at(2029, 2, 18)) == at(2042, 1, 1)


@pytest.mark.parametrize("line", ["RDATE:99991231T235959", "EXDATE:00010101T000000Z"])
def test_a_date_at_the_end_of_the_calendar_is_refused(line: str) -> None:
    with pytest.raises(InvalidSchedule, match="outside of the years"):
        Schedule(f"DTSTART:20260101T000000\nRRULE:FREQ=DAILY;COUNT=3\n{line}")


def test_dates_of_another_zone_count_for_how_near_two_ticks_come() -> None:
    dates = "RDATE;TZID=Asia/Tokyo:20260105T000000,20260105T000001"
    schedule = Schedule(f"DTSTART:20260101T000000\nRRULE:FREQ=DAILY\n{dates}")
    assert schedule.shortest_interval() == timedelta(seconds=1)


def test_a_date_is_excluded_however_it_was_added() -> None:
    text = "DTSTART:20260101T000000\nRRULE:FREQ=YEARLY\nRDATE:20260610T070000Z\nEXDATE:20260610T090000"
    assert Schedule(text, "Europe/Berlin").between(at(2026, 6, 1), at(2026, 7, 1)) == []


def test_one_jump_of_the_clocks_loses_each_time_once() -> None:
    head = "DTSTART;TZID=Europe/Berlin:20260301T021500\nRRULE:FREQ=DAILY;BYMINUTE=15,45"
    twice = Schedule(f"{head}\nRDATE:20260329T021500", dst_gap="skip").ticks(0)
    apart = Schedule(f"{head}\nRDATE:20260329T023000", dst_gap="skip").ticks(0)
    window = us("2026-03-29T00:00Z"), us("2026-03-30T00:00Z")
    assert [lost.ticks for lost in twice.lost(*window)] == [2]
    assert [lost.ticks for lost in apart.lost(*window)] == [3]


def test_steps_of_almost_a_day_with_limits_are_counted_without_much_work() -> None:
    schedule = Schedule("DTSTART:20200101T000000\nRRULE:FREQ=SECONDLY;INTERVAL=86399;BYSECOND=7", "Europe/Berlin")
    with calls_at_most(MAX_CALLS):
        assert schedule.count_between(at(2026, 1, 1), at(2027, 1, 1)) == 6
