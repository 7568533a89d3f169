"""What holds for schedules of every form: windows, questions, identity, and why a text is refused."""

import pickle
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from evertick import InvalidSchedule, Schedule
from firing import NEW_YEAR, NEW_YORK

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
            Schedule("@daily", **{field: naive})  # type: ignore[arg-type] # the field varies


def test_a_refusal_survives_the_way_to_another_process() -> None:
    with pytest.raises(InvalidSchedule) as refusal:
        Schedule("60 * * * *")
    again = pickle.loads(pickle.dumps(refusal.value))
    assert type(again) is InvalidSchedule
    assert (again.field, again.reason) == (refusal.value.field, refusal.value.reason)
    assert str(again) == str(refusal.value)
