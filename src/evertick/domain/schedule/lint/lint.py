"""What is probably not meant: traps in a schedule and in the policies beside it, found before they fire.

A finding never stops a job; what cannot work at all is refused by the schedule itself. No clock is read: without an
`after`, the years that follow the tz database's release are looked at.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from evertick import tzdb
from evertick.domain.policies import ConcurrentPolicy, DstGap, DstOverlap, MissedWindow
from evertick.domain.schedule.budget import bounded
from evertick.domain.schedule.describe.english import clock, day, in_zone, length, local, moment
from evertick.domain.schedule.instants import DAY_S, SECOND_US, first_day, from_us, from_wall, to_us
from evertick.domain.schedule.lint.calendar import calendar_findings
from evertick.domain.schedule.lint.findings import Finding, LintContext, LintSubject, Severity
from evertick.domain.schedule.patterns.wall import WallPattern
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.spacing import shortest_interval
from evertick.domain.schedule.spec import Manual, Spec, fixed_times
from evertick.domain.schedule.ticks import END_US, FIRST_US
from evertick.domain.schedule.zone import Stretch, Zone
from evertick.domain.schedule.zoned import CORRECTION_S

_LOOK_AHEAD_US = 5 * 366 * DAY_S * SECOND_US
_RELEASE_US = first_day(int(tzdb.VERSION[:4])) * DAY_S * SECOND_US
_BESIDE_POLICY = {
    MissedWindow.SKIP: ", though SKIP is to leave them out",
    MissedWindow.RUN_ONCE: ", though RUN_ONCE is to run the newest only",
    MissedWindow.RUN_ALL: " before max_missed counts any",
}


class _DstView(NamedTuple):
    """A schedule's wall times and policies, and the instants [low, high) in seconds whose changes matter."""

    spec: Spec
    zone: Zone
    gap: DstGap
    overlap: DstOverlap
    low: int
    high: int


def lint(subject: LintSubject, context: LintContext) -> list[Finding]:
    """Everything that looks wrong, the worst first."""
    found = [
        *_never_fires(subject, context.after),
        *calendar_findings(subject.text, subject.spec, spread=bool(context.jitter)),
        *_dst_findings(_dst_view(subject, context.after)),
        *_policies_against_interval(subject.spec, context),
    ]
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _never_fires(subject: LintSubject, after: datetime | None) -> Iterator[Finding]:
    if after is None or isinstance(subject.spec, Manual):
        return
    after_us = to_us(after)
    if subject.ticks.next(after_us) is not None:
        return
    last = subject.ticks.prev(after_us + 1)
    ended = "" if last is None else f": the last fire time was {_when(last, subject.zone)}"
    yield Finding(
        "never_fires", Severity.ERROR, f"nothing is left to fire after {_when(after_us, subject.zone)}{ended}"
    )


def _when(at_us: int, zone: Zone) -> str:
    return in_zone(moment(local(from_us(at_us), zone)), zone)


def _dst_view(subject: LintSubject, after: datetime | None) -> _DstView:
    start, end = subject.window_us
    low = max(_RELEASE_US if after is None else to_us(after), FIRST_US if start is None else start)
    high = min(low + _LOOK_AHEAD_US, END_US if end is None else end + 1)
    return _DstView(
        subject.spec, subject.zone, subject.dst_gap, subject.dst_overlap, low // SECOND_US, high // SECOND_US
    )


