"""Whether this process may be sent requests: the schema fits, and the clocks are sane."""

import asyncio
from datetime import UTC, datetime, timedelta

from evertick.runtime.concurrency import Cached
from evertick.runtime.timeouts import READINESS_SECONDS
from evertick.store.database import Pool, is_transient
from evertick.store.migrate import SchemaMismatch, check_schema
from evertick.usecases.engine_status import clock

TRUSTED_SECONDS = 1.0
SANE_SKEW = timedelta(days=1)
"""The database's clock decides, and a machine may be minutes off. With a day between them, one was never set."""


class Readiness:
    """Checks at most once a second."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._faults = Cached(self._check, TRUSTED_SECONDS)

    async def faults(self) -> list[str]:
        """What keeps it from being ready; empty if nothing does. Calls during a check share its result."""
        return await self._faults.get()

    async def _check(self) -> list[str]:
        try:
            async with asyncio.timeout(READINESS_SECONDS):
                return await self._find_faults()
        except SchemaMismatch as mismatch:
            return [str(mismatch)]
        except Exception as error:
            # The driver's errors have no class of their own for what passes by itself: `is_transient` knows them.
            if not is_transient(error):
                raise
            return ["the database does not answer"]

    async def _find_faults(self) -> list[str]:
        await check_schema(self._pool)
        skew = abs(await clock(self._pool) - datetime.now(UTC))
        if skew > SANE_SKEW:
            return [f"the database's clock and this machine's are {skew} apart"]
        return []
