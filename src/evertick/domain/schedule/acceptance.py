"""Whether a schedule may be given to a job now: what only the clock and the tenant's limits can refuse."""

from collections.abc import Callable
from datetime import datetime, timedelta

from evertick.domain.errors import InvalidSchedule
from evertick.domain.schedule.budget import ACCEPTED_STEPS, at_most
from evertick.domain.schedule.instants import DAY_S, SECOND_US, to_us
from evertick.domain.schedule.patterns.days import GIVE_UP_YEARS
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.schedule.spec import Manual, Once, Soon
from evertick.domain.schedule.ticks import END_US
from evertick.domain.schedule.zoned import MAX_LOST

_YEAR_US = 366 * DAY_S * SECOND_US
_HORIZON_US = GIVE_UP_YEARS * _YEAR_US
"""How long a new schedule must stay within its budget."""


def check_new(schedule: Schedule, now: datetime, grace: timedelta, shortest: timedelta = timedelta(seconds=1)) -> None:
    """Refuse what is over before it begins, and what fires more often than the tenant's `shortest` interval."""
    match schedule.spec:
        case Manual() | Soon():
            return
        case Once():
            if schedule.next(now - grace - timedelta(microseconds=1)) is None:
                raise InvalidSchedule("schedule", f"{schedule.text!r} is past, by more than its grace of {grace}")
            return
    if not _fires_after(schedule, now):
        raise InvalidSchedule("schedule", f"never fires again: {_why_over(schedule, now)}")
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
