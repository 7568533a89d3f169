"""Leases from the HTTP queues of all tenants whose deliveries can be signed, of each as much as it has room for."""

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from evertick.roles.worker.intake import Intake

LOOK_SECONDS = 1.0
"""A new tenant's first delivery waits at most this long, and so does a change of secrets or limits."""

Rooms = Mapping[int, int]
"""From the queues that are asked to how many attempts each may give."""


class TenantIntake(Intake):
    """A worker's intake that asks no queue whose tenant has no place free. `look` returns all queues.

    Attempts of a tenant at its limit so stay in their lanes: nothing is leased to be put back, and what is leased
    belongs to those who can use it.
    """

    def __init__(
        self,
        *arguments: Any,
        look: Callable[[], Awaitable[frozenset[int]]],
        rooms: Callable[[], Rooms],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._look = look
        self._find_rooms = rooms
        self._asked: frozenset[int] = frozenset()

    async def step(self) -> float:
        asked = frozenset(self._find_rooms())
        if not asked <= self._asked:
            # A tenant has room again: what it has ready was in no lane that was looked at.
            self._clear_until = self._free_from = -math.inf
        self._asked = asked
        return await super().step()

    async def look(self) -> None:
        """Look for queues, unless that was done just now."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._queue_ids = await self._look()
            self._looked = now

    async def _find_queues(self) -> None:
        await self.look()

    def _rooms(self, most: int) -> Rooms:
        return {queue_id: min(room, most) for queue_id, room in self._find_rooms().items()}
