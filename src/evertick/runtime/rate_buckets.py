"""Where the rate buckets of a process are kept: in the database, or in Redis with the database as its substitute."""

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from evertick.domain.rate_bucket import Drawn, part_of
from evertick.runtime.extras import MissingExtra
from evertick.store.database import Pool
from evertick.store.engine.rate_buckets import Ask, DatabaseBuckets, RateBuckets

logger = logging.getLogger("evertick")

RETRY_SECONDS = 1.0
"""Redis is asked again so long after it failed."""
SUBSTITUTED_PART = 0.5
"""Of each rate and burst: the others may still reach Redis, and with the whole rate here it would double."""


@asynccontextmanager
async def open_buckets(pool: Pool, redis_url: str | None) -> AsyncIterator[RateBuckets]:
    """The rate buckets that all processes share: in Redis where there is a URL."""
    database = DatabaseBuckets(pool)
    if redis_url is None:
        yield database
        return
    try:
        from evertick.store.engine.redis_buckets import UNAVAILABLE, RedisBuckets  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise MissingExtra("EVERTICK_REDIS_URL needs Redis's client: pip install 'evertick[redis]'") from error
    redis = RedisBuckets(redis_url)
    try:
        yield SubstitutedBuckets(redis, database, UNAVAILABLE)
    finally:
        await redis.close()


class SubstitutedBuckets:
    """Rate buckets of one kind, and those of another while the first are unavailable.

    The others are full when they take over, and give a part of each rate and burst. One warning says when they take
    over, and one line when the first are back.
    """

    def __init__(
        self,
        first: RateBuckets,
        substitute: RateBuckets,
        unavailable: tuple[type[Exception], ...],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first = first
        self._substitute = substitute
        self._unavailable = unavailable
        self._monotonic = monotonic
        self._retry_at: float | None = None

    async def draw(self, asks: Sequence[Ask]) -> list[Drawn | None]:
        """Draw for each of some asks with different keys, in their order. None: somebody else is drawing."""
        if self._retry_at is not None and self._monotonic() < self._retry_at:
            return await self._draw_part(asks)
        is_back = self._retry_at is not None
        if is_back:
            self._retry_at = self._monotonic() + RETRY_SECONDS  # one draw tries, the others do not wait for it
        try:
            drawn = await self._first.draw(asks)
        except self._unavailable as error:
            if self._retry_at is None:
                logger.warning("rate limits: Redis is unavailable, the database takes over: %s", error)
            self._retry_at = self._monotonic() + RETRY_SECONDS
            return await self._draw_part(asks)
        if is_back and self._retry_at is not None:
            logger.info("rate limits: Redis is back")
            self._retry_at = None
        return drawn

    async def _draw_part(self, asks: Sequence[Ask]) -> list[Drawn | None]:
        parts = [ask._replace(rate=part_of(ask.rate, SUBSTITUTED_PART)) for ask in asks]
        # A least beyond the smaller burst would never be there: it is drawn in several steps.
        return await self._substitute.draw([ask._replace(least=min(ask.least, ask.rate.burst)) for ask in parts])
