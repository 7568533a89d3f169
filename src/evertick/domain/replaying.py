"""The pace of a replay of many dead letters: how many become runs in one batch, and when each is due.

Whatever delays a batch, a crash or an outage, later batches do not make up for it: due times never come faster than the
rate.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

BATCH_SECONDS = 1.0
"""Each batch makes the runs that are due within about this time, so that a cancellation leaves few of them."""
MAX_BATCH = 500
AHEAD = timedelta(seconds=1)
"""A batch is made so long before its first run is due: as long as a janitor waits between two looks."""


class ReplayBatch(NamedTuple):
    """At most `size` letters: the first is due at `start_at`, each `seconds_apart` after the one before."""

    size: int
    start_at: datetime
    seconds_apart: float

    def next_at(self, replayed: int) -> datetime:
        """When the next batch begins, if this one made so many runs."""
        return self.start_at + timedelta(seconds=replayed * self.seconds_apart)


def plan_batch(rate_per_second: float, submits_per_second: int, next_at: datetime, now_at: datetime) -> ReplayBatch:
    """The batch that was to begin at `next_at`, at the rate that was asked for or at that of the tenant."""
    pace = min(rate_per_second, submits_per_second)
    size = min(MAX_BATCH, max(1, int(pace * BATCH_SECONDS)))
    return ReplayBatch(size, max(next_at, now_at), 1 / pace)
