"""Rate limits of queues: who leases takes a token of the queue's rate bucket for each attempt.

Tokens are taken before the lease, for as many attempts as wait; what is leased in the end pays, the rest stays in the
slice of this process. An attempt that is put back without having been started gives its token back, and pays again when
it is leased again. No lease waits for a bucket: what is drawn too late is there for the next one.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from evertick.domain.rate_bucket import Drawn, Rate
from evertick.runtime.rate_slices import RateSlices
from evertick.store.database import reason_of
from evertick.store.engine import lanes
from evertick.store.statements import Connection

logger = logging.getLogger("evertick")

TAKE_SECONDS = 0.05
"""A draw takes some milliseconds."""
_LATE = Drawn(0, 50_000)
_FAILED = Drawn(0, 1_000_000)


class RatedRooms(NamedTuple):
    """How many attempts each queue may give. `wait_seconds`: until a queue that has more may have tokens for it."""

    rooms: dict[int, int]
    wait_seconds: float | None


class QueueRates:
    """The tokens of queues with a rate limit, as one process takes them."""

    def __init__(self, slices: RateSlices) -> None:
        self._slices = slices

    async def take(  # noqa: PLR0913 - what is asked for, and by whom
        self,
        connection: Connection,
        rooms: Mapping[int, int],
        rates: Mapping[int, Rate],
        *,
        capped: Collection[int],
        handlers: Sequence[str] | None,
        tenant_id: int | None,
    ) -> RatedRooms:
        """Take tokens for what queues with a rate have ready, up to their rooms. Other queues keep their rooms.

        `capped`: queues with a cap. While that is full no tokens are taken: they would expire.
        """
        # More than the burst is never there.
        limited = {queue_id: min(rooms[queue_id], rates[queue_id].burst) for queue_id in rooms if queue_id in rates}
        left = {queue_id: room for queue_id, room in rooms.items() if queue_id not in limited}
        if both := {queue_id: room for queue_id, room in limited.items() if queue_id in capped}:
            limited = {queue_id: room for queue_id, room in limited.items() if queue_id not in both}
            limited |= await lanes.estimate_rooms(connection, both, tenant_id)
        waiting = await lanes.count_ready(connection, limited, handlers, tenant_id) if limited else {}
        taken = await asyncio.gather(*(self._take(key, rates[key], count) for key, count in waiting.items()))
        left |= {queue_id: drawn.granted for queue_id, drawn in zip(waiting, taken, strict=True) if drawn.granted}
        waits = [drawn.wait_us for drawn in taken if not drawn.granted]
        return RatedRooms(left, min(waits) / 1_000_000 if waits else None)

    def give_back(self, queue_id: int, tokens: int) -> None:
        """Keep tokens for the next lease that were taken for attempts that were not leased, or not started."""
        if tokens:
            self._slices.give_back(_key(queue_id), tokens)

    async def _take(self, queue_id: int, rate: Rate, most: int) -> Drawn:
        try:
            async with asyncio.timeout(TAKE_SECONDS):
                return await self._slices.take(_key(queue_id), rate, least=1, most=most)
        except TimeoutError:
            return _LATE
        except Exception as error:  # noqa: BLE001 - queues without a rate must not wait for the bucket
            logger.warning("the rate limit of queue %d is unknown, nothing is leased: %s", queue_id, reason_of(error))
            return _FAILED


def _key(queue_id: int) -> str:
    """The name of a queue's rate bucket."""
    return f"queue:{queue_id}"
