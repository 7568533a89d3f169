"""Fixed wall times that a coming change of the clocks jumps over or repeats, and what the policy makes of it."""

from collections.abc import Iterator
from typing import NamedTuple

from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.budget import bounded
from evertick.domain.schedule.describe.english import clock, day, length
from evertick.domain.schedule.instants import DAY_S, SECOND_US, from_wall
from evertick.domain.schedule.lint.findings import Finding, Severity
from evertick.domain.schedule.patterns.wall import WallPattern
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.spec import Spec, fixed_times
from evertick.domain.schedule.zone import Stretch, Zone
from evertick.domain.schedule.zoned import CORRECTION_S


class DstView(NamedTuple):
    """A schedule's wall times and policies, and the instants [low, high) in seconds whose changes matter."""

    spec: Spec
    zone: Zone
    gap: DstGap
    overlap: DstOverlap
    low: int
    high: int


@bounded
def dst_findings(view: DstView) -> list[Finding]:
    """The first gap and the first overlap that hit the schedule, at most one finding each."""
    return list(_first_of_each(view))


def _first_of_each(view: DstView) -> Iterator[Finding]:
    pattern = fixed_times(view.spec)
    if pattern is None or view.zone.is_utc:
        return
    missing = {"gap", "overlap"}
    for change in changes(view.zone, view.low, _end(view)):
        kind = "gap" if change.offset > change.before else "overlap"
        wall = _first_hit(pattern, change)
        if kind in missing and wall is not None:
            missing.remove(kind)
            yield _gap(view, change, wall) if kind == "gap" else _overlap(view, change, wall)
        if not missing:
            return


def changes(zone: Zone, low: int, high: int) -> Iterator[Stretch]:
    """The stretches that begin with a change of the clocks within [low, high)."""
    while low < high:
        stretch = zone.stretch_at(low)
        # A year cuts a stretch without a change; only the one that the change begins counts.
        if low <= stretch.since == stretch.start and stretch.before != stretch.offset:
            yield stretch
        low = stretch.end


def _end(view: DstView) -> int:
    if isinstance(view.spec, RRule) and view.spec.until_us is not None:
        return min(view.high, view.spec.until_us // SECOND_US + 1)
    return view.high


def _first_hit(pattern: WallPattern, change: Stretch) -> int | None:
    """The first wall of the pattern that the change removes or repeats."""
    walls = change.since + change.before, change.since + change.offset
    wall = pattern.next_from(min(walls))
    return wall if wall is not None and wall < max(walls) else None


def _gap(view: DstView, change: Stretch, wall: int) -> Finding:
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


def _overlap(view: DstView, change: Stretch, wall: int) -> Finding:
    head = f"{_time(wall)} happens twice on {day(from_wall(wall))}, the clocks go back {_from_to(change)}"
    if view.overlap is DstOverlap.BOTH:
        return Finding("dst_overlap", Severity.WARNING, f"{head}: dst_overlap both runs it twice")
    return Finding("dst_overlap", Severity.INFO, f"{head}: dst_overlap {view.overlap} runs only the {view.overlap}")


def _from_to(change: Stretch) -> str:
    return f"from {_time(change.since + change.before)} to {_time(change.since + change.offset)}"


def _time(wall: int) -> str:
    return clock(wall % DAY_S)
