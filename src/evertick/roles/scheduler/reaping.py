"""Turns leases that ran out into `lost` outcomes and their retries, for exactly the attempts that have no outcome."""

import logging
from collections.abc import Callable, Iterable
from datetime import timedelta

from evertick.domain.retry import Ended
from evertick.domain.states import Outcome
from evertick.roles.scheduler.state import State
from evertick.runtime.clock import now_of
from evertick.runtime.following import follow
from evertick.store import outcomes
from evertick.store.outcomes import Ending, Lost

logger = logging.getLogger("evertick.scheduler")

MOST = 100
"""Leases per round, each of up to some hundred attempts."""
EVERY_SECONDS = 1.0


class Reaping:
    """Takes over leases that ran out and ends what is open in them, as any other holder would."""

    def __init__(self, state: State, *, lease_time: timedelta, woken: Callable[[Iterable[int]], None]) -> None:
        self._state = state
        self._lease_time = lease_time
        self._woken = woken
        self.lost = 0

    async def step(self) -> float:
        return 0 if await self.reap() else EVERY_SECONDS

    async def reap(self) -> int:
        """One round; returns how many leases ran out."""
        partitions = list(self._state.holdings.epochs)
        found = await outcomes.reap(
            self._state.pool, self._state.node, partitions, lease_time=self._lease_time, most=MOST
        )
        for worker in {each.worker for each in found}:
            theirs = [each for each in found if each.worker == worker]
            await self._bury(worker, theirs)
        return len({each.lease_id for each in found})

    async def _bury(self, worker: str, found: list[Lost]) -> None:
        now_at = now_of(self._state.clock)
        endings = [
            Ending(
                each.lane_id,
                each.seq,
                each.job_id,
                each.fire_at,
                each.spec_version,
                each.reason,
                Outcome.LOST.value,
                started_at=None,
                finished_at=now_at,
                error="the lease ran out: its worker was lost",
                then=follow(each.retry, each.job_id, each.fire_at, Ended(Outcome.LOST, each.attempt)),
                is_listed=each.is_listed,
            )
            for each in found
            if each.lane_id is not None
        ]
        leases = list({each.lease_id for each in found})
        stale, busy = await outcomes.record(self._state.pool, worker, endings, leases, holder=self._state.node)
        lost = len(endings) - len(stale) - len(busy)
        self.lost += lost
        if lost:
            logger.warning("%d attempts of %s are lost", lost, worker)
            self._woken(ending.job_id for ending in endings)
