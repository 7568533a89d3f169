"""Finds attempts in nobody's hands: handed out, without an outcome, and without a lease. Their runs would never end.

There should be none: only a fault of those who hold leases makes them. Each call looks at a few partitions and at so
many attempts of each lane, and the next one goes on from there. Up to where all attempts have ended is kept in the
lane's row, so that no history is read twice. Beyond the first open attempt the place is kept in memory only, and from
the end of the lane the look returns to that attempt.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta

from evertick.store import orphans as sweeps
from evertick.store.database import Pool
from evertick.store.lanes import partition_of
from evertick.store.orphans import CheckedLane

logger = logging.getLogger("evertick.scheduler")

ROUND_SECONDS = 60.0
"""In about this time all partitions have their turn."""
PARTITIONS_AT_ONCE = 8
MAX_PER_LANE = 2000
AGE = timedelta(minutes=5)
"""Younger attempts are left to their holders."""


class Sweeping:
    """Looks through lanes, a little at a time."""

    def __init__(self, pool: Pool, *, most_per_lane: int = MAX_PER_LANE, age: timedelta = AGE) -> None:
        self._pool = pool
        self._most_per_lane = most_per_lane
        self._age = age
        self._last_partition = -1
        self._places: dict[int, int] = {}

    async def sweep(self, partitions: Sequence[int]) -> float:
        """Look at the next few of these partitions; returns after how many seconds the next are to be looked at."""
        if not partitions:
            return ROUND_SECONDS
        turn = self._turn(sorted(partitions))
        places = {lane_id: seq for lane_id, seq in self._places.items() if partition_of(lane_id) in turn}
        looked = await sweeps.check(self._pool, turn, places, most_per_lane=self._most_per_lane, age=self._age)
        if orphans := [(each.lane_id, seq) for each in looked for seq in each.orphans]:
            logger.error("%d attempts had neither outcome nor lease: they are taken as lost", len(orphans))
            await sweeps.adopt(self._pool, orphans)
        if moved := {each.lane_id: place for each in looked if (place := _ended_up_to(each)) is not None}:
            await sweeps.mark_swept(self._pool, moved)
        for lane_id in places:
            del self._places[lane_id]
        self._places |= {each.lane_id: each.last_seq for each in looked if each.is_cut}
        if turn[-1] == max(partitions):
            await sweeps.drop_ended(self._pool, partitions)
        return ROUND_SECONDS * len(turn) / len(partitions)

    def _turn(self, partitions: list[int]) -> list[int]:
        later = [partition for partition in partitions if partition > self._last_partition]
        turn = (later or partitions)[:PARTITIONS_AT_ONCE]
        self._last_partition = turn[-1]
        return turn


def _ended_up_to(looked: CheckedLane) -> int | None:
    """Up to which seq all attempts of the lane are known to have ended, if that is news."""
    if looked.after_seq > looked.swept:
        return None  # it began beyond an open one
    place = looked.last_seq if looked.first_open is None else looked.first_open - 1
    return place if place > looked.swept else None
