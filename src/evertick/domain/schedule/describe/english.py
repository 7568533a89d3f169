"""English for parts of a schedule: lists, ordinals, clock times, dates and lengths. No locale has a say in it."""

import itertools
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta

from evertick.domain.schedule.instants import SECOND_US, from_wall
from evertick.domain.schedule.literals import to_words
from evertick.domain.schedule.zone import Zone

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_POSITIONS = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth"}
_UNITS = (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
_MAX_OF_A_UNIT = 99
"""`90 minutes` reads better than `1 hour 30 minutes`, but `1441 minutes` does not."""


def listed(words: Iterable[str], last: str = "and") -> str:
    """`a, b and c`."""
    *head, tail = words
    return f"{', '.join(head)} {last} {tail}" if head else tail


def ordinal(number: int) -> str:
    """`1st`, `22nd`, `13th`."""
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def position(number: int) -> str:
    """A place in a row as a word, from its end when negative: `first`, `last`, `second-to-last`."""
    if number == -1:
        return "last"
    word = _POSITIONS.get(abs(number), ordinal(abs(number)))
    return word if number > 0 else f"{word}-to-last"


def runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as stretches (first, last) without holes."""
    groups = itertools.groupby(enumerate(numbers), key=lambda item: item[1] - item[0])
    stretches = ([number for _, number in group] for _, group in groups)
    return [(stretch[0], stretch[-1]) for stretch in stretches]


def spans(numbers: Sequence[int], names: Sequence[str]) -> list[str]:
    """Names of ascending numbers, three or more in a row as `Monday to Friday`."""
    words: list[str] = []
    for first, last in runs(numbers):
        if last - first >= 2:
            words.append(f"{names[first]} to {names[last]}")
        else:
            words += names[first : last + 1]
    return words


def months(numbers: Iterable[int]) -> str:
    return listed(spans([number - 1 for number in sorted(numbers)], MONTHS))


def clock(seconds: int) -> str:
    """A second of the day as the clock shows it: `02:30`, or `02:30:15` where the seconds matter."""
    hour, minute, second = seconds // 3600, seconds // 60 % 60, seconds % 60
    return f"{hour:02}:{minute:02}:{second:02}" if second else f"{hour:02}:{minute:02}"


def day(at: date) -> str:
    """`Tuesday 9 June 2026`."""
    return f"{WEEKDAYS[at.weekday()]} {at.day} {MONTHS[at.month - 1]} {at.year}"


def moment(at: datetime) -> str:
    """A reading of the clock with its day: `Tuesday 9 June 2026 at 13:00`."""
    fraction = f"{at.microsecond / SECOND_US:g}"[1:] if at.microsecond else ""
    seconds = at.hour * 3600 + at.minute * 60 + at.second
    shown = f"{clock(seconds)}{':00' * (not at.second)}{fraction}" if fraction else clock(seconds)
    return f"{day(at)} at {shown}"


def local(at: datetime, zone: Zone) -> datetime:
    """What the zone's clock shows; the last instant of all, which people write for "never", stays itself."""
    try:
        return at.astimezone(zone.info)
    except OverflowError:
        return at.replace(tzinfo=zone.info)


def wall_moment(wall: int) -> str:
    return moment(from_wall(wall))


def in_zone(words: str, zone: Zone) -> str:
    """A sentence with clock times, and whose clock it is: `… at 13:00 UTC`, `… every day, Asia/Tokyo time`."""
    if zone.is_utc:
        return f"{words} UTC" if words[-1].isdecimal() else f"{words}, UTC"
    return f"{words}, {zone.name} time"


def length(span: timedelta | int) -> str:
    """A length of time, in one unit if that stays readable: `90 minutes`, `36 hours`, `1 day 1 second`.

    A number is microseconds.
    """
    us = span if isinstance(span, int) else span // timedelta(microseconds=1)
    for name, size in _UNITS:
        amount, rest = divmod(us, size * SECOND_US)
        if not rest and 0 < amount <= _MAX_OF_A_UNIT:
            return counted(amount, name)
    return to_words(us)


def every(us: int) -> str:
    """How often: `every hour`, `every 90 minutes`."""
    words = length(us)
    return f"every {words.removeprefix('1 ') if words.count(' ') == 1 else words}"


def counted(amount: int, name: str) -> str:
    return f"{amount} {name}{'s' * (amount != 1)}"


def sentence(words: str) -> str:
    """With a capital at its head; names inside stay as they are."""
    return words[:1].upper() + words[1:]
