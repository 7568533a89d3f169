"""The inputs and the findings of lint."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from evertick.domain.policies import ConcurrentPolicy, DstGap, DstOverlap, MissedWindow
from evertick.domain.schedule.spec import Spec
from evertick.domain.schedule.ticks import Ticks
from evertick.domain.schedule.zone import Zone


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
class LintSubject:
    """The schedule that is checked, in its parts."""

    text: str
    spec: Spec
    zone: Zone
    dst_gap: DstGap
    dst_overlap: DstOverlap
    window_us: tuple[int | None, int | None]
    ticks: Ticks


@dataclass(frozen=True, slots=True, kw_only=True)
class LintContext:
    """What else is known about the job; what is None is not judged."""

    after: datetime | None = None
    missed_window: MissedWindow | None = None
    misfire_grace: timedelta | None = None
    timeout: timedelta | None = None
    concurrent_policy: ConcurrentPolicy | None = None
    jitter: timedelta | None = None
