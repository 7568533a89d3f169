"""The examples of RFC 5545, section 3.8.5.3, in its own order, with the dates that it lists."""

from datetime import datetime, timedelta

import pytest

from evertick import Schedule, tzdb

ZONE = "America/New_York"
WALL = tzdb.load(ZONE)


def on(listed: str, *times: str) -> list[datetime]:
    """`1997-09: 2-4, 9; 1998-01: 1` as wall times, at 09:00 or at each of the times."""
    walls = []
    for month, _, days in (part.strip().partition(":") for part in listed.split(";")):
        for day in days.split(","):
            first, _, last = day.strip().partition("-")
            walls += [
                datetime.fromisoformat(f"{month}-{number:02}T{time}")
                for number in range(int(first), int(last or first) + 1)
                for time in times or ("09:00",)
            ]
    return walls


def minutes_apart(first: str, last: str, step: int) -> list[str]:
    """Times of a day from `first` to `last`."""
    at, end = datetime.fromisoformat(f"1997-09-02T{first}"), datetime.fromisoformat(f"1997-09-02T{last}")
    return [
        (at + timedelta(minutes=step * number)).strftime("%H:%M")
        for number in range((end - at) // timedelta(minutes=step) + 1)
    ]


JANUARIES = on("1998-01: 1-31; 1999-01: 1-31; 2000-01: 1-31")
EVERY_20_MINUTES = on("1997-09: 2-3", *minutes_apart("09:00", "16:40", 20))
TUESDAYS_AND_THURSDAYS = on("1997-09: 2, 4, 9, 11, 16, 18, 23, 25, 30; 1997-10: 2")
MONDAY_WEDNESDAY_FRIDAY = on(
    "1997-09: 1, 3, 5, 15, 17, 19, 29; 1997-10: 1, 3, 13, 15, 17, 27, 29, 31; 1997-11: 10, 12, 14, 24, 26, 28; "
    "1997-12: 8, 10, 12, 22"
)

# DTSTART and what follows it, then the fires; a rule with COUNT or UNTIL has no others.
EXAMPLES: dict[str, tuple[str, str, list[datetime]]] = {
    "daily for 10 occurrences": (
        "19970902T090000",
        "FREQ=DAILY;COUNT=10",
        on("1997-09: 2-11"),
    ),
    "daily until December 24, 1997": (
        "19970902T090000",
        "FREQ=DAILY;UNTIL=19971224T000000Z",
        on("1997-09: 2-30; 1997-10: 1-31; 1997-11: 1-30; 1997-12: 1-23"),
    ),
    "every other day, forever": (
        "19970902T090000",
        "FREQ=DAILY;INTERVAL=2",
        on(
            "1997-09: 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30; "
            "1997-10: 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30; "
            "1997-11: 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29; 1997-12: 1, 3"
        ),
    ),
    "every 10 days, 5 occurrences": (
        "19970902T090000",
        "FREQ=DAILY;INTERVAL=10;COUNT=5",
        on("1997-09: 2, 12, 22; 1997-10: 2, 12"),
    ),
    "every day in January, for 3 years, by the year": (
        "19980101T090000",
        "FREQ=YEARLY;UNTIL=20000131T140000Z;BYMONTH=1;BYDAY=SU,MO,TU,WE,TH,FR,SA",
        JANUARIES,
    ),
    "every day in January, for 3 years, by the day": (
        "19980101T090000",
        "FREQ=DAILY;UNTIL=20000131T140000Z;BYMONTH=1",
        JANUARIES,
    ),
    "weekly for 10 occurrences": (
        "19970902T090000",
        "FREQ=WEEKLY;COUNT=10",
        on("1997-09: 2, 9, 16, 23, 30; 1997-10: 7, 14, 21, 28; 1997-11: 4"),
    ),
    "weekly until December 24, 1997": (
        "19970902T090000",
        "FREQ=WEEKLY;UNTIL=19971224T000000Z",
        on("1997-09: 2, 9, 16, 23, 30; 1997-10: 7, 14, 21, 28; 1997-11: 4, 11, 18, 25; 1997-12: 2, 9, 16, 23"),
    ),
    "every other week, forever": (
        "19970902T090000",
        "FREQ=WEEKLY;INTERVAL=2;WKST=SU",
        on("1997-09: 2, 16, 30; 1997-10: 14, 28; 1997-11: 11, 25; 1997-12: 9, 23; 1998-01: 6, 20; 1998-02: 3, 17"),
    ),
    "weekly on Tuesday and Thursday for 5 weeks, until": (
        "19970902T090000",
        "FREQ=WEEKLY;UNTIL=19971007T000000Z;WKST=SU;BYDAY=TU,TH",
        TUESDAYS_AND_THURSDAYS,
    ),
    "weekly on Tuesday and Thursday for 5 weeks, counted": (
        "19970902T090000",
        "FREQ=WEEKLY;COUNT=10;WKST=SU;BYDAY=TU,TH",
        TUESDAYS_AND_THURSDAYS,
    ),
    "every other week on Monday, Wednesday and Friday until December 24, 1997": (
        "19970901T090000",
        "FREQ=WEEKLY;INTERVAL=2;UNTIL=19971224T000000Z;WKST=SU;BYDAY=MO,WE,FR",
        MONDAY_WEDNESDAY_FRIDAY,
    ),
    "every other week on Tuesday and Thursday, for 8 occurrences": (
        "19970902T090000",
        "FREQ=WEEKLY;INTERVAL=2;COUNT=8;WKST=SU;BYDAY=TU,TH",
        on("1997-09: 2, 4, 16, 18, 30; 1997-10: 2, 14, 16"),
    ),
    "monthly on the first Friday for 10 occurrences": (
        "19970905T090000",
        "FREQ=MONTHLY;COUNT=10;BYDAY=1FR",
        on(
            "1997-09: 5; 1997-10: 3; 1997-11: 7; 1997-12: 5; 1998-01: 2; 1998-02: 6; 1998-03: 6; 1998-04: 3; "
            "1998-05: 1; 1998-06: 5"
        ),
    ),
    "monthly on the first Friday until December 24, 1997": (
        "19970905T090000",
        "FREQ=MONTHLY;UNTIL=19971224T000000Z;BYDAY=1FR",
        on("1997-09: 5; 1997-10: 3; 1997-11: 7; 1997-12: 5"),
    ),
    "every other month on the first and last Sunday for 10 occurrences": (
        "19970907T090000",
        "FREQ=MONTHLY;INTERVAL=2;COUNT=10;BYDAY=1SU,-1SU",
        on("1997-09: 7, 28; 1997-11: 2, 30; 1998-01: 4, 25; 1998-03: 1, 29; 1998-05: 3, 31"),
    ),
    "monthly on the second-to-last Monday for 6 months": (
        "19970922T090000",
        "FREQ=MONTHLY;COUNT=6;BYDAY=-2MO",
        on("1997-09: 22; 1997-10: 20; 1997-11: 17; 1997-12: 22; 1998-01: 19; 1998-02: 16"),
    ),
    "monthly on the third-to-the-last day, forever": (
        "19970928T090000",
        "FREQ=MONTHLY;BYMONTHDAY=-3",
        on("1997-09: 28; 1997-10: 29; 1997-11: 28; 1997-12: 29; 1998-01: 29; 1998-02: 26"),
    ),
    "monthly on the 2nd and 15th for 10 occurrences": (
        "19970902T090000",
        "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=2,15",
        on("1997-09: 2, 15; 1997-10: 2, 15; 1997-11: 2, 15; 1997-12: 2, 15; 1998-01: 2, 15"),
    ),
    "monthly on the first and last day for 10 occurrences": (
        "19970930T090000",
        "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=1,-1",
        on("1997-09: 30; 1997-10: 1, 31; 1997-11: 1, 30; 1997-12: 1, 31; 1998-01: 1, 31; 1998-02: 1"),
    ),
    "every 18 months on the 10th thru 15th for 10 occurrences": (
        "19970910T090000",
        "FREQ=MONTHLY;INTERVAL=18;COUNT=10;BYMONTHDAY=10,11,12,13,14,15",
        on("1997-09: 10-15; 1999-03: 10-13"),
    ),
    "every Tuesday, every other month": (
        "19970902T090000",
        "FREQ=MONTHLY;INTERVAL=2;BYDAY=TU",
        on("1997-09: 2, 9, 16, 23, 30; 1997-11: 4, 11, 18, 25; 1998-01: 6, 13, 20, 27; 1998-03: 3, 10, 17, 24, 31"),
    ),
    "yearly in June and July for 10 occurrences": (
        "19970610T090000",
        "FREQ=YEARLY;COUNT=10;BYMONTH=6,7",
        on(
            "1997-06: 10; 1997-07: 10; 1998-06: 10; 1998-07: 10; 1999-06: 10; 1999-07: 10; 2000-06: 10; 2000-07: 10; "
            "2001-06: 10; 2001-07: 10"
        ),
    ),
    "every other year in January, February and March for 10 occurrences": (
        "19970310T090000",
        "FREQ=YEARLY;INTERVAL=2;COUNT=10;BYMONTH=1,2,3",
        on(
            "1997-03: 10; 1999-01: 10; 1999-02: 10; 1999-03: 10; 2001-01: 10; 2001-02: 10; 2001-03: 10; 2003-01: 10; "
            "2003-02: 10; 2003-03: 10"
        ),
    ),
    "every third year on the 1st, 100th and 200th day for 10 occurrences": (
        "19970101T090000",
        "FREQ=YEARLY;INTERVAL=3;COUNT=10;BYYEARDAY=1,100,200",
        on(
            "1997-01: 1; 1997-04: 10; 1997-07: 19; 2000-01: 1; 2000-04: 9; 2000-07: 18; 2003-01: 1; 2003-04: 10; "
            "2003-07: 19; 2006-01: 1"
        ),
    ),
    "every 20th Monday of the year, forever": (
        "19970519T090000",
        "FREQ=YEARLY;BYDAY=20MO",
        on("1997-05: 19; 1998-05: 18; 1999-05: 17"),
    ),
    "Monday of week number 20, forever": (
        "19970512T090000",
        "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO",
        on("1997-05: 12; 1998-05: 11; 1999-05: 17"),
    ),
    "every Thursday in March, forever": (
        "19970313T090000",
        "FREQ=YEARLY;BYMONTH=3;BYDAY=TH",
        on("1997-03: 13, 20, 27; 1998-03: 5, 12, 19, 26; 1999-03: 4, 11, 18, 25"),
    ),
    "every Thursday, but only during June, July and August, forever": (
        "19970605T090000",
        "FREQ=YEARLY;BYDAY=TH;BYMONTH=6,7,8",
        on(
            "1997-06: 5, 12, 19, 26; 1997-07: 3, 10, 17, 24, 31; 1997-08: 7, 14, 21, 28; "
            "1998-06: 4, 11, 18, 25; 1998-07: 2, 9, 16, 23, 30; 1998-08: 6, 13, 20, 27; "
            "1999-06: 3, 10, 17, 24; 1999-07: 1, 8, 15, 22, 29; 1999-08: 5, 12, 19, 26"
        ),
    ),
    "every Friday the 13th, forever, without the first day": (
        "19970902T090000\nEXDATE;TZID=America/New_York:19970902T090000",
        "FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13",
        on("1998-02: 13; 1998-03: 13; 1998-11: 13; 1999-08: 13; 2000-10: 13"),
    ),
    "the first Saturday that follows the first Sunday of the month, forever": (
        "19970913T090000",
        "FREQ=MONTHLY;BYDAY=SA;BYMONTHDAY=7,8,9,10,11,12,13",
        on(
            "1997-09: 13; 1997-10: 11; 1997-11: 8; 1997-12: 13; 1998-01: 10; 1998-02: 7; 1998-03: 7; 1998-04: 11; "
            "1998-05: 9; 1998-06: 13"
        ),
    ),
    "every 4 years, the first Tuesday after a Monday in November": (
        "19961105T090000",
        "FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8",
        on("1996-11: 5; 2000-11: 7; 2004-11: 2"),
    ),
    "the third Tuesday, Wednesday or Thursday for 3 months": (
        "19970904T090000",
        "FREQ=MONTHLY;COUNT=3;BYDAY=TU,WE,TH;BYSETPOS=3",
        on("1997-09: 4; 1997-10: 7; 1997-11: 6"),
    ),
    "the second-to-last weekday of the month": (
        "19970929T090000",
        "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-2",
        on("1997-09: 29; 1997-10: 30; 1997-11: 27; 1997-12: 30; 1998-01: 29; 1998-02: 26; 1998-03: 30"),
    ),
    # The RFC prints UNTIL=19970902T170000Z, 13:00 in New York, beside a list that ends at 15:00: here is the rule as
    # printed with the fires that it means, then the list with the rule that means it.
    "every 3 hours from 9:00 AM, until 17:00 UTC": (
        "19970902T090000",
        "FREQ=HOURLY;INTERVAL=3;UNTIL=19970902T170000Z",
        on("1997-09: 2", "09:00", "12:00"),
    ),
    "every 3 hours from 9:00 AM to 5:00 PM on a specific day": (
        "19970902T090000",
        "FREQ=HOURLY;INTERVAL=3;UNTIL=19970902T210000Z",
        on("1997-09: 2", "09:00", "12:00", "15:00"),
    ),
    "every 15 minutes for 6 occurrences": (
        "19970902T090000",
        "FREQ=MINUTELY;INTERVAL=15;COUNT=6",
        on("1997-09: 2", "09:00", "09:15", "09:30", "09:45", "10:00", "10:15"),
    ),
    "every hour and a half for 4 occurrences": (
        "19970902T090000",
        "FREQ=MINUTELY;INTERVAL=90;COUNT=4",
        on("1997-09: 2", "09:00", "10:30", "12:00", "13:30"),
    ),
    "every 20 minutes from 9:00 AM to 4:40 PM every day, by the day": (
        "19970902T090000",
        "FREQ=DAILY;BYHOUR=9,10,11,12,13,14,15,16;BYMINUTE=0,20,40",
        EVERY_20_MINUTES,
    ),
    "every 20 minutes from 9:00 AM to 4:40 PM every day, by the minute": (
        "19970902T090000",
        "FREQ=MINUTELY;INTERVAL=20;BYHOUR=9,10,11,12,13,14,15,16",
        EVERY_20_MINUTES,
    ),
    "weeks that start on Monday": (
        "19970805T090000",
        "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO",
        on("1997-08: 5, 10, 19, 24"),
    ),
    "weeks that start on Sunday": (
        "19970805T090000",
        "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU",
        on("1997-08: 5, 17, 19, 31"),
    ),
    "an invalid date (February 30) is ignored": (
        "20070115T090000",
        "FREQ=MONTHLY;BYMONTHDAY=15,30;COUNT=5",
        on("2007-01: 15, 30; 2007-02: 15; 2007-03: 15, 30"),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_standard_fires_as_it_says(name: str) -> None:
    start, rule, expected = EXAMPLES[name]
    schedule = Schedule(f"DTSTART;TZID={ZONE}:{start}\nRRULE:{rule}")
    first = datetime.fromisoformat(start[:15]).replace(tzinfo=WALL)
    is_finite = "COUNT" in rule or "UNTIL" in rule
    fires = schedule.upcoming(first - timedelta(seconds=1), len(expected) + is_finite)
    assert [at.astimezone(WALL).replace(tzinfo=None) for at in fires] == expected


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_counts_as_many_fires_as_it_has(name: str) -> None:
    start, rule, expected = EXAMPLES[name]
    schedule = Schedule(f"DTSTART;TZID={ZONE}:{start}\nRRULE:{rule}")
    first, last = (wall.replace(tzinfo=WALL) for wall in (expected[0], expected[-1]))
    assert schedule.count_between(first - timedelta(days=365), last) == len(expected) - 1
    assert schedule.count_between(first, last + timedelta(seconds=1)) == len(expected)
