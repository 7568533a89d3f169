"""The marks of the database's clock: its last times, the time that is trusted, and what has to be planned anew."""

from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection

SPEED = 4
"""The trusted time makes up for a jump at so many times the pace of the clock. A laptop that is on for six hours a day
keeps up, and a clock that is a hundred days ahead for an hour ages nothing by more than four."""
LONGEST = timedelta(minutes=10)
"""Between two marks no more than this counts: they come each minute."""
JUMP = timedelta(minutes=5)
"""More than this between two marks is a step, or an outage."""
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
    """Note what time it is. While another process does so, its mark is returned."""
    marked = await _MARK.one_or_none(
        connection,
        speed=SPEED,
        longest_seconds=LONGEST.total_seconds(),
        jump_seconds=JUMP.total_seconds(),
        tolerance_seconds=TOLERANCE.total_seconds(),
    )
    return marked or await marks(connection)


async def marks(connection: Connection) -> Marks:
    """The last mark beside the present time."""
    return await _MARKS.one(connection)
