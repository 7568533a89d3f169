"""Rate buckets in the database: what several processes draw."""

import asyncio

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from evertick.domain import rate_bucket
from evertick.domain.rate_bucket import Drawn, Rate
from evertick.store.database import Pool, open_pool
from evertick.store.engine import rate_buckets
from evertick.store.engine.rate_buckets import Ask, DatabaseBuckets

RATE = Rate(per_second=100, burst=1000)
SLOW = Rate(per_second=1, burst=50)
START_US = 1_800_000_000_000_000
DAY_US = 86_400 * 1_000_000

steps = st.lists(
    st.tuples(
        st.integers(-3_000_000, 3_000_000) | st.integers(-DAY_US, DAY_US),
        st.builds(
            Rate,
            per_second=st.integers(1, 2**31 - 1) | st.floats(0.001, 1_000_000),
            burst=st.integers(1, 2**31 - 1) | st.integers(1, 50),
        ),
        st.integers(0, 2**31),
        st.integers(0, 2**31),
    ),
    min_size=1,
    max_size=8,
)


@pytest.fixture
async def virtual_clock(connection: asyncpg.Connection) -> asyncpg.Connection:
    """A connection to a database whose clock is what `virtual_clock` has."""
    await connection.execute("CREATE TABLE virtual_clock (now_us bigint)")
    await connection.execute(f"INSERT INTO virtual_clock VALUES ({START_US})")
    await connection.execute(
        "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE AS"
        " $$SELECT 'epoch'::timestamptz + now_us * interval '1 microsecond' FROM virtual_clock$$"
    )
    return connection


async def test_the_statement_draws_as_the_domain_does(virtual_clock: asyncpg.Connection, pool: Pool) -> None:
    buckets, runs = DatabaseBuckets(pool), 0

    async def play(played: list[tuple[int, Rate, int, int]]) -> None:
        nonlocal runs
        runs += 1
        key, now_us, bucket = f"a bucket {runs}", START_US, None
        for step, rate, some, more in played:
            now_us += step
            least = min(some, rate.burst)
            await virtual_clock.execute("UPDATE virtual_clock SET now_us = $1", now_us)
            bucket = bucket or rate_bucket.full(rate, now_us)
            expected, bucket = rate_bucket.draw(rate, bucket, now_us, least=least, wanted=least + more)
            assert await buckets.draw([Ask(key, rate, least, least + more)]) == [expected]

    # Hypothesis runs no async functions: it gives the examples, which are played below.
    examples: list[list[tuple[int, Rate, int, int]]] = []

    @given(steps)
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    def collect(played: list[tuple[int, Rate, int, int]]) -> None:
        examples.append(played)

    collect()
    for played in examples:
        await play(played)


async def test_several_keys_are_drawn_in_one_statement(pool: Pool) -> None:
    buckets = DatabaseBuckets(pool)
    asks = [Ask("b", SLOW, 1, 50), Ask("a", SLOW, 1, 7), Ask("c", SLOW, 0, 0)]
    assert await buckets.draw(asks) == [Drawn(50), Drawn(7), Drawn(0)]
    (again,) = await buckets.draw([Ask("b", SLOW, 50, 50)])
    assert again is not None
    assert not again.granted
    assert 40_000_000 < again.wait_us <= 50_000_000


async def test_draws_at_once_take_all_that_is_there_and_no_more(
    virtual_clock: asyncpg.Connection, database_url: str
) -> None:
    granted = 0
    async with await open_pool(database_url, max_size=8) as pool:
        buckets = DatabaseBuckets(pool)
        for _ in range(20):
            drawn = await asyncio.gather(*(buckets.draw([Ask("k", SLOW, 1, 3)]) for _ in range(20)))
            granted += sum(each.granted for (each,) in drawn if each is not None)
    assert granted == SLOW.burst
    assert await virtual_clock.fetchval("SELECT units FROM rate_buckets") == 0


async def test_nobody_waits_for_a_bucket_that_is_locked(pool: Pool, connection: asyncpg.Connection) -> None:
    buckets = DatabaseBuckets(pool)
    await buckets.draw([Ask("locked", RATE, 1, 1)])
    async with connection.transaction():
        await connection.execute("SELECT FROM rate_buckets WHERE key = 'locked' FOR UPDATE")
        assert await buckets.draw([Ask("locked", RATE, 1, 1), Ask("free", RATE, 1, 1)]) == [None, Drawn(1)]
    assert await buckets.draw([Ask("locked", RATE, 1, 1)]) == [Drawn(1)]


async def test_only_buckets_that_have_been_full_for_long_are_removed(
    virtual_clock: asyncpg.Connection, pool: Pool
) -> None:
    await DatabaseBuckets(pool).draw([Ask("soon full", RATE, 1, 1), Ask("late", Rate(1, 100_000), 1, 90_000)])
    await virtual_clock.execute("UPDATE virtual_clock SET now_us = now_us + 3600 * 1000000::bigint")
    assert await rate_buckets.prune(pool) == 0
    await virtual_clock.execute("UPDATE virtual_clock SET now_us = now_us + 60 * 1000000::bigint")
    assert await rate_buckets.prune(pool) == 1
    assert await virtual_clock.fetchval("SELECT key FROM rate_buckets") == "late"
