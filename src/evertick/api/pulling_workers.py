"""Which workers pull from queues through this process. Requests only note it; a loop writes what they noted.

Between two writes `MAX_ROWS` of a tenant are noted: more rows it may not have.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from evertick.runtime.loop import Loop
from evertick.store.database import Pool
from evertick.store.engine import workers
from evertick.store.engine.workers import MAX_ROWS, PullingWorker

WRITE_SECONDS = 3.0
LIFETIME = timedelta(minutes=1)
"""Twice the longest poll: a worker that waits for work is heard of each time it polls."""
MAX_HANDLERS_BYTES = 16_000
"""A worker with longer names counts as one that serves any handler, so that nothing is said to be unserved."""


@dataclass(slots=True)
class _Noted:
    """Of one tenant: who asked for which queue with which handlers, and who sent a heartbeat."""

    asked: dict[tuple[str, str], Collection[str] | None] = field(default_factory=dict)
    heartbeats: set[str] = field(default_factory=set)


class PullingWorkers:
    """Remembers who asked for what since the last write."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._noted: defaultdict[int, _Noted] = defaultdict(_Noted)
        self._loop = Loop("pulling workers", self._step)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    def asked(self, tenant_id: int, worker_id: str, queue: str, handlers: Collection[str] | None) -> None:
        """A worker asked for attempts of a queue."""
        asked = self._noted[tenant_id].asked
        if len(asked) < MAX_ROWS:
            asked[worker_id, queue] = handlers

    def heard(self, tenant_id: int, worker_id: str) -> None:
        """A worker sent a heartbeat."""
        heartbeats = self._noted[tenant_id].heartbeats
        if len(heartbeats) < MAX_ROWS:
            heartbeats.add(worker_id)

    async def write(self) -> None:
        """Write what was noted. If that fails, the next requests of these workers note it again."""
        noted, self._noted = self._noted, defaultdict(_Noted)
        asked = [
            PullingWorker(tenant_id, f"{tenant_id}/{worker_id}", queue, _written(handlers))
            for tenant_id, of_tenant in noted.items()
            for (worker_id, queue), handlers in of_tenant.asked.items()
        ]
        for first in range(0, len(asked), MAX_ROWS):
            await workers.note(self._pool, asked[first : first + MAX_ROWS], LIFETIME)
        heard = {f"{tenant_id}/{name}" for tenant_id, of_tenant in noted.items() for name in of_tenant.heartbeats}
        if others := heard - {each.worker for each in asked}:
            await workers.note_heartbeats(self._pool, others, LIFETIME)

    async def _step(self) -> float:
        await self.write()
        return WRITE_SECONDS


def _written(handlers: Collection[str] | None) -> str | None:
    if handlers is None or sum(map(len, handlers)) > MAX_HANDLERS_BYTES:
        return None
    # No job can name others, and the database could not store some of them.
    names = {name for name in handlers if name.isascii() and name.isprintable()}
    return msgspec.json.encode(sorted(names)).decode()
