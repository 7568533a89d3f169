"""Whether this process may be sent requests: the schema fits, and the clocks are sane."""

import asyncio
from datetime import UTC, datetime, timedelta

from evertick.runtime.cached import Cached
from evertick.runtime.timeouts import READINESS_SECONDS
from evertick.store.database import Pool, is_transient
from evertick.store.migrate import SchemaMismatch, check_schema
from evertick.usecases.engine_status import clock

TRUSTED_SECONDS = 1.0
SANE_SKEW = timedelta(days=1)
"""The database's clock decides, and a machine may be minutes off. A day is no slip: one of them was never set."""


class Readiness:
    """Looks at most once a second, however many ask."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._faults = Cached(self._look, TRUSTED_SECONDS)

    async def faults(self) -> list[str]:
        """What keeps it from being ready; empty if nothing does. Those who ask during a look share its result."""
        return await self._faults.get()

    async def _look(self) -> list[str]:
        try:
            async with asyncio.timeout(READINESS_SECONDS):
                return await self._judged()
        except SchemaMismatch as mismatch:
            return [str(mismatch)]
        except Exception as error:
            # The driver's errors have no class of their own for what passes by itself: `is_transient` knows them.
            if not is_transient(error):
                raise
            return ["the database does not answer"]

    async def _judged(self) -> list[str]:
        await check_schema(self._pool)
        skew = abs(await clock(self._pool) - datetime.now(UTC))
        if skew > SANE_SKEW:
            return [f"the database's clock and this machine's are {skew} apart"]
        return []
