"""A replay of many dead letters while the janitors that work it off are killed."""

from pathlib import Path

from evertick.contract.runs import LetterFilter
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create
from evertick.usecases.runs import replays
from faults.cluster import Cluster
from faults.processes import Process

LETTERS = 300
_BURY = """
INSERT INTO dead_letters (job_id, fire_at, tenant_id, lane_id, seq, died_at, spec_version, attempt, reason)
SELECT job_id, clock_at() - n * interval '1 s', tenant_id, 1, n, clock_at() - n * interval '1 s', 1, 1, 'exhausted'
  FROM jobs CROSS JOIN generate_series(1, $1::integer) AS n
"""
_REPLAYED = "SELECT count(*) FROM requested_runs WHERE replays_at IS NOT NULL"


async def test_a_replay_whose_janitors_are_killed_replays_every_letter_once(
    cluster: Cluster, database_url: str, tmp_path: Path
) -> None:
    tenant = TenantContext(cluster.pool, 1)
    await create(tenant, {"schedule": "manual", "target": {"type": "worker", "handler": "h"}})
    await cluster.pool.execute(_BURY, LETTERS)
    replay_id = await replays.start(tenant, LetterFilter(), 100, "test")
    for number, least in enumerate((1, LETTERS // 3, LETTERS)):
        janitor = Process(
            ["scheduler", "--roles", "janitor", "--database-url", database_url], tmp_path / f"janitor-{number}.log", {}
        )
        try:
            await cluster.until_count(_REPLAYED, least)
        finally:
            janitor.kill()
    assert await cluster.pool.fetchval("SELECT count(DISTINCT replays_at) FROM requested_runs") == LETTERS
    assert await cluster.pool.fetchval(_REPLAYED) == LETTERS
    assert (await replays.get(tenant, replay_id)).replayed == LETTERS
