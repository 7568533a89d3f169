"""How much a chore does at once: batches that adapt to how long they take, within a time that a sweep may last."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from evertick.store.database import was_too_slow

logger = logging.getLogger("evertick.janitor")

FIRST = 500
MOST = 10_000
"""Rows per statement: so few that each is short, so many that the statements' own cost is small."""
BATCH_SECONDS = 1.0
"""So long a batch should take: a table that lies in memory is done in few, and one on a cold disk is not given up."""
CHANGE_MOST = 4
TIMEOUT_SHRINKS = 10

Result = TypeVar("Result")


@dataclass(slots=True)
class Pace:
    """The size of a chore's batches. It outlives the sweep, so that what was too much once is not tried again."""

    rows: int = FIRST
    asked: int = 0  # in the last batch

    async def take(self, batch: Callable[[int], Awaitable[Result]]) -> Result:
        """Do one batch. One that the server gave up, or that had no answer, is tried again with fewer rows."""
        while True:
            self.asked = rows = min(self.rows, MOST)
            began = monotonic()
            try:
                result = await batch(rows)
            except Exception as error:
                if rows == 1 or not (isinstance(error, TimeoutError) or was_too_slow(error)):
                    raise
                self.rows = max(1, rows // TIMEOUT_SHRINKS)
                logger.warning("%d rows at once took too long: going on with %d", rows, self.rows)
                continue
            self.rows = _adapted(rows, monotonic() - began)
            return result


def _adapted(rows: int, seconds: float) -> int:
    change = min(max(BATCH_SECONDS / max(seconds, 0.001), 1 / CHANGE_MOST), CHANGE_MOST)
    return max(1, min(round(rows * change), MOST))
