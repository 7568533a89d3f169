"""What in a schedule is probably not meant, found before it fires: days and times that mean something else than they
seem to, crowded minutes, and changes of the clocks.

A finding never stops a job; what cannot work at all is refused by the schedule itself. No clock is read: without an
`after`, the years that follow the tz database's release are looked at.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from evertick import tzdb
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.budget import bounded
from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.describe.describe import days_of_month, days_of_week
from evertick.domain.schedule.describe.english import day, in_zone, length, local, moment, months, ordinal, wall_time
from evertick.domain.schedule.instants import DAY_S, SECOND_US, first_day, from_us, from_wall, to_us
from evertick.domain.schedule.patterns.wall import WallPattern
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.spec import Manual, Spec, fixed_times
from evertick.domain.schedule.text import split_zone
from evertick.domain.schedule.ticks import END_US, FIRST_US, Ticks
from evertick.domain.schedule.zone import Stretch, Zone
from evertick.domain.schedule.zoned import CORRECTION_S

_LOOK_AHEAD_US = 5 * 366 * DAY_S * SECOND_US
_RELEASE_US = first_day(int(tzdb.VERSION[:4])) * DAY_S * SECOND_US
_UNTIL_DATE = re.compile(r"[:;]UNTIL=(\d{8})(?![0-9T])", re.IGNORECASE | re.ASCII)
_LEAP_DAY = 29
_LONGEST = {2: _LEAP_DAY, 4: 30, 6: 30, 9: 30, 11: 30}
"""The last day of a month that has fewer than 31, February's in a leap year."""


class Severity(StrEnum):
    """How much a finding matters, the worst first."""

    ERROR = "error"  # it will not run at all
    WARNING = "warning"  # ticks get lost, doubled or crowded, or are not the ones that were meant
    INFO = "info"  # works as documented, may surprise


@dataclass(frozen=True, slots=True)
class Finding:
    """One trap: a stable `code` for programs, a `message` for people."""

    code: str
    severity: Severity
    message: str


@dataclass(frozen=True, slots=True)
class LintedSchedule:
    """The schedule that is checked, in its parts."""

    text: str
    spec: Spec
    zone: Zone
    dst_gap: DstGap
    dst_overlap: DstOverlap
    window_us: tuple[int | None, int | None]
    ticks: Ticks


def lint(schedule: LintedSchedule, after: datetime | None, *, has_jitter: bool) -> list[Finding]:
    """Everything that looks wrong, the worst first."""
    found = [
        *_never_fires(schedule, after),
        *_calendar_findings(schedule.text, schedule.spec, has_jitter=has_jitter),
        *_dst_findings(schedule, after),
    ]
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _never_fires(schedule: LintedSchedule, after: datetime | None) -> Iterator[Finding]:
    if after is None or isinstance(schedule.spec, Manual):
        return
    after_us = to_us(after)
    if schedule.ticks.next(after_us) is not None:
        return
    last = schedule.ticks.prev(after_us + 1)
    ended = "" if last is None else f": the last fire time was {_when(last, schedule.zone)}"
    yield Finding(
        "never_fires", Severity.ERROR, f"nothing is left to fire after {_when(after_us, schedule.zone)}{ended}"
    )


def _when(at_us: int, zone: Zone) -> str:
    return in_zone(moment(local(from_us(at_us), zone)), zone)


def _calendar_findings(text: str, spec: Spec, *, has_jitter: bool) -> Iterator[Finding]:
    """A job that has jitter does not crowd."""
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
    if crowded and not has_jitter:
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


@bounded
def _dst_findings(schedule: LintedSchedule, after: datetime | None) -> list[Finding]:
    """The first gap and the first overlap that hit the schedule, at most one finding each."""
    pattern = fixed_times(schedule.spec)
    if pattern is None or schedule.zone.is_utc:
        return []
    found: dict[str, Finding] = {}
    for change in _changes(schedule.zone, *_looked_at(schedule, after)):
        kind = "gap" if change.offset > change.before else "overlap"
        wall = _first_hit(pattern, change)
        if kind not in found and wall is not None:
            found[kind] = (_gap if kind == "gap" else _overlap)(schedule, change, wall)
        if len(found) == 2:
            break
    return list(found.values())


def _looked_at(schedule: LintedSchedule, after: datetime | None) -> tuple[int, int]:
    """The instants [low, high) in seconds whose changes of the clocks matter."""
    start, end = schedule.window_us
    low = max(_RELEASE_US if after is None else to_us(after), FIRST_US if start is None else start)
    high = min(low + _LOOK_AHEAD_US, END_US if end is None else end + 1) // SECOND_US
    if isinstance(schedule.spec, RRule) and schedule.spec.until_us is not None:
        high = min(high, schedule.spec.until_us // SECOND_US + 1)
    return low // SECOND_US, high


def _changes(zone: Zone, low: int, high: int) -> Iterator[Stretch]:
    """The stretches that begin with a change of the clocks within [low, high)."""
    while low < high:
        stretch = zone.stretch_at(low)
        # A year cuts a stretch without a change; only the one that the change begins counts.
        if low <= stretch.since == stretch.start and stretch.before != stretch.offset:
            yield stretch
        low = stretch.end


def _first_hit(pattern: WallPattern, change: Stretch) -> int | None:
    """The first wall of the pattern that the change removes or repeats."""
    walls = change.since + change.before, change.since + change.offset
    wall = pattern.next_from(min(walls))
    return wall if wall is not None and wall < max(walls) else None


def _gap(schedule: LintedSchedule, change: Stretch, wall: int) -> Finding:
    head = f"{wall_time(wall)} does not exist on {day(from_wall(wall))}, the clocks jump"
    jump = change.offset - change.before
    if jump >= CORRECTION_S:
        correction = f"{head} {length(jump * SECOND_US)} ahead: so large a correction is not made up for by any dst_gap"
        return Finding("dst_gap", Severity.WARNING, correction)
    severity = Severity.WARNING if schedule.dst_gap is DstGap.SKIP else Severity.INFO
    result = _gap_result(schedule.dst_gap, change, wall)
    return Finding("dst_gap", severity, f"{head} {_from_to(change)}: dst_gap {schedule.dst_gap} {result}")


def _gap_result(gap: DstGap, change: Stretch, wall: int) -> str:
    match gap:
        case DstGap.CATCH_UP:
            return f"runs it at {wall_time(change.since + change.offset)}"
        case DstGap.SHIFT:
            return f"runs it at {wall_time(wall + change.offset - change.before)}"
        case DstGap.SKIP:
            return "leaves it out"


def _overlap(schedule: LintedSchedule, change: Stretch, wall: int) -> Finding:
    head = f"{wall_time(wall)} happens twice on {day(from_wall(wall))}, the clocks go back {_from_to(change)}"
    if schedule.dst_overlap is DstOverlap.BOTH:
        return Finding("dst_overlap", Severity.WARNING, f"{head}: dst_overlap both runs it twice")
    return Finding(
        "dst_overlap", Severity.INFO, f"{head}: dst_overlap {schedule.dst_overlap} runs only the {schedule.dst_overlap}"
    )


def _from_to(change: Stretch) -> str:
    return f"from {wall_time(change.since + change.before)} to {wall_time(change.since + change.offset)}"
