"""A standby of the database, for lists and figures that may be seconds old.

It is used while its newest heartbeat of a scheduler is recent by the primary's clock: that shows the lag whatever
replicates the data, and a server that is no standby of this database has none. Without schedulers, or with the standby
away or too far behind, the primary is read.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from evertick.domain.errors import InvalidInput
from evertick.metrics.catalog import REPLICA_LAG, REPLICA_READS
from evertick.runtime.loop import Loop
from evertick.store.database import Pool, Timeouts, is_transient, open_pool
from evertick.store.location import DatabaseAddress
from evertick.usecases.engine_status import replica_lag

logger = logging.getLogger("evertick.api")

CONNECTIONS = 8
TIMEOUTS = Timeouts(connection_seconds=1, command_seconds=5, lock_seconds=1)
"""Short, because the primary is asked when these have passed."""
CHECK_SECONDS = 1.0
MAX_CHECK_AGE = 5.0
"""A measurement of the lag counts for so long."""

_T = TypeVar("_T")


class Replica:
    """Reads from the standby if that is recent, else from the primary."""

    def __init__(self, url: DatabaseAddress, primary: Pool, max_lag_seconds: float) -> None:
        self._url = url
        self._primary = primary
        self._max_lag_seconds = max_lag_seconds
        self._measured = -MAX_CHECK_AGE
        self._was_recent: bool | None = None
        self._loop = Loop("replica", self.step)
        self.lag_seconds: float | None = None

    async def start(self) -> None:
        """Begin to measure. The standby may be away."""
        self._pool = await open_pool(
            self._url, min_size=0, max_size=CONNECTIONS, timeouts=TIMEOUTS, purpose="api_replica"
        )
        self._unwatch = REPLICA_LAG.watch(lambda: {} if self.lag_seconds is None else {(): self.lag_seconds})
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()
        self._unwatch()
        await self._pool.close()

    async def step(self) -> float:
        """Measure the lag."""
        try:
            self.lag_seconds = await replica_lag(self._pool, self._primary)
        except BaseException:
            self.lag_seconds = None
            raise
        self._measured = time.monotonic()
        if self.is_recent is not self._was_recent:
            self._was_recent = self.is_recent
            behind = "has no heartbeats" if self.lag_seconds is None else f"is {self.lag_seconds:.1f} s behind"
            logger.info("the replica %s: lists are read from %s", behind, "it" if self.is_recent else "the primary")
        return CHECK_SECONDS

    @property
    def is_recent(self) -> bool:
        age = time.monotonic() - self._measured
        return self.lag_seconds is not None and self.lag_seconds <= self._max_lag_seconds and age < MAX_CHECK_AGE

    async def read(self, primary: Pool, work: Callable[[Pool], Awaitable[_T]]) -> _T:
        """Do work that only reads. What the standby does not find, or cannot answer, is asked of the primary.

        A standby lacks what is new, cancels what is in the way of replication, and may have an older schema.
        """
        if self.is_recent:
            try:
                found = await work(self._pool)
            except InvalidInput:
                raise
            except Exception as error:  # noqa: BLE001 - the primary answers, or fails in the same way
                if is_transient(error):
                    self.lag_seconds = None  # until the next measurement
            else:
                REPLICA_READS.add(1, "replica")
                return found
        REPLICA_READS.add(1, "primary")
        return await work(primary)
