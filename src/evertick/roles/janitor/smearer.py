"""Works off smears: jitter that is given to many jobs, or taken back.

Duty: batch after batch until each job of a smear is done. `runtime/smearing` says what a batch is and what happens on a
crash. Of several janitors each takes another smear. It waits for no user: a job that somebody has locked is tried again
a moment later. A batch that fails is tried again after a while; the database decides which smear is next.
"""

import logging

from evertick.domain.ids import Prefix, format_id
from evertick.runtime.loop import Loop
from evertick.runtime.smearing import smear_batch
from evertick.store.database import Pool

logger = logging.getLogger("evertick.janitor")

POLL_SECONDS = 1.0
MAX_BATCHES = 20
"""Batches in one step: the loop stops only between two steps."""


class Smearer:
    """Works off smears on the janitor's pool, on one connection."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._loop = Loop("smear", self.step)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    async def step(self) -> float:
        """Work off what is due, and say after how many seconds more may be."""
        for _ in range(MAX_BATCHES):
            batch = await smear_batch(self._pool)
            if batch is None:
                return POLL_SECONDS
            if batch.is_done:
                smear_id = format_id(Prefix.SMEAR, batch.smear_id)
                logger.info("smear %s is done", smear_id, extra={"smear_id": smear_id})
        return 0
