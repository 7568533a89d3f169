"""From the fields of a job that decide when to its rule and the first tick of its timer.

Refuses what only the clock and the tenant's limits can: a past one-off, too short an interval, too costly a search.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.domain.errors import InvalidFields, InvalidInput, InvalidSchedule, OverBefore
from evertick.domain.ids import Prefix, format_id
from evertick.domain.job.timing import (
    ResolvedTiming,
    Timing,
    fault_of,
    one_off_at,
    parse_text,
    resolve,
    resolve_alone,
    resolve_one_off,
)
from evertick.domain.misfire import ON_TIME_US
from evertick.domain.rule import Rule
from evertick.domain.schedule.budget import ACCEPTED_STEPS, at_most
from evertick.domain.schedule.describe.english import length
from evertick.domain.schedule.instants import DAY_S, SECOND_US, from_us, to_us
from evertick.domain.schedule.patterns.days import GIVE_UP_YEARS
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.schedule import SHORTEST_INTERVAL, Schedule
from evertick.domain.schedule.spec import Manual, Once, Soon
from evertick.domain.schedule.ticks import END_US
from evertick.domain.schedule.zoned import MAX_LOST
from evertick.domain.stable_hash import due_at, jitter_offset

_ON_TIME = timedelta(microseconds=ON_TIME_US)
_YEAR_US = 366 * DAY_S * SECOND_US
_HORIZON_US = GIVE_UP_YEARS * _YEAR_US
"""How long a new schedule must stay within its budget."""


class Definition(NamedTuple):
    """When a job fires. The first times are None where only triggers run it."""

    rule: Rule
    canonical: str
    digest: bytes
    first_fire_at: datetime | None
    first_due_at: datetime | None

    def for_job(self, job_id: int) -> "Definition":
        """The same for another job, which has its own place in the jitter's window."""
        first_due_at = _first_due(self.first_fire_at, job_id, timedelta(microseconds=self.rule.jitter_us))
        return Definition(self.rule, self.canonical, self.digest, self.first_fire_at, first_due_at)


def define(
    timing: Timing, job_id: int, created_at: datetime, now: datetime, shortest: timedelta = SHORTEST_INTERVAL
) -> Definition:
    """Define a new job, or an edited one: given its original `created_at`, an interval keeps its phase.

    The first fire is strictly after `now`; that of a one-off is its instant, which may be past by its grace.
    InvalidFields says why the schedule cannot be used. `shortest` is the tenant's limit for intervals.
    """
    try:
        resolved, fire_at = _first_fire(timing, format_id(Prefix.JOB, job_id), created_at, now, shortest)
    except InvalidInput as refused:
        faults = parse_text(*timing[:4]).faults or (fault_of(refused),)
        raise InvalidFields(faults) from refused
    first_due_at = _first_due(fire_at, job_id, resolved.jitter)
    return Definition(resolved.rule, resolved.canonical, resolved.digest, fire_at, first_due_at)


def _first_due(fire_at: datetime | None, job_id: int, jitter: timedelta) -> datetime | None:
    return None if fire_at is None else due_at(fire_at, jitter_offset(job_id, jitter))


def _first_fire(
    timing: Timing, key: str, created_at: datetime, now: datetime, shortest: timedelta
) -> tuple[ResolvedTiming, datetime | None]:
    at = one_off_at(timing)
    if at is not None and at >= now:
        return resolve_one_off(timing), at
    resolved = resolve(timing, key, created_at)
    if isinstance(resolved.schedule.spec, Soon):
        fire_at = _after_delay(resolved, resolved.schedule.spec, created_at, now)
        if fire_at is not None:
            return resolved, fire_at
        # As a one-off of its own it is accepted, or refused with the reason.
        resolved = resolve_alone(timing, key, created_at)
    return resolved, _accepted_fire_at(resolved, now, shortest)


def _after_delay(resolved: ResolvedTiming, delay: Soon, created_at: datetime, now: datetime) -> datetime | None:
    """The instant a delay leads to, or None where a closer look is needed: it may be past or outside of its window."""
    at_us = to_us(created_at) + delay.delay_us
    start_us, end_us = resolved.schedule.window_us
    if start_us is not None:
        at_us = max(at_us, start_us)
    if at_us >= END_US or (end_us is not None and at_us > end_us):
        return None
    fire_at = from_us(at_us)
    return fire_at if fire_at >= now - resolved.grace else None


def _accepted_fire_at(resolved: ResolvedTiming, now: datetime, shortest: timedelta) -> datetime | None:
    """The first fire time of a schedule that is acceptable now."""
    schedule = resolved.schedule
    # What is late only by the machine's slowness is not past, even without any grace.
    grace = max(resolved.grace, _ON_TIME)
    match schedule.spec:
        case Manual():
            return None
        case Once(at_us):
            check_new(schedule, now, grace, shortest)
            return from_us(at_us)
    fire_at = schedule.next(now)
    # The interval was found once for all jobs alike; the whole check only has to say why one is refused.
    too_often = resolved.shortest_interval is not None and resolved.shortest_interval < shortest
    if fire_at is None or too_often or _grows(schedule):
        check_new(schedule, now, grace, shortest)
    return fire_at


def _grows(schedule: Schedule) -> bool:
    """Whether its questions get costlier with the years: those up to now are counted."""
    return isinstance(schedule.spec, RRule) and schedule.spec.count is not None


def check_new(schedule: Schedule, now: datetime, grace: timedelta, shortest: timedelta = timedelta(seconds=1)) -> None:
    """Refuse what is over before it begins, and what fires more often than the tenant's `shortest` interval."""
    match schedule.spec:
        case Manual() | Soon():
            return
        case Once():
            if schedule.next(now - grace - timedelta(microseconds=1)) is None:
                raise OverBefore("schedule", f"{schedule.text!r} is past, by more than its grace of {length(grace)}")
            return
    if not _fires_after(schedule, now):
        end_us = schedule.window_us[1]
        kind = OverBefore if end_us is not None and end_us <= to_us(now) else InvalidSchedule
        raise kind("schedule", f"never fires again: {_why_over(schedule, now)}")
    _check_later_cost(schedule, to_us(now) + _HORIZON_US)
    with at_most(ACCEPTED_STEPS):
        interval = schedule.shortest_interval()
    if interval is not None and interval < shortest:
        raise InvalidSchedule("schedule", f"fires every {interval}, more often than the allowed {shortest}")


def _fires_after(schedule: Schedule, now: datetime) -> bool:
    with at_most(ACCEPTED_STEPS):
        return schedule.next(now) is not None


def _check_later_cost(schedule: Schedule, at_us: int) -> None:
    """Refuse now what would get too costly later: a COUNT has ever more years to count."""
    ticks = schedule.ticks(at_us)
    questions: list[Callable[[], object]] = [lambda: ticks.next(at_us), lambda: ticks.prev(at_us)]
    if isinstance(schedule.spec, RRule):  # the ticks that an outage of a year missed; those of other forms cost little
        questions.append(lambda: ticks.count(at_us - _YEAR_US, at_us))
    for question in questions:
        with at_most(ACCEPTED_STEPS):
            question()


def _why_over(schedule: Schedule, now: datetime) -> str:
    now_us = to_us(now)
    lost = schedule.ticks(now_us).lost(now_us, END_US)
    if len(lost) > MAX_LOST:
        return (
            f"the clocks of {schedule.timezone} jump over every time that {schedule.text!r} names, "
            f"and dst_gap {schedule.dst_gap} leaves these out"
        )
    return f"no tick of {schedule.text!r} is left"
