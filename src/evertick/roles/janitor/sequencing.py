"""Gives events their positions in the stream.

Duty: moves what triggers wrote to `new_events` into `events`, soon after it was committed.

Invariants: positions become visible in their order, because one session at a time gives them, under a lock that it
holds until its commit. What one transaction did after another, to the same rows, has the larger position. Each event
gets one position. Positions follow the clock, so that a fail-over that lost some of them gives none of them again.

Steps: several times a second it looks for new events; if there are some, it takes the lock, and moves them in batches.

Crash: the batch was moved or not, and another janitor goes on. While no janitor runs, events wait in `new_events`.
"""

from evertick.runtime.loop import Loop
from evertick.store.database import Pool
from evertick.store.tenants import events

POLL_SECONDS = 0.25
BATCH = 5000


class Sequencing:
    """Gives positions on the janitor's pool, on one connection."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._loop = Loop("event positions", self.step)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    async def step(self) -> float:
        """Move a batch, and say after how many seconds to look again."""
        moved = await events.give_positions(self._pool, BATCH)
        return 0 if moved == BATCH else POLL_SECONDS
