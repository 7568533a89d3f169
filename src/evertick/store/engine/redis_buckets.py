"""Rate buckets in Redis, by its clock, with the arithmetic of `domain/rate_bucket`. Called by `runtime/rate_slices`."""

from collections.abc import Sequence

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from evertick.domain.rate_bucket import Drawn
from evertick.store.engine.rate_buckets import Ask

TIMEOUT_SECONDS = 0.5
"""Redis answers within a millisecond, or the database is asked instead."""
PREFIX = "evertick:rate:"
UNAVAILABLE = (RedisError, OSError)
"""Redis did not do what it should. TimeoutError is an OSError."""

# Numbers are doubles in Lua: units of the largest burst and microseconds since 1970 stay below 2^53. What is gained is
# compared by division, because a long time at a high rate does not. A key ends when its bucket is full.
_DRAW = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local least, wanted, rate = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local full = tonumber(ARGV[4]) * 1000000
local units, as_of = full, now
local kept = redis.call('HMGET', KEYS[1], 'units', 'as_of_us')
if kept[1] then
    units, as_of = math.min(tonumber(kept[1]), full), tonumber(kept[2])
    if as_of - now > 1000000 then as_of = now end
    local elapsed = math.max(now - as_of, 0)
    if elapsed > math.floor((full - units) / rate) then units = full else units = units + math.floor(elapsed * rate) end
    as_of = math.max(now, as_of)
end
local there, granted, wait = math.floor(units / 1000000), 0, 0
if there >= least then
    granted = math.min(wanted, there)
    units = units - granted * 1000000
else
    wait = as_of + math.ceil((least * 1000000 - units) / rate) - now
end
redis.call('HSET', KEYS[1], 'units', string.format('%.0f', units), 'as_of_us', string.format('%.0f', as_of))
redis.call('PEXPIRE', KEYS[1], math.ceil((full - units) / rate / 1000) + 2000)
return {granted, wait}
"""


class RedisBuckets:
    """Rate buckets as hashes with an end."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(
            url,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 1),  # on a connection that the server has closed meanwhile
        )
        self._draw = self._redis.register_script(_DRAW)

    async def draw(self, asks: Sequence[Ask]) -> list[Drawn | None]:
        """Draw for each of some asks, in their order. One of `UNAVAILABLE` is raised if Redis does not answer."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            for key, rate, least, wanted in asks:
                await self._draw([PREFIX + key], [least, wanted, rate.per_second, rate.burst], client=pipeline)
            answers = await pipeline.execute()
        return [Drawn(int(granted), int(wait_us)) for granted, wait_us in answers]

    async def close(self) -> None:
        await self._redis.aclose()