def _policies_against_interval(spec: Spec, context: LintContext) -> Iterator[Finding]:
    shortest = shortest_interval(spec)
    if shortest is None:
        return
    grace, timeout = context.misfire_grace, context.timeout
    if grace is not None and grace > shortest:
        beside = "" if context.missed_window is None else _BESIDE_POLICY[context.missed_window]
        message = (
            f"the misfire grace of {length(grace)} is longer than the {length(shortest)} between ticks: "
            f"after an outage up to {-(-grace // shortest)} late ticks run in a row{beside}"
        )
        yield Finding("grace_longer_than_interval", Severity.WARNING, message)
    if timeout is not None and timeout > shortest and context.concurrent_policy == ConcurrentPolicy.ALLOW:
        message = (
            f"a run may take {length(timeout)}, longer than the {length(shortest)} between ticks: "
            f"with ALLOW up to {-(-timeout // shortest)} runs are under way at once, as far as max_concurrent lets them"
        )
        yield Finding("timeout_longer_than_interval", Severity.WARNING, message)


@bounded
def _dst_findings(view: _DstView) -> list[Finding]:
    """The first gap and the first overlap that hit the schedule, at most one finding each."""
    return list(_first_of_each(view))


def _first_of_each(view: _DstView) -> Iterator[Finding]:
    pattern = fixed_times(view.spec)
    if pattern is None or view.zone.is_utc:
        return
    missing = {"gap", "overlap"}
    for change in _changes(view.zone, view.low, _end(view)):
        kind = "gap" if change.offset > change.before else "overlap"
        wall = _first_hit(pattern, change)
        if kind in missing and wall is not None:
            missing.remove(kind)
            yield _gap(view, change, wall) if kind == "gap" else _overlap(view, change, wall)
        if not missing:
            return


def _changes(zone: Zone, low: int, high: int) -> Iterator[Stretch]:
    """The stretches that begin with a change of the clocks within [low, high)."""
    while low < high:
        stretch = zone.stretch_at(low)
        # A year cuts a stretch without a change; only the one that the change begins counts.
        if low <= stretch.since == stretch.start and stretch.before != stretch.offset:
            yield stretch
        low = stretch.end


def _end(view: _DstView) -> int:
    if isinstance(view.spec, RRule) and view.spec.until_us is not None:
        return min(view.high, view.spec.until_us // SECOND_US + 1)
    return view.high


def _first_hit(pattern: WallPattern, change: Stretch) -> int | None:
    """The first wall of the pattern that the change removes or repeats."""
    walls = change.since + change.before, change.since + change.offset
    wall = pattern.next_from(min(walls))
    return wall if wall is not None and wall < max(walls) else None


def _gap(view: _DstView, change: Stretch, wall: int) -> Finding:
    head = f"{_time(wall)} does not exist on {day(from_wall(wall))}, the clocks jump"
    jump = change.offset - change.before
    if jump >= CORRECTION_S:
        correction = f"{head} {length(jump * SECOND_US)} ahead: so large a correction is not made up for by any dst_gap"
        return Finding("dst_gap", Severity.WARNING, correction)
    severity = Severity.WARNING if view.gap is DstGap.SKIP else Severity.INFO
    result = _gap_result(view.gap, change, wall)
    return Finding("dst_gap", severity, f"{head} {_from_to(change)}: dst_gap {view.gap} {result}")


def _gap_result(gap: DstGap, change: Stretch, wall: int) -> str:
    match gap:
        case DstGap.CATCH_UP:
            return f"runs it at {_time(change.since + change.offset)}"
        case DstGap.SHIFT:
            return f"runs it at {_time(wall + change.offset - change.before)}"
        case DstGap.SKIP:
            return "leaves it out"


def _overlap(view: _DstView, change: Stretch, wall: int) -> Finding:
    head = f"{_time(wall)} happens twice on {day(from_wall(wall))}, the clocks go back {_from_to(change)}"
    if view.overlap is DstOverlap.BOTH:
        return Finding("dst_overlap", Severity.WARNING, f"{head}: dst_overlap both runs it twice")
    return Finding("dst_overlap", Severity.INFO, f"{head}: dst_overlap {view.overlap} runs only the {view.overlap}")


def _from_to(change: Stretch) -> str:
    return f"from {_time(change.since + change.before)} to {_time(change.since + change.offset)}"


def _time(wall: int) -> str:
    return clock(wall % DAY_S)
