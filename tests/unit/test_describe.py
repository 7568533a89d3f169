"""One plain English sentence for every form of schedule."""

from datetime import UTC, datetime

import pytest

from evertick import Schedule

NEW_YORK = "America/New_York"

CRON = {
    "30 2 * * *": "At 02:30 every day, UTC",
    "30 0 9 * * *": "At 09:00:30 every day, UTC",
    "0 0,12 * * *": "At 00:00 and 12:00 every day, UTC",
    "0 1,2,5,7,11,13,17,19,23 * * *": (
        "At 01:00, 02:00, 05:00, 07:00, 11:00, 13:00, 17:00, 19:00 and 23:00 every day, UTC"
    ),
    "* * * * * *": "Every second",
    "* * * * *": "Every minute",
    "*/5 * * * *": "Every 5 minutes",
    "*/10 * * * * *": "Every 10 seconds",
    "0 * * * *": "Every hour",
    "30 * * * *": "At 30 minutes past every hour",
    "5/10 * * * *": "Every 10 minutes from 00:05 UTC",
    "0 */6 * * *": "Every 6 hours from 00:00 UTC",
    "*/7 * * * *": "Every 7 minutes from minute 0 of every hour",
    "*/7 9-17 * * *": "Every 7 minutes from minute 0 of each hour from 09:00 to 17:59 every day, UTC",
    "0,7,23 * * * *": "At minutes 0, 7 and 23 of every hour",
    "0-5 * * * * *": "At seconds 0 to 5 of every minute",
    "0-5 */20 9,12 * * *": (
        "At seconds 0 to 5 of minutes 0, 20 and 40 of each hour from 09:00 to 09:59 and from 12:00 to 12:59 "
        "every day, UTC"
    ),
    "0 9-17 * * 1-5": "Every hour from 09:00 to 17:00 on Monday to Friday, UTC",
    "*/15 9-17 * * MON-FRI": "Every 15 minutes from 09:00 to 17:45 on Monday to Friday, UTC",
    "*/15 9-11,14-16 * * *": "Every 15 minutes from 09:00 to 11:59 and from 14:00 to 16:59 every day, UTC",
    "0 9 * * 6,0": "At 09:00 on Saturday and Sunday, UTC",
    "0 9 * 1 MON": "At 09:00 on Monday in January, UTC",
    "0 9 * * 1#1": "At 09:00 on the first Monday of the month, UTC",
    "0 9 * * 1#1,5L": "At 09:00 on the first Monday and the last Friday of the month, UTC",
    "0 0 L * *": "At 00:00 on the last day of the month, UTC",
    "0 0 LW 3 *": "At 00:00 on the last working day of March, UTC",
    "0 0 1-7,22,L * *": "At 00:00 on the 1st to the 7th, the 22nd and the last day of the month, UTC",
    "0 0 29 2 *": "At 00:00 on 29 February, UTC",
    "0 0 1 1,7 *": "At 00:00 on the 1st of January and July, UTC",
    "0 0 * 1-3 *": "At 00:00 every day in January to March, UTC",
    "0 0 1,15 * 1": "At 00:00 on the 1st and the 15th of the month and also on every Monday, UTC",
    "0 0 1 2 1#1": "At 00:00 on the 1st of the month and also on the first Monday of the month, in February, UTC",
    "0 0 */10 * 1": "At 00:00 on Monday when it is the 1st, the 11th, the 21st or the 31st of the month, UTC",
    "@weekly": "At 00:00 on Sunday, UTC",
}

RECURRENCES = {
    "FREQ=DAILY;BYHOUR=9": "Every day at 09:00 UTC",
    "FREQ=DAILY;INTERVAL=3;UNTIL=20301231T000000Z": (
        "Every 3 days at 00:00, until Tuesday 31 December 2030 at 00:00 UTC"
    ),
    "FREQ=DAILY;UNTIL=20301231T080000": "Every day at 00:00, until Tuesday 31 December 2030 at 08:00 UTC",
    "FREQ=DAILY;BYMONTH=1;BYHOUR=9,10,11,12,13,14,15,16,17": (
        "Every day in January, every hour from 09:00 to 17:00 UTC"
    ),
    "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,WE;BYHOUR=9;BYMINUTE=30": "Every 2 weeks on Monday and Wednesday at 09:30 UTC",
    "FREQ=MONTHLY;BYDAY=1MO,-2FR;BYHOUR=14": (
        "Every month on the first Monday and the second-to-last Friday at 14:00 UTC"
    ),
    "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=1,-1;BYHOUR=17": (
        "Every month on every Monday to Friday at 17:00, only the first and the last of these in each month, UTC"
    ),
    "FREQ=MONTHLY;BYMONTHDAY=1,15,-1": "Every month on the 1st, the 15th and the last day at 00:00 UTC",
    "FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13": "Every month on every Friday when it is the 13th, at 00:00 UTC",
    "FREQ=YEARLY": "Every year on 1 January at 00:00 UTC",
    "FREQ=YEARLY;BYMONTH=7;BYMONTHDAY=4;BYHOUR=12": "Every year on 4 July at 12:00 UTC",
    "FREQ=YEARLY;BYMONTH=11;BYDAY=4TH": "Every year on the fourth Thursday of November at 00:00 UTC",
    "FREQ=YEARLY;BYMONTH=1,7;BYMONTHDAY=1,15": "Every year on the 1st and the 15th of January and July at 00:00 UTC",
    "FREQ=YEARLY;BYDAY=20MO": "Every year on the 20th Monday of the year at 00:00 UTC",
    "FREQ=YEARLY;BYYEARDAY=1,100,-1": (
        "Every year on the 1st day, the 100th day and the last day of the year at 00:00 UTC"
    ),
    "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO": "Every year on every Monday of week 20 at 00:00 UTC",
    "FREQ=YEARLY;BYWEEKNO=20,-1": "Every year on every day of week 20 and the last week at 00:00 UTC",
    "FREQ=HOURLY;INTERVAL=5": "Every 5 hours, UTC",
    "FREQ=HOURLY;BYMINUTE=0,30;BYHOUR=9,10,11": "Every hour at minutes 0 and 30 from 09:00 to 11:59 UTC",
    "FREQ=MINUTELY;INTERVAL=15;BYDAY=MO,TU": "Every 15 minutes on Monday and Tuesday, UTC",
}

