"""The times of a day in English, for cron and RRULE alike."""

from collections.abc import Sequence
from typing import NamedTuple

from evertick.domain.schedule.cron import times_of_day
from evertick.domain.schedule.describe.english import clock, every, listed, runs, spans
from evertick.domain.schedule.instants import DAY_S, SECOND_US

_MAX_LISTED = 8
_NUMBERS = [str(number) for number in range(60)]
_QUARTER_S = 900
"""All zones of today are whole quarters of an hour from UTC, so finer steps are the same in each."""


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
