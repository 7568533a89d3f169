"""One rate of a tenant over several API processes, with the buckets in the database and in Redis."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest
from redis.asyncio import Redis

from api.callers import JOB, Caller, Callers
from api.processes import served
from engine import until
from evertick.domain import rate_bucket
from evertick.domain.rate_bucket import Bucket, Drawn, Rate
from evertick.runtime.rate_buckets import open_buckets
from evertick.store.database import Pool
from evertick.store.engine.rate_buckets import Ask
from evertick.store.engine.redis_buckets import PREFIX, RedisBuckets
from redis_server import RedisServer, redis_server

PROCESSES = 3
CLIENTS = 2
"""Of each process."""
BATCH = 25
RATE = Rate(per_second=25, burst=200)
"""So low that each machine uses it up."""
ENOUGH = 600
"""Jobs: at the rate they take 16 seconds. Three slices are less than the loss of so many."""
LOSS = 0.05
SECOND_US = 1_000_000
SLOW = Rate(per_second=1, burst=50)
HARDLY = Rate(per_second=0.001, burst=50)
"""No test lasts until the next token."""


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("kept_in", ["database", "redis"])
async def test_three_processes_admit_the_rate_of_one(
    kept_in: str, database_url: str, pool: Pool, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    limits = "UPDATE tenants SET submits_per_second = $1, submit_burst = $2"
    await connection.execute(limits, RATE.per_second, RATE.burst)
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server()) if kept_in == "redis" else None
        options = () if redis is None else ("--redis-url", redis.url)
        clients: list[Caller] = []
        key = ""
        for number in range(PROCESSES):
            process = stack.enter_context(served(database_url, tmp_path / f"api {number}", *options))
            callers = Callers(process.address, pool)
            stack.push_async_callback(callers.close)
            key = key or str((await callers.make("editor")).key)
            clients += [callers.of(key) for _ in range(CLIENTS)]
        begun_us = await connection.fetchval("SELECT microseconds(clock_at())")
        is_over = asyncio.Event()
        flood = [asyncio.create_task(_submit(client, is_over)) for client in clients]

        async def are_enough() -> bool:
            return int(await connection.fetchval("SELECT count(*) FROM jobs")) >= ENOUGH

        await until(are_enough)
        is_over.set()
        refused = sum(await asyncio.gather(*flood))
        bucket = await _bucket(connection, redis)
    assert refused, "the machine is too slow to use the rate up"
    created = await connection.fetchval("SELECT count(*) FROM jobs")
    first_us = await connection.fetchval("SELECT microseconds(min(created_at)) FROM jobs")
    assert created <= RATE.burst + RATE.per_second * (bucket.as_of_us - begun_us) / SECOND_US
    earned = RATE.burst + RATE.per_second * (bucket.as_of_us - first_us) / SECOND_US
    assert created + bucket.units // rate_bucket.UNITS_PER_TOKEN >= (1 - LOSS) * earned
    assert bool(await connection.fetchval("SELECT count(*) FROM rate_buckets")) == (kept_in == "database")


async def _submit(client: Caller, is_over: asyncio.Event) -> int:
    """Submit without a pause; how many jobs were refused."""
    refused = 0
    while not is_over.is_set():
        answer = await client.post("/jobs:batch", json=[JOB] * BATCH)
        if answer.status_code == 429:
            refused += BATCH
        else:
            refused += [verdict["status"] for verdict in answer.json()].count(429)
    return refused


async def _bucket(connection: asyncpg.Connection, redis: RedisServer | None) -> Bucket:
    """The tenant's bucket as of its last draw."""
    if redis is None:
        return Bucket(*(await connection.fetch("SELECT units, as_of_us FROM rate_buckets"))[0])
    async with Redis.from_url(redis.url) as client:
        units, as_of_us = await client.hmget(f"{PREFIX}submit:1", ["units", "as_of_us"])
        return Bucket(int(units or 0), int(as_of_us or 0))


async def test_redis_draws_as_the_database_does(redis: RedisServer) -> None:
    buckets = RedisBuckets(redis.url)
    asks = [Ask("b", SLOW, 1, 50), Ask("a", SLOW, 1, 7), Ask("c", SLOW, 0, 0)]
    assert await buckets.draw(asks) == [Drawn(50), Drawn(7), Drawn(0)]
    (again,) = await buckets.draw([Ask("b", SLOW, 50, 50)])
    assert again is not None
    assert not again.granted
    assert 0 < again.wait_us <= 50_000_000
    await buckets.close()


async def test_redis_keeps_exact_numbers_for_the_largest_rates(redis: RedisServer) -> None:
    largest = Rate(per_second=2**31 - 1, burst=2**31 - 1)
    buckets = RedisBuckets(redis.url)
    assert await buckets.draw([Ask("k", largest, 1, 2**31 - 1)]) == [Drawn(2**31 - 1)]
    async with Redis.from_url(redis.url) as client:
        # A year ago it was empty; a clock that was a year ahead must not stop it.
        for moved in (-1, 1):
            now_us = int((await client.time())[0]) * 1_000_000
            year_us = moved * 365 * 86_400 * 1_000_000
            await client.hset(f"{PREFIX}k", mapping={"units": 5_000_000, "as_of_us": now_us + year_us})
            (drawn,) = await buckets.draw([Ask("k", largest, 1, 2**31 - 1)])
            assert drawn is not None
            assert drawn.granted >= 5
    await buckets.close()


async def test_a_full_bucket_is_not_kept_in_redis(redis: RedisServer) -> None:
    buckets = RedisBuckets(redis.url)
    await buckets.draw([Ask("k", RATE, 1, 1)])
    async with Redis.from_url(redis.url) as client:
        until_full_ms = 1000 // RATE.per_second
        assert 0 < await client.pttl(f"{PREFIX}k") <= 2_000 + until_full_ms
    await buckets.close()


async def test_the_database_takes_over_while_redis_is_away(
    redis: RedisServer, pool: Pool, connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "evertick")
    async with open_buckets(pool, redis.url) as buckets:
        assert await buckets.draw([Ask("k", HARDLY, 1, 40)]) == [Drawn(40)]
        assert await connection.fetchval("SELECT count(*) FROM rate_buckets") == 0
        await redis.stop()
        # Half of the rate and the burst: the others may still reach Redis.
        for granted in (10, 10, 5):
            assert await buckets.draw([Ask("k", HARDLY, 1, 10)]) == [Drawn(granted)]
        assert await buckets.draw([Ask("all", HARDLY, 50, 50)]) == [Drawn(25)]
        assert await connection.fetchval("SELECT count(*) FROM rate_buckets") == 2
        assert [each.levelname for each in caplog.records if "Redis" in each.message] == ["WARNING"]
        await redis.start()

        async def is_back() -> bool:
            await buckets.draw([Ask("k", HARDLY, 1, 1)])
            return any("Redis is back" in each.message for each in caplog.records)

        await until(is_back)
        assert await buckets.draw([Ask("new", HARDLY, 1, 1)]) == [Drawn(1)]
        assert await connection.fetchval("SELECT count(*) FROM rate_buckets") == 2
