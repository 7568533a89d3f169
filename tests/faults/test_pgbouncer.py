"""Everything runs through PgBouncer in transaction mode, which is killed and started again."""

from pathlib import Path

from evertick.store.engine import lanes
from faults.campaign import SHORT, everything
from pgbouncer import pgbouncer


async def test_a_cluster_behind_a_pooler_survives_the_pooler(database_url: str, tmp_path: Path) -> None:
    async with pgbouncer(database_url) as pooler, everything(pooler.url, tmp_path, SHORT) as campaign:
        cluster = campaign.cluster
        await pooler.stop()
        await cluster.close_connections()
        await pooler.start()
        await cluster.open()
        report = await campaign.end(await lanes.clock(cluster.pool))
        assert await campaign.missing(0, 0) == 0
        assert report.unrecorded == 0
