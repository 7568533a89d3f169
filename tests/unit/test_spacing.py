"""How near two ticks can come: the default misfire grace and the lint depend on it."""

from datetime import timedelta

import pytest

from evertick import Schedule

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

SHORTEST = {
    "* * * * * *": timedelta(seconds=1),
    "* * * * *": MINUTE,
    "*/7 * * * *": 4 * MINUTE,  # from :56 to the full hour
    "0,59 * * * *": MINUTE,
    "0 9,17 * * *": 8 * HOUR,
    "0 0,23 * * *": HOUR,  # over midnight
    "0 9 * * *": DAY,
    "0 9 * * 1-5": DAY,
    "0 9 * * 1": 7 * DAY,
    "0 0,23 * * 1": 23 * HOUR,  # no midnight of a Tuesday follows
    "0 0 1 * *": 28 * DAY,
    "0 9 1 * 1": DAY,  # a first that falls on a Sunday or Tuesday
    "0 0,23 1,29 * *": HOUR,  # from 29 February to 1 March
    "0 0 29 2 *": 1461 * DAY,
    "every 90s": timedelta(seconds=90),
    "R/2026-01-31T00:00:00Z/P1M": 28 * DAY,
    "R/2026-01-31T00:00:00Z/P1Y": 365 * DAY,
    "RRULE:FREQ=MONTHLY;BYDAY=1MO;BYHOUR=14": 28 * DAY,
    "RRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,WE": 2 * DAY,
    "RRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO": 14 * DAY,
    "RRULE:FREQ=DAILY;BYHOUR=9,12;BYMINUTE=0,45": 45 * MINUTE,
    "RRULE:FREQ=HOURLY;INTERVAL=5": 5 * HOUR,
    "RRULE:FREQ=HOURLY;BYHOUR=9": DAY,
    "RRULE:FREQ=HOURLY;BYMINUTE=10,50": 20 * MINUTE,
    "RRULE:FREQ=MINUTELY;BYSECOND=10,30": timedelta(seconds=20),
    "RRULE:FREQ=MINUTELY;BYMINUTE=0,30": 30 * MINUTE,
    "DTSTART:20260101T000000\nRRULE:FREQ=DAILY\nRDATE:20260102T000500": 5 * MINUTE,
}


@pytest.mark.parametrize(("text", "shortest"), SHORTEST.items())
def test_the_shortest_interval_is_the_smallest_distance_of_two_ticks(text: str, shortest: timedelta) -> None:
    assert Schedule(text).shortest_interval() == shortest


@pytest.mark.parametrize(
    "text",
    [
        "manual",
        "now",
        "in 90s",
        "2026-06-09T13:00:00Z",
        "R1/2026-01-01T00:00:00Z/PT1H",
        "R1/2026-01-01T00:00:00Z/P1M",
        "RRULE:FREQ=DAILY;COUNT=1",
    ],
)
def test_what_never_fires_twice_has_no_interval(text: str) -> None:
    assert Schedule(text).shortest_interval() is None
