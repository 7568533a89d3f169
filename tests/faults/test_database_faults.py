"""The database stops without a goodbye: all acknowledged work is there afterwards, and everything goes on by itself."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from evertick.store.database import connect
from evertick.store.migrate import migrate
from evertick.store.server.embedded import EmbeddedServer
from faults.cluster import Cluster

pytestmark = pytest.mark.slow

RUNS = "SELECT count(*) FROM outcomes"


def _stop_immediately(server: EmbeddedServer) -> None:
    """As `pg_ctl stop -m immediate` does: the postmaster is told to quit and everyone with it."""
    os.kill(_postmaster(server), signal.SIGQUIT)


def _kill(server: EmbeddedServer) -> None:
    os.kill(_postmaster(server), signal.SIGKILL)


async def _is_gone(server: EmbeddedServer) -> bool:
    return not server.is_running


def _postmaster(server: EmbeddedServer) -> int:
    return int((server.cluster / "postmaster.pid").read_text(encoding="utf-8").split("\n", 1)[0])


@pytest.fixture
async def server(data_dir: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer(data_dir)
    url = server.start()
    connection = await connect(url)
    await migrate(connection)
    await connection.close()
    yield server
    server.stop()


@pytest.mark.parametrize("strike", [_stop_immediately, _kill])
async def test_a_database_that_falls_and_comes_back_has_lost_nothing(
    server: EmbeddedServer, tmp_path: Path, strike: Callable[[EmbeddedServer], None]
) -> None:
    cluster = Cluster(server.url, tmp_path)
    await cluster.open()
    try:
        await _survive(cluster, server, strike)
    finally:
        await cluster.close()


async def _survive(cluster: Cluster, server: EmbeddedServer, strike: Callable[[EmbeddedServer], None]) -> None:
    await cluster.jobs(100, schedule="every 1s", concurrent_policy="ALLOW", max_concurrent=100)
    cluster.scheduler()
    cluster.worker()
    for _ in range(2):
        await cluster.until_count(RUNS, await cluster.value(RUNS) + 200)
        done = await cluster.value(RUNS)
        strike(server)
        await cluster.close_connections()
        await cluster.until(lambda: _is_gone(server), "the server is gone")
        server.start()
        await cluster.open()
        assert await cluster.value(RUNS) >= done
    await cluster.until_count(RUNS, await cluster.value(RUNS) + 200)
    await cluster.wait_until_idle()
    await cluster.check()
