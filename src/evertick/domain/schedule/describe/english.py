"""English for parts of a schedule: lists, ordinals, dates, lengths, times of the day. No locale has a say in it."""

import itertools
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import NamedTuple

from evertick.domain.schedule.cron import times_of_day
from evertick.domain.schedule.instants import DAY_S, SECOND_US, from_wall
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
_MAX_LISTED = 8
_NUMBERS = [str(number) for number in range(60)]
_QUARTER_S = 900
"""All zones of today are whole quarters of an hour from UTC, so finer steps are the same in each."""


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


def wall_time(wall: int) -> str:
    """The time of day of a wall time."""
    return clock(wall % DAY_S)


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
    words, rest = [], us
    for name, size in _UNITS[:-1]:
        amount, rest = divmod(rest, size * SECOND_US)
        if amount:
            words.append(counted(amount, name))
    if rest or not words:
        seconds = f"{rest / SECOND_US:g}"
        words.append(f"{seconds} second{'s' * (seconds != '1')}")
    return " ".join(words)


def every(us: int) -> str:
    """How often: `every hour`, `every 90 minutes`."""
    words = length(us)
    return f"every {words.removeprefix('1 ') if words.count(' ') == 1 else words}"


def counted(amount: int, name: str) -> str:
    return f"{amount} {name}{'s' * (amount != 1)}"


def sentence(words: str) -> str:
    """With a capital at its head; names inside stay as they are."""
    return words[:1].upper() + words[1:]


class TimesOfDay(NamedTuple):
    """A phrase, and how it combines with days and zone.

    `all_day`: it runs around the clock, so "every day" need not be said. `step_s`: the distance, if it is even.
    """

    text: str
    all_day: bool = False
    step_s: int | None = None

    def depends_on_zone(self, *, utc: bool) -> bool:
        """Whether the phrase leaves open what it means until a zone is named."""
        if not self.all_day or ":" in self.text:
            return True
        return not utc and (self.step_s is None or _QUARTER_S % self.step_s != 0)


def times_phrase(second: str, minute: str, hour: str) -> TimesOfDay:
    """The times that three canonical cron fields name: `at 02:30`, `every 15 minutes from 09:00 to 17:45`."""
    times = times_of_day(second, minute, hour)
    evenly = _evenly(times)
    if evenly and (evenly.all_day or len(times) > _MAX_LISTED):
        return evenly
    seconds, minutes, hours = _numbers(second, 60), _numbers(minute, 60), _numbers(hour, 24)
    if len(times) <= _MAX_LISTED or len(seconds) == len(minutes) == 1:
        return TimesOfDay(f"at {listed(map(clock, times))}")
    return TimesOfDay(_within_hours(seconds, minutes, hours), all_day=len(hours) == 24)


def _evenly(times: Sequence[int]) -> TimesOfDay | None:
    if not isinstance(times, range):
        return None
    step, first, last = times.step, times[0], times[-1]
    often = every(step * SECOND_US)
    if first + DAY_S - last != step:
        return TimesOfDay(f"{often} from {clock(first)} to {clock(last)}", step_s=step)
    if len(times) < 3:
        return None  # two times, twelve hours apart, are better named
    if step == 3600 and first and first % 60 == 0:
        return TimesOfDay(f"at {first // 60} minutes past every hour", all_day=True, step_s=step)
    if first or step > 3600:
        often = f"{often} from {clock(first)}"
    return TimesOfDay(often, all_day=True, step_s=step)


def _numbers(field: str, size: int) -> list[int]:
    return list(range(size)) if field == "*" else [int(number) for number in field.split(",")]


def _within_hours(seconds: Sequence[int], minutes: Sequence[int], hours: Sequence[int]) -> str:
    inside = _named(minutes, "minute")
    if list(seconds) != [0]:
        which = "every minute" if len(minutes) == 60 else numbered(minutes, "minute")
        inside = f"{_named(seconds, 'second')} of {which}"
    # "Every 5 minutes" stands alone; "at minute 3" and "every 7 minutes from minute 0" say nothing without the hour.
    alone = (inside.startswith("every") and "from" not in inside) or inside.endswith("every minute")
    if len(hours) == 24:
        return inside if alone else f"{inside} of every hour"
    return f"{inside}{'' if alone else ' of each hour'} {hours_phrase(hours)}"


def hours_phrase(hours: Sequence[int]) -> str:
    """`from 09:00 to 11:59 and from 14:00 to 16:59`."""
    return listed(f"from {clock(first * 3600)} to {clock(last * 3600 + 3540)}" for first, last in runs(hours))


def _named(numbers: Sequence[int], unit: str) -> str:
    """Some minutes of an hour or seconds of a minute: `every 7 minutes from minute 0`, `at minutes 0, 5 and 20`."""
    if len(numbers) == 60:
        return f"every {unit}"
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    if len(numbers) > 2 and list(range(numbers[0], 60, step)) == list(numbers):
        start = f" from {unit} {numbers[0]}" if numbers[0] or 60 % step else ""
        return f"every {step} {unit}s{start}" if step > 1 else f"every {unit}{start}"
    return f"at {numbered(numbers, unit)}"


def numbered(numbers: Sequence[int], unit: str) -> str:
    """`minute 5`, `minutes 0, 10 to 20 and 30`."""
    return f"{unit}{'s' * (len(numbers) > 1)} {listed(spans(numbers, _NUMBERS))}"
