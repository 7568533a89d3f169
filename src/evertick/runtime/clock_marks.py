"""Marks the database's clock, and logs a line when it jumped or was set back."""

import logging
from datetime import datetime, timedelta

from evertick.store.engine import clock
from evertick.store.engine.clock import SPEED, Marks
from evertick.store.statements import Connection

logger = logging.getLogger("evertick")

JUMP = timedelta(hours=1)
"""Marks come each minute: more than this between two of them is a step of the clock, or an outage."""


async def mark(connection: Connection) -> Marks:
    """Record the time of the database, and warn if it is not a little later than at the last mark."""
    marks = await clock.mark(connection)
    went = marks.marked_at - marks.before_at
    if went > JUMP:
        logger.warning(
            "the database's clock is %s after the last mark, by a step or an outage: what is kept for a time is kept"
            " by the time of %s, which follows until %s",
            _rounded(went),
            f"{marks.trusted_at:%Y-%m-%d %H:%M}",
            f"{followed_at(marks):%Y-%m-%d %H:%M}",
        )
    elif went < -clock.TOLERANCE:
        logger.warning("the database's clock was set back by %s: timers are planned anew", _rounded(-went))
    return marks


def followed_at(marks: Marks) -> datetime:
    """When the trusted time will have made up for its distance from the clock."""
    return marks.marked_at + (marks.marked_at - marks.trusted_at) / (SPEED - 1)


def _rounded(span: timedelta) -> timedelta:
    return timedelta(seconds=round(span.total_seconds()))
