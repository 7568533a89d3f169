"""A transaction that stays open keeps vacuum from removing anything, under load: runs start as before.

What the statements cost is compared in blocks that they read for each run, which do not depend on how busy the machine
is; their times are printed. Firing, leasing and recording stay within twice the cost ([results](docs/reliability.md)).
What it costs users is judged by the lag of their runs (C7).
"""

import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest

from evertick.store.database import connect
from evertick.store.migrate import migrate
from evertick.store.server.embedded import EmbeddedServer
from evertick.usecases.diagnosis import LONG_SECONDS, Level
from evertick.usecases.doctor import examine
from evertick.usecases.engine_status import engine_status
from faults.cluster import HEARTBEAT_TIMEOUT, Cluster
from faults.watch import Watch
from postgres import DEBIAN_PROGRAMS, SETTINGS

pytestmark = pytest.mark.slow

JOBS = 100
RUNS = "SELECT count(*) FROM outcomes"
FACTOR = 2.0
WATCHED = {
    "fire": "%INSERT INTO attempts (lane_id, seq, job_id%",
    "lease": "%WITH RECURSIVE asked AS MATERIALIZED (%INSERT INTO leases (lease_id%",
    "record": "%INSERT INTO outcomes (lane_id, seq, started_at%",
}
"""Parts of the texts of statements: the server changes the rest."""
COSTS = """
SELECT sum(shared_blks_hit + shared_blks_read)::float AS blocks, sum(total_exec_time)::float AS ms,
       sum(calls)::float AS calls
  FROM pg_stat_statements
 WHERE query LIKE $1
"""


class Cost(NamedTuple):
    """Of one statement."""

    blocks_per_run: float
    ms_per_call: float


@pytest.fixture
async def cluster(data_dir: Path, tmp_path: Path) -> AsyncIterator[Cluster]:
    """On a server that counts what statements do."""
    if not DEBIAN_PROGRAMS.exists():
        pytest.skip("NOT TESTED: A PINNED SNAPSHOT, which needs pg_stat_statements; apt-get install postgresql-15")
    counting = {"shared_preload_libraries": "'pg_stat_statements'", "pg_stat_statements.track": "'all'"}
    server = EmbeddedServer(data_dir, SETTINGS | counting, DEBIAN_PROGRAMS)
    connection = await connect(server.start())
    await migrate(connection)
    await connection.execute("CREATE EXTENSION pg_stat_statements")
    await connection.close()
    cluster = Cluster(server.url, tmp_path)
    await cluster.open()
    yield cluster
    await cluster.close()
    server.stop()


async def _costs(cluster: Cluster, runs: int) -> dict[str, Cost]:
    """What so many runs cost."""
    await cluster.pool.execute("SELECT pg_stat_statements_reset()")
    before = await cluster.value(RUNS)
    await cluster.until_count(RUNS, before + runs, 600)
    done = await cluster.value(RUNS) - before
    costs = {}
    for name, text in WATCHED.items():
        row = await cluster.pool.fetchrow(COSTS, text)
        assert row is not None
        costs[name] = Cost(row["blocks"] / done, row["ms"] / row["calls"])
    return costs


async def _pin(url: str) -> asyncpg.Connection:
    holder = await asyncpg.connect(url, server_settings={"application_name": "a long report"})
    await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await holder.execute("SELECT count(*) FROM evertick.timers")
    return holder


@pytest.mark.parametrize("runs", [1_000, pytest.param(30_000, marks=pytest.mark.campaign)])
async def test_a_transaction_that_stays_open_delays_nothing_and_is_named(cluster: Cluster, runs: int) -> None:
    cluster.scheduler()
    cluster.worker()
    await cluster.jobs(JOBS, schedule="every 1s")
    await cluster.until_count(RUNS, 3 * JOBS)
    watch = Watch(cluster)
    await watch.calm()
    before = await _costs(cluster, 5 * JOBS)
    holder = await _pin(cluster.url)
    pid = await holder.fetchval("SELECT pg_backend_pid()")
    watch.broken()
    await cluster.until_count(RUNS, await cluster.value(RUNS) + runs, 900)
    pinned = await _costs(cluster, 5 * JOBS)
    told = {finding.name: finding for finding in await examine(cluster.pool)}["oldest snapshot"]
    seen = (await engine_status(cluster.pool, timedelta(seconds=HEARTBEAT_TIMEOUT))).snapshot
    held_seconds = await holder.fetchval("SELECT extract(epoch FROM clock_timestamp() - now())::float")
    await holder.close()
    watch.heal()
    for name in before:
        sys.stdout.write(f"{name}: {before[name]} before, {pinned[name]} after {held_seconds:.0f} s\n")
    assert f"pid {pid} (a long report of " in told.what
    assert seen is not None
    assert seen.pid == pid
    assert told.level is (Level.WARNING if held_seconds >= LONG_SECONDS else Level.OK)
    for name in WATCHED:
        assert pinned[name].blocks_per_run < FACTOR * before[name].blocks_per_run
    rows = await cluster.pool.fetch("SELECT job_id FROM jobs")
    await watch.judge({"all": {row["job_id"] for row in rows}}, is_timed=runs > 1_000)
    await cluster.check()
