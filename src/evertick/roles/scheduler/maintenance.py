"""What a scheduler does each minute, and after a step of the clock: marks the time, and moves the heads of idle lanes.

A lease searches each lane from its head on: a lane that was idle for months would cost a search of as many days. Only
the holder of a partition may move its heads: it makes sure in memory that it fires nothing below, whatever the clock
shows, and the statement is fenced as a firing is. The next holder goes on after its heads.
"""

from evertick.roles.scheduler.state import State
from evertick.runtime.clock_marks import mark
from evertick.store import lanes as heads

EVERY_SECONDS = 60.0
LANES = 200
"""Lanes per statement: a takeover waits for it."""


class Maintenance:
    """Keeps the marks of the clock and the heads of lanes up to date."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def step(self) -> float:
        await mark(self._state.pool)
        await self.advance_heads()
        return EVERY_SECONDS

    async def advance_heads(self) -> int:
        """Move the heads of idle lanes to a day ago; returns how many."""
        ownership = self._state.ownership
        seq = await heads.idle_floor(self._state.pool)
        async with ownership.writing:  # nothing is being fired, and what follows gets larger seqs
            if ownership.in_doubt:
                return 0
            ownership.last_seq = max(ownership.last_seq, seq)
            epochs = dict(ownership.epochs)
        moved = count = await heads.advance_heads(self._state.pool, self._state.node, epochs, seq, LANES)
        while count == LANES:
            count = await heads.advance_heads(self._state.pool, self._state.node, epochs, seq, LANES)
            moved += count
        return moved
