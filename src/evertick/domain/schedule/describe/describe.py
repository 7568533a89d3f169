"""A schedule in one plain English sentence, for people who do not read cron."""

from datetime import datetime
from typing import assert_never

from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.describe.cron import cron_phrase, cron_times, names_days
from evertick.domain.schedule.describe.english import (
    counted,
    every,
    in_zone,
    length,
    local,
    moment,
    sentence,
    wall_moment,
)
from evertick.domain.schedule.describe.rrule import rrule_phrase
from evertick.domain.schedule.instants import SECOND_US, from_us, from_wall
from evertick.domain.schedule.interval import Every, EveryMonths
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.spec import Manual, Once, Soon, Spec
from evertick.domain.schedule.zone import Zone


def describe(spec: Spec, zone: Zone, start_at: datetime | None = None, end_at: datetime | None = None) -> str:
    """Say when it fires: `At 02:30 every day, America/New_York time`."""
    window = _window(zone, start_at, end_at)
    words = f"{_phrase(spec, zone)}{window}"
    return sentence(in_zone(words, zone) if window or _names_clock_time(spec, zone) else words)


def _phrase(spec: Spec, zone: Zone) -> str:  # noqa: PLR0911 - one return for each form
    match spec:
        case Cron():
            return cron_phrase(spec)
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
            return names_days(spec) or cron_times(spec).depends_on_zone(utc=zone.is_utc)
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
