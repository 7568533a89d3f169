"""What a schedule's text means, as values; and what each kind of meaning gives: walls, or ticks."""

from dataclasses import dataclass

from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.interval import Every, EveryMonths
from evertick.domain.schedule.patterns.wall import WallPattern
from evertick.domain.schedule.rrule import ticks as rrule
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.ticks import ListTicks, NoTicks, Ticks
from evertick.domain.schedule.zone import Zone
from evertick.domain.schedule.zoned import ZonedTicks


@dataclass(frozen=True, slots=True)
class Once:
    """One tick, at a known instant."""

    at_us: int


@dataclass(frozen=True, slots=True)
class Soon:
    """One tick, `delay_us` after a creation that is not known yet, and not before the window opens."""

    delay_us: int
    start_us: int | None = None


@dataclass(frozen=True, slots=True)
class Manual:
    """No ticks: only triggers run it."""


WallSpec = Cron | RRule | EveryMonths
Spec = WallSpec | Every | Once | Soon | Manual


def pattern_of(spec: WallSpec) -> WallPattern:
    """The wall times that a spec by the clock names."""
    return rrule.pattern_of(spec) if isinstance(spec, RRule) else spec.pattern()


def fixed_times(spec: Spec) -> WallPattern | None:
    """The same for a spec that means readings of the clock; None for those that follow elapsed time."""
    match spec:
        case Cron(elapsed=False) | RRule(elapsed=False) | EveryMonths():
            return pattern_of(spec)
        case _:
            return None


def ticks_of(spec: Spec, zone: Zone, gap: DstGap, overlap: DstOverlap) -> Ticks:
    """The ticks that a spec means in a zone under its daylight-saving policies."""
    match spec:
        case Cron() | EveryMonths():
            return ZonedTicks(spec.pattern(), zone, gap, overlap, elapsed=spec.elapsed)
        case RRule():
            return rrule.ticks_of(spec, zone, gap, overlap)
        case Every():
            return spec.ticks()
        case Once(at_us):
            return ListTicks([at_us])
        case Soon() | Manual():
            return NoTicks()
