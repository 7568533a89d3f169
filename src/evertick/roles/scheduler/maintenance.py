"""What a scheduler does each minute: marks the time, and looks for attempts without a lease."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from evertick.roles.scheduler.state import State
from evertick.store.database import Pool
from evertick.store.engine import orphans
from evertick.store.engine.clock import mark
from evertick.store.engine.lanes import partition_of
from evertick.store.engine.orphans import CheckedLane

logger = logging.getLogger("evertick.scheduler")

EVERY_SECONDS = 60.0
ROUND_SECONDS = 60.0
"""A sweep of all partitions takes about so long."""
LEASES_AT_ONCE = 5_000
"""Free leases may be very many: each look goes through a part of all leases."""
PARTITIONS_AT_ONCE = 8
MAX_PER_LANE = 2000
AGE = timedelta(minutes=5)
"""Younger attempts are left to their holders."""


class Maintenance:
    """Marks the time."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def step(self) -> float:
        await mark(self._state.pool)
        return EVERY_SECONDS


class Sweeping:
    """Finds orphaned attempts: leased once, without an outcome, and without a lease now. Their runs would never end.

    There should be none: only a fault of a lease holder makes them. Each call looks at a few partitions and at so many
    attempts of each lane, and the next one goes on from there. Up to where all attempts have ended is kept in the
    lane's row, so that no history is read twice. Beyond the first open attempt the position is in memory only, and from
    the end of the lane the next look returns to that attempt.
    """

    def __init__(self, pool: Pool, *, max_per_lane: int = MAX_PER_LANE) -> None:
        self._pool = pool
        self._max_per_lane = max_per_lane
        self._last_partition = -1
        self._last_lease = 0
        self._positions: dict[int, int] = {}

    async def sweep(self, partitions: Sequence[int]) -> float:
        """Look at the next few of these partitions; returns after how many seconds the next are to be looked at."""
        if not partitions:
            return ROUND_SECONDS
        turn = self._turn(sorted(partitions))
        positions = {lane_id: seq for lane_id, seq in self._positions.items() if partition_of(lane_id) in turn}
        checked = await orphans.check(self._pool, turn, positions, most_per_lane=self._max_per_lane, age=AGE)
        if found := [(each.lane_id, seq) for each in checked for seq in each.orphans]:
            logger.error("%d attempts had neither outcome nor lease: they are taken as lost", len(found))
            await orphans.adopt(self._pool, found)
        if moved := {each.lane_id: seq for each in checked if (seq := _ended_up_to(each)) is not None}:
            await orphans.mark_swept(self._pool, moved)
        for lane_id in positions:
            del self._positions[lane_id]
        self._positions |= {each.lane_id: each.last_seq for each in checked if each.is_cut}
        self._last_lease = await orphans.drop_ended(self._pool, partitions, after=self._last_lease, most=LEASES_AT_ONCE)
        return ROUND_SECONDS * len(turn) / len(partitions)

    def _turn(self, partitions: list[int]) -> list[int]:
        later = [partition for partition in partitions if partition > self._last_partition]
        turn = (later or partitions)[:PARTITIONS_AT_ONCE]
        self._last_partition = turn[-1]
        return turn


def _ended_up_to(checked: CheckedLane) -> int | None:
    """The seq up to which all attempts of the lane have ended, if it has grown."""
    if checked.after_seq > checked.swept:
        return None  # it began beyond an open one
    seq = checked.last_seq if checked.first_open is None else checked.first_open - 1
    return seq if seq > checked.swept else None
