"""What is probably not meant: traps in a schedule and in the policies beside it, found before they fire.

A finding never stops a job; what cannot work at all is refused by the schedule itself. No clock is read: without an
`after`, the years that follow the tz database's release are looked at.
"""

from collections.abc import Iterator
from datetime import datetime

from evertick import tzdb
from evertick.domain.policies import ConcurrentPolicy, MissedWindow
from evertick.domain.schedule.describe.english import in_zone, length, local, moment
from evertick.domain.schedule.instants import DAY_S, SECOND_US, first_day, from_us, to_us
from evertick.domain.schedule.lint.calendar import calendar_findings
from evertick.domain.schedule.lint.dst import DstView, dst_findings
from evertick.domain.schedule.lint.findings import Finding, LintContext, LintSubject, Severity
from evertick.domain.schedule.spacing import shortest_interval
from evertick.domain.schedule.spec import Manual, Spec
from evertick.domain.schedule.ticks import END_US, FIRST_US
from evertick.domain.schedule.zone import Zone

_LOOK_AHEAD_US = 5 * 366 * DAY_S * SECOND_US
_RELEASE_US = first_day(int(tzdb.VERSION[:4])) * DAY_S * SECOND_US
_BESIDE_POLICY = {
    MissedWindow.SKIP: ", though SKIP is to leave them out",
    MissedWindow.RUN_ONCE: ", though RUN_ONCE is to run the newest only",
    MissedWindow.RUN_ALL: " before max_missed counts any",
}


def lint(subject: LintSubject, context: LintContext) -> list[Finding]:
    """Everything that looks wrong, the worst first."""
    found = [
        *_never_fires(subject, context.after),
        *calendar_findings(subject.text, subject.spec, spread=bool(context.jitter)),
        *dst_findings(_dst_view(subject, context.after)),
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


def _dst_view(subject: LintSubject, after: datetime | None) -> DstView:
    start, end = subject.window_us
    low = max(_RELEASE_US if after is None else to_us(after), FIRST_US if start is None else start)
    high = min(low + _LOOK_AHEAD_US, END_US if end is None else end + 1)
    return DstView(
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
