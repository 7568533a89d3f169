"""What a scheduler does each minute, and when it noticed a step of the clock: marks the time, and moves idle heads on.

A look for work searches each lane from its head on, so one that has been idle for months would cost as many days. Only
the holder of a partition may move its heads: it makes sure in memory that it fires nothing below, whatever the clock
shows, and the statement is fenced as a firing is. The next holder goes on after its heads.
"""

from evertick.roles.scheduler.state import State
from evertick.runtime.clock_marks import mark
from evertick.store import lanes as heads

EVERY_SECONDS = 60.0
LANES = 200
"""Lanes per statement: a takeover waits for it."""


class Upkeep:
    """Keeps the marks of the clock and the heads of lanes up to date."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def step(self) -> float:
        await mark(self._state.pool)
        await self.advance_heads()
        return EVERY_SECONDS

    async def advance_heads(self) -> int:
        """Let the heads of idle lanes move on to a day ago; returns of how many."""
        holdings = self._state.holdings
        seq = await heads.idle_floor(self._state.pool)
        async with holdings.writing:  # nothing is being fired, and what follows gets larger seqs
            if holdings.in_doubt:
                return 0
            holdings.last_seq = max(holdings.last_seq, seq)
            epochs = dict(holdings.epochs)
        moved = count = await heads.advance_heads(self._state.pool, self._state.node, epochs, seq, LANES)
        while count == LANES:
            count = await heads.advance_heads(self._state.pool, self._state.node, epochs, seq, LANES)
            moved += count
        return moved
