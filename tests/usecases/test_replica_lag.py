"""How far a standby is behind, by the heartbeats that it has. Here it is the primary itself."""

import pytest

from evertick.store.database import Pool
from evertick.usecases.engine_status import replica_lag

SEEN = """
INSERT INTO nodes (node, region, version, started_at, seen_at)
SELECT $1, '', '', now_at, now_at + $2 * interval '1 s' FROM clock_at() AS now_at
"""


async def seen(pool: Pool, node: str, seconds: float) -> None:
    await pool.execute(SEEN, node, seconds)


async def test_without_heartbeats_the_lag_is_unknown(pool: Pool) -> None:
    assert await replica_lag(pool, pool) is None


async def test_the_newest_heartbeat_counts(pool: Pool) -> None:
    await seen(pool, "older", -600.0)
    await seen(pool, "newer", -60.0)
    assert await replica_lag(pool, pool) == pytest.approx(60, abs=30)


async def test_a_heartbeat_from_before_the_clock_was_set_back_makes_nothing_recent(pool: Pool) -> None:
    await seen(pool, "dead since", 3600.0)
    assert await replica_lag(pool, pool) is None
    await seen(pool, "alive", -60.0)
    assert await replica_lag(pool, pool) == pytest.approx(60, abs=30)
