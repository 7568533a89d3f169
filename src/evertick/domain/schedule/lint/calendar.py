"""Traps in the calendar of a schedule: days that mean something else than they seem to, and crowded minutes."""

import re
from collections.abc import Iterator, Sequence

from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.describe.describe import days_of_month, days_of_week
from evertick.domain.schedule.describe.english import day, months, ordinal
from evertick.domain.schedule.instants import from_wall
from evertick.domain.schedule.lint.findings import Finding, Severity
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.spec import Spec
from evertick.domain.schedule.text import split_zone

_UNTIL_DATE = re.compile(r"[:;]UNTIL=(\d{8})(?![0-9T])", re.IGNORECASE | re.ASCII)
_LEAP_DAY = 29
_LONGEST = {2: _LEAP_DAY, 4: 30, 6: 30, 9: 30, 11: 30}
"""The last day of a month that has fewer than 31, February's in a leap year."""


def calendar_findings(text: str, spec: Spec, *, spread: bool) -> Iterator[Finding]:
    """`spread`: the job has jitter, so it does not crowd."""
    match spec:
        case Cron():
            dom, month, dow = spec.fields[3:]
            yield from _dom_and_dow(spec)
            if dow == "*":
                yield from _missing_days(_plain(dom), _plain(month), "`L`")
            crowded = spec.fields[:2] == ("0", "0") and not uses_hash(text)
        case RRule():
            yield from _until_date(text, spec)
            if not spec.byday:
                yield from _missing_days(spec.bymonthday, spec.bymonth, "BYMONTHDAY=-1")
            crowded = spec.byminute == spec.bysecond == (0,)
        case _:
            return
    if crowded and not spread:
        yield _herd(spec)


def uses_hash(text: str) -> bool:
    """Whether a cron text leaves something to the job's id by `H`."""
    fields = split_zone(text, "UTC")[0].upper().split()
    return any(term.startswith("H") for field in fields for term in field.split(","))


def _dom_and_dow(spec: Cron) -> Iterator[Finding]:
    dom, _, dow = spec.fields[3:]
    if "*" in {dom, dow}:
        return
    if spec.both_days:
        message = (
            "a day field that begins with a star must match together with the other: "
            f"only {days_of_week(dow, 'or')} when it is {days_of_month(dom, '*', 'or')}"
        )
    else:
        message = (
            f"either day field is enough: {days_of_month(dom, '*')}, and also {days_of_week(dow, each='every ')}, "
            "not only days that are both"
        )
    yield Finding("dom_and_dow", Severity.WARNING, message)


def _plain(field: str) -> tuple[int, ...]:
    """The numbers of a canonical field; none if it is unrestricted or has a word such as `L` in it."""
    words = field.split(",")
    return tuple(map(int, words)) if all(word.isdecimal() for word in words) else ()


def _missing_days(days: Sequence[int], in_months: Sequence[int], instead: str) -> Iterator[Finding]:
    """Days that some months do not have, where no other day of the rule stands in for them."""
    if not days or min(days) < _LEAP_DAY:
        return
    which = in_months or range(1, 13)
    without = [month for month in which if min(days) > _LONGEST.get(month, 31)]
    if without:
        lack, left = ("has", "is") if len(without) == 1 else ("have", "are")
        message = (
            f"{months(without)} {lack} no {ordinal(min(days))} and {left} left out: {instead} is every month's last day"
        )
        yield Finding("short_months", Severity.INFO, message)
    if 2 in which and _LEAP_DAY in days:
        yield Finding("leap_day", Severity.INFO, "29 February comes only in leap years")


def _until_date(text: str, spec: RRule) -> Iterator[Finding]:
    match = _UNTIL_DATE.search(text)
    midnight = spec.byhour == spec.byminute == spec.bysecond == (0,)
    if not match or midnight or spec.until_wall is None:
        return
    message = (
        f"UNTIL={match[1]} is the midnight that begins {day(from_wall(spec.until_wall))}: the ticks of that day are "
        f"left out; UNTIL={match[1]}T235959 includes them"
    )
    yield Finding("until_date", Severity.WARNING, message)


def _herd(spec: Cron | RRule) -> Finding:
    remedy = (
        "write `H` for the minute or give it jitter"
        if isinstance(spec, Cron)
        else "choose another minute or give it jitter"
    )
    return Finding("top_of_hour_herd", Severity.INFO, f"it fires on the hour, when most jobs do: {remedy}")
