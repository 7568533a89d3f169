"""The marks of the database's clock: its last times, the time that is trusted, and what has to be planned anew."""

import logging
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection

logger = logging.getLogger("evertick")

SPEED = 4
"""The trusted time makes up for a jump at so many times the pace of the clock. A laptop that is on for six hours a day
keeps up, and a clock that is a hundred days ahead for an hour ages nothing by more than four."""
LONGEST = timedelta(minutes=10)
"""Between two marks no more than this counts: they come each minute."""
JUMP = timedelta(minutes=5)
"""More than this between two marks is a step, or an outage."""
REPORTED_JUMP = timedelta(hours=1)
"""A longer time between two marks is logged."""
TOLERANCE = timedelta(minutes=1)
"""A step back that is no longer than this changes nothing but that ticks come so much later."""


class Marks(NamedTuple):
    """A look at the clock. `before_at` is the look before it, `trusted_at` the time from which ages count.

    `replan_from`: the clock was set back, and this partition's timers are to be planned anew next, for ticks after
    `replan_after_at`; None: all are done.
    """

    before_at: datetime
    marked_at: datetime
    trusted_at: datetime
    furthest_at: datetime
    replan_from: int | None
    replan_after_at: datetime | None


_SQL = statements.load("clock")
_MARK = _SQL["mark"].rows(Marks)
_MARKS = _SQL["marks"].rows(Marks)


async def mark(connection: Connection) -> Marks:
    """Record the time of the database, and log a step. While another process does so, its mark is returned."""
    marked = await _MARK.one_or_none(
        connection,
        speed=SPEED,
        longest_seconds=LONGEST.total_seconds(),
        jump_seconds=JUMP.total_seconds(),
        tolerance_seconds=TOLERANCE.total_seconds(),
    )
    latest = marked or await marks(connection)
    _report(latest)
    return latest


async def marks(connection: Connection) -> Marks:
    """The last mark beside the present time."""
    return await _MARKS.one(connection)


def _report(marks: Marks) -> None:
    went = marks.marked_at - marks.before_at
    if went > REPORTED_JUMP:
        logger.warning(
            "the database's clock is %s after the last mark, by a step or an outage: what is kept for a time is kept"
            " by the time of %s, which follows until %s",
            _rounded(went),
            f"{marks.trusted_at:%Y-%m-%d %H:%M}",
            f"{_followed_at(marks):%Y-%m-%d %H:%M}",
        )
    elif went < -TOLERANCE:
        logger.warning("the database's clock was set back by %s: timers are planned anew", _rounded(-went))


def _followed_at(marks: Marks) -> datetime:
    """When the trusted time will have caught up with the clock."""
    return marks.marked_at + (marks.marked_at - marks.trusted_at) / (SPEED - 1)


def _rounded(span: timedelta) -> timedelta:
    return timedelta(seconds=round(span.total_seconds()))
