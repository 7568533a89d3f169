"""Controls the size of batches: it adapts to how long they take."""

import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from evertick.store.database import was_too_slow

logger = logging.getLogger("evertick.janitor")

FIRST_ROWS = 500
MAX_ROWS = 10_000
"""Rows per statement: so few that each is short, so many that the statements' own cost is small."""
BATCH_SECONDS = 1.0
"""The aim for a batch: few batches for a table in memory, and progress for one on a cold disk."""
MAX_CHANGE = 4
TIMEOUT_SHRINKS = 10

Result = TypeVar("Result")


@dataclass(slots=True)
class BatchSize:
    """The rows of a batch. It outlives the round, so that a size that was too large once is not tried again."""

    rows: int = FIRST_ROWS
    last_rows: int = 0  # that the last batch was asked for
    most: int = sys.maxsize
    monotonic: Callable[[], float] = monotonic

    async def run(
        self, batch: Callable[[int], Awaitable[Result]], is_full: Callable[[Result], bool] = lambda _: True
    ) -> Result:
        """Run one batch, again with fewer rows if it times out: it must be safe to repeat. One that found less than it
        was asked for is quick for that reason, and does not make the next one larger.
        """
        while True:
            self.last_rows = rows = min(self.rows, self.most, MAX_ROWS)
            began = self.monotonic()
            try:
                result = await batch(rows)
            except Exception as error:
                if rows == 1 or not (isinstance(error, TimeoutError) or was_too_slow(error)):
                    raise
                self.rows = max(1, rows // TIMEOUT_SHRINKS)
                logger.warning("a batch of %d rows took too long: the next has %d", rows, self.rows)
                continue
            adapted = _adapted(rows, self.monotonic() - began)
            if adapted < rows or is_full(result):
                self.rows = adapted
            return result


def _adapted(rows: int, seconds: float) -> int:
    change = min(max(BATCH_SECONDS / max(seconds, 0.001), 1 / MAX_CHANGE), MAX_CHANGE)
    return max(1, min(round(rows * change), MAX_ROWS))