OTHERS = {
    "every 5m": "Every 5 minutes",
    "@every 1h": "Every hour",
    "every 1h30m": "Every 90 minutes",
    "every 36h": "Every 36 hours",
    "every 2w": "Every 2 weeks",
    "every 1.5s": "Every 1.5 seconds",
    "every 25h1s": "Every 1 day 1 hour 1 second",
    "R5/2026-01-01T00:00:00Z/PT1H": "Every hour, 5 times, starting Thursday 1 January 2026 at 00:00 UTC",
    "R/2026-01-15T09:00:00Z/P1M": "Every month, starting Thursday 15 January 2026 at 09:00 UTC",
    "R/2026-01-31T09:00:00Z/P3M": (
        "Every 3 months, starting Saturday 31 January 2026 at 09:00, in shorter months on the last day, UTC"
    ),
    "R3/2026-01-01T09:00:00Z/P1Y2D": "Every year and 2 days, 3 times, starting Thursday 1 January 2026 at 09:00 UTC",
    "2026-06-09T13:00:00Z": "Once, on Tuesday 9 June 2026 at 13:00 UTC",
    "2026-06-09T13:00:00.250Z": "Once, on Tuesday 9 June 2026 at 13:00:00.25 UTC",
    "now": "Once, as soon as it is created",
    "in 90s": "Once, 90 seconds after it is created",
    "manual": "Only when triggered",
}


@pytest.mark.parametrize(("text", "sentence"), CRON.items())
def test_a_cron_expression_reads_as_a_sentence(text: str, sentence: str) -> None:
    assert Schedule(text).describe() == sentence


@pytest.mark.parametrize(("rule", "sentence"), RECURRENCES.items())
def test_a_recurrence_reads_as_a_sentence(rule: str, sentence: str) -> None:
    assert Schedule(f"RRULE:{rule}").describe() == sentence


@pytest.mark.parametrize(("text", "sentence"), OTHERS.items())
def test_intervals_one_offs_and_manual_jobs_read_as_a_sentence(text: str, sentence: str) -> None:
    assert Schedule(text).describe() == sentence


def test_a_recurrence_tells_its_start_its_count_and_its_changed_dates() -> None:
    text = (
        "DTSTART:20260101T093000\nRRULE:FREQ=DAILY;COUNT=3\n"
        "EXDATE:20260102T093000\nRDATE:20260110T120000,20260111T120000"
    )
    assert Schedule(text, NEW_YORK).describe() == (
        "Every day at 09:30, 3 times, starting Thursday 1 January 2026 at 09:30, and on 2 extra dates, "
        "except on 1 date, America/New_York time"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("30 2 * * *", "At 02:30 every day, America/New_York time"),
        ("0 * * * *", "Every hour, America/New_York time"),
        ("*/7 * * * *", "Every 7 minutes from minute 0 of every hour, America/New_York time"),
        ("*/15 * * * *", "Every 15 minutes"),  # the same instants in every zone
        ("2026-06-09T09:00", "Once, on Tuesday 9 June 2026 at 09:00, America/New_York time"),
        ("2026-06-09T13:00:00Z", "Once, on Tuesday 9 June 2026 at 09:00, America/New_York time"),
        ("RRULE:FREQ=DAILY;UNTIL=20301231T000000Z", "Every day at 00:00, until Monday 30 December 2030 at 19:00"),
    ],
)
def test_clock_times_are_the_zones_own(text: str, sentence: str) -> None:
    assert Schedule(text, NEW_YORK).describe().startswith(sentence)


def test_a_zone_in_the_text_is_named_too() -> None:
    assert Schedule("CRON_TZ=Asia/Tokyo 0 9 * * *").describe() == "At 09:00 every day, Asia/Tokyo time"


def test_a_window_is_told_in_the_schedules_zone() -> None:
    start_at, end_at = datetime(2026, 6, 1, 4, 0, tzinfo=UTC), datetime(2026, 7, 1, 4, 0, tzinfo=UTC)
    assert Schedule("every 5m", NEW_YORK, start_at=start_at, end_at=end_at).describe() == (
        "Every 5 minutes, from Monday 1 June 2026 at 00:00, until Wednesday 1 July 2026 at 00:00, America/New_York time"
    )


def test_the_end_of_all_times_as_end_at_does_not_break_the_sentence() -> None:
    forever = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert "9999" in Schedule("@daily", "Asia/Tokyo", end_at=forever).describe()
