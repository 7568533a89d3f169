"""A cron rule in English."""

from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.describe.english import MONTHS, WEEKDAYS, listed, months, ordinal, position, spans
from evertick.domain.schedule.describe.times import TimesOfDay, times_phrase

_THE_DAYS = [f"the {ordinal(number)}" for number in range(32)]
_LAST_DAYS = {"L": "the last day", "LW": "the last working day"}


def cron_times(spec: Cron) -> TimesOfDay:
    second, minute, hour = spec.fields[:3]
    return times_phrase(second, minute, hour)


def cron_phrase(spec: Cron) -> str:
    """What the rule says, without its zone: `at 02:30 on Monday to Friday`."""
    times = cron_times(spec)
    if not names_days(spec):
        return times.text if times.all_day else f"{times.text} every day"
    return f"{times.text} {days_phrase(spec)}"


def names_days(spec: Cron) -> bool:
    return spec.fields[3:] != ("*", "*", "*")


def days_phrase(spec: Cron) -> str:
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
