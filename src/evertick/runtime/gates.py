"""Lets runs into gates beside the work that made room: noted gates are passed together, in a loop of their own."""

import time
from collections.abc import Callable, Collection, Iterable

from evertick.runtime.loop import Loop, NotYet
from evertick.store.database import Pool
from evertick.store.engine import gates
from evertick.store.engine.gates import FIRST_GATE
from evertick.store.engine.lanes import queue_of

IDLE_SECONDS = 60.0
SWEEP_SECONDS = 1.0
SWEPT_AT_ONCE = 500
"""Gates that a sweep looks at."""
BUSY_SECONDS = 0.05
"""A gate that another session has locked is tried again after so long."""


class Gates:
    """The gates that a process has made room at, or fired runs for.

    What is noted here is lost with the process: schedulers sweep all gates that runs wait at, those of `partitions`.
    A sweep also finds what cancellations, deletions and edits of limits let pass.
    """

    def __init__(
        self,
        pool: Pool,
        entered: Callable[[Iterable[int]], None],
        partitions: Callable[[], Collection[int]] | None = None,
    ) -> None:
        self._pool = pool
        self._entered = entered
        self._partitions = partitions
        self._noted: set[int] = set()
        self._swept = FIRST_GATE
        self._sweep_due = 0.0
        self.loop = Loop("gates", self.step)

    def note(self, gate_ids: Collection[int]) -> None:
        """Something may pass at these gates."""
        if gate_ids:
            self._noted.update(gate_ids)
            self.loop.wake()

    @property
    def is_noted(self) -> bool:
        """Whether something may pass at a gate that was not looked at since."""
        return bool(self._noted)

    async def step(self) -> float:
        """Let runs in where something was noted, and each second where a sweep looks."""
        is_sweep = self._partitions is not None and time.monotonic() >= self._sweep_due
        await self.look(is_sweep=is_sweep)
        if self._noted:
            return NotYet(BUSY_SECONDS)
        return IDLE_SECONDS if self._partitions is None else SWEEP_SECONDS

    async def look(self, *, is_sweep: bool) -> int:
        """Look once at the noted gates, and at the next ones of a sweep; returns how many runs were let in."""
        wanted, self._noted = self._noted, set()
        try:
            if is_sweep:
                wanted |= await self._sweep()
            lane_ids = await gates.let_in(self._pool, wanted, busy=self._noted.update)
        except BaseException:
            self._noted |= wanted
            raise
        if lane_ids:
            self._entered({queue_of(lane_id) for lane_id in lane_ids})
        return len(lane_ids)

    async def _sweep(self) -> set[int]:
        """The next gates that something waits at, in rotation."""
        assert self._partitions is not None
        self._sweep_due = time.monotonic() + SWEEP_SECONDS
        found = await gates.waiting(self._pool, self._partitions(), after=self._swept, most=SWEPT_AT_ONCE)
        self._swept = found[-1].gate_id if len(found) == SWEPT_AT_ONCE else FIRST_GATE
        return {gate.gate_id for gate in found if gate.is_mine}
