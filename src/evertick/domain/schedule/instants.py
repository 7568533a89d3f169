"""Integers for time. Inside the schedule core an instant is microseconds or seconds since 1970 UTC, a wall
time is the same count on the clock on the wall, and a day is a number too: exact, hashable, fast to compare.
"""

from array import array
from calendar import isleap
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate

SECOND_US = 1_000_000
DAY_S = 86_400

FIRST_YEAR, LAST_YEAR = 3, 9990
"""Years the calendar search stays within, short of what datetime can hold so that no zone overflows it."""

EPOCH_AT = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_WALL = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall time has no zone by nature
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()


def to_us(at: datetime) -> int:
    """An aware datetime as microseconds since the epoch."""
    gone = at - EPOCH_AT
    return (gone.days * DAY_S + gone.seconds) * SECOND_US + gone.microseconds


def from_us(us: int) -> datetime:
    return EPOCH_AT + timedelta(microseconds=us)


def from_seconds(seconds: int) -> datetime:
    return EPOCH_AT + timedelta(seconds=seconds)


def utc_text(at: datetime) -> str:
    """RFC 3339 in UTC, with as many digits as it takes."""
    utc = at if at.tzinfo is UTC else at.astimezone(UTC)
    return utc.isoformat()[:-6] + "Z"  # instead of +00:00


def duration_us(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def to_wall(wall: datetime) -> int:
    """A naive datetime as wall seconds."""
    gone = wall - _EPOCH_WALL
    return gone.days * DAY_S + gone.seconds


def from_wall(wall: int) -> datetime:
    return _EPOCH_WALL + timedelta(seconds=wall)


def to_day(day: date) -> int:
    return day.toordinal() - _EPOCH_ORDINAL


def from_day(day: int) -> date:
    return date.fromordinal(day + _EPOCH_ORDINAL)


_YEAR_DAYS = (365 + isleap(year) for year in range(1, LAST_YEAR + 8))
_FIRST_DAYS = array("i", [0, *accumulate(_YEAR_DAYS, initial=to_day(date(1, 1, 1)))])


def first_day(year: int) -> int:
    return _FIRST_DAYS[year]


SETTLED_YEAR = 2101
"""From here on every zone follows a rule that repeats with the calendar: the zone files list changes up to 2086."""


def _layout(year: int) -> tuple[int, bool, bool]:
    """What the calendar of a year depends on; the year before decides to which week its first days belong."""
    return date(year, 1, 1).weekday(), isleap(year), isleap(year - 1)


def _like_years() -> tuple[int, ...]:
    first: dict[tuple[int, bool, bool], int] = {}
    for year in range(SETTLED_YEAR, SETTLED_YEAR + 400):
        first.setdefault(_layout(year), year)
    return tuple(first[_layout(2000 + number)] for number in range(400))


LIKE_YEARS = _like_years()
"""For `year % 400`, the year that stands for all with the same calendar. There are 21 such."""


FIRST_S = first_day(FIRST_YEAR) * DAY_S
END_S = first_day(LAST_YEAR + 1) * DAY_S
"""Instants in seconds between which the search moves: [FIRST_S, END_S)."""
