"""A schedule in one plain English sentence, for people who do not read cron."""

from datetime import datetime
from typing import assert_never

from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.describe.english import (
    MONTHS,
    WEEKDAYS,
    TimesOfDay,
    counted,
    every,
    in_zone,
    length,
    listed,
    local,
    moment,
    months,
    ordinal,
    position,
    sentence,
    spans,
    times_phrase,
    wall_moment,
)
from evertick.domain.schedule.describe.rrule import rrule_phrase
from evertick.domain.schedule.instants import SECOND_US, from_us, from_wall
from evertick.domain.schedule.interval import Every, EveryMonths
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.spec import Manual, Once, Soon, Spec
from evertick.domain.schedule.zone import Zone

_THE_DAYS = [f"the {ordinal(number)}" for number in range(32)]
_LAST_DAYS = {"L": "the last day", "LW": "the last working day"}


def describe(spec: Spec, zone: Zone, start_at: datetime | None = None, end_at: datetime | None = None) -> str:
    """Say when it fires: `At 02:30 every day, America/New_York time`."""
    window = _window(zone, start_at, end_at)
    words = f"{_phrase(spec, zone)}{window}"
    return sentence(in_zone(words, zone) if window or _names_clock_time(spec, zone) else words)


def _phrase(spec: Spec, zone: Zone) -> str:  # noqa: PLR0911 - one return for each form
    match spec:
        case Cron():
            return _cron_phrase(spec)
        case RRule():
            return rrule_phrase(spec, zone)
        case Every():
            return f"{every(spec.step_us)}{_from_anchor(spec, zone)}"
        case EveryMonths():
            return _every_months(spec)
        case Once(at_us):
            return f"once, on {moment(local(from_us(at_us), zone))}"
        case Soon(delay_us):
            return f"once, {length(delay_us)} after it is created" if delay_us else "once, as soon as it is created"
        case Manual():
            return "only when triggered"
        case _:
            assert_never(spec)


def _names_clock_time(spec: Spec, zone: Zone) -> bool:
    """Whether the sentence names a reading of the clock, which means nothing without a zone."""
    match spec:
        case Cron():
            return _names_days(spec) or _cron_times(spec).depends_on_zone(utc=zone.is_utc)
        case Every():
            return spec.from_anchor
        case RRule() | EveryMonths() | Once():
            return True
        case Soon() | Manual():
            return False
        case _:
            assert_never(spec)


def _from_anchor(spec: Every, zone: Zone) -> str:
    if not spec.from_anchor:
        return ""
    times = "" if spec.total is None else f", {counted(spec.total, 'time')}"
    return f"{times}, starting {moment(local(from_us(spec.anchor_us), zone))}"


def _every_months(spec: EveryMonths) -> str:
    years, rest = divmod(spec.months, 12)
    amount, unit = (spec.months, "month") if rest else (years, "year")
    often = f"every {unit}" if amount == 1 else f"every {counted(amount, unit)}"
    more = f" and {length(spec.fixed_s * SECOND_US)}" if spec.fixed_s else ""
    times = "" if spec.total is None else f", {counted(spec.total, 'time')}"
    short = ", in shorter months on the last day" if from_wall(spec.start_wall).day > 28 else ""
    return f"{often}{more}{times}, starting {wall_moment(spec.start_wall)}{short}"


def _window(zone: Zone, start_at: datetime | None, end_at: datetime | None) -> str:
    start = f", from {moment(local(start_at, zone))}" if start_at else ""
    end = f", until {moment(local(end_at, zone))}" if end_at else ""
    return start + end


def _cron_times(spec: Cron) -> TimesOfDay:
    second, minute, hour = spec.fields[:3]
    return times_phrase(second, minute, hour)


def _cron_phrase(spec: Cron) -> str:
    """What the rule says, without its zone: `at 02:30 on Monday to Friday`."""
    times = _cron_times(spec)
    if not _names_days(spec):
        return times.text if times.all_day else f"{times.text} every day"
    return f"{times.text} {_days_phrase(spec)}"


def _names_days(spec: Cron) -> bool:
    return spec.fields[3:] != ("*", "*", "*")


def _days_phrase(spec: Cron) -> str:
    """The days of a rule that names some: `on Monday to Friday`, `on the last day of January and July`."""
    dom, month, dow = spec.fields[3:]
    if (dom, dow) == ("*", "*"):
        return f"every day in {_months(month)}"
    if dow == "*":
        return f"on {days_of_month(dom, month)}"
    inside = "" if month == "*" else f" in {_months(month)}"
    if dom == "*":
        return f"on {days_of_week(dow)}{inside}"
    if spec.both_days:
        return f"on {days_of_week(dow, 'or')} when it is {days_of_month(dom, month, 'or')}"
    comma = "," * bool(inside)
    return f"on {days_of_month(dom, '*')} and also on {days_of_week(dow, each='every ')}{comma}{inside}"


def days_of_month(dom: str, month: str, last: str = "and") -> str:
    """`the 1st and the 15th of the month`, `29 February`, `the last day of January`."""
    words = dom.split(",")
    numbers = [int(word) for word in words if word.isdecimal()]
    if len(words) == len(numbers) == 1 and month.isdecimal():
        return f"{dom} {MONTHS[int(month) - 1]}"
    days = spans(numbers, _THE_DAYS) + [_LAST_DAYS[word] for word in words if word in _LAST_DAYS]
    return f"{listed(days, last)} of {'the month' if month == '*' else _months(month)}"


def days_of_week(dow: str, last: str = "and", each: str = "") -> str:
    """`Monday to Friday`, `the first Monday and the last Friday of the month`; `each` goes before plain weekdays."""
    words = dow.split(",")
    plain = sorted((int(word) - 1) % 7 for word in words if word.isdecimal())
    counted = [_counted_weekday(word) for word in words if not word.isdecimal()]
    named = spans(plain, WEEKDAYS)
    if named:
        named[0] = each + named[0]
    if not counted:
        return listed(named, last)
    return listed([*named, *counted], last) + " of the month"


def _counted_weekday(word: str) -> str:
    """`1#2` and `5L`: the second Monday, the last Friday."""
    weekday, _, nth = word.partition("#")
    return f"the {position(int(nth) if nth else -1)} {WEEKDAYS[(int(weekday[0]) - 1) % 7]}"


def _months(month: str) -> str:
    return months(int(number) for number in month.split(","))
