"""The name of a cluster, and its confirmation by a command."""

import asyncio
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import asyncpg
import pytest

from cli.commands import Cli
from evertick.config.settings import Settings
from evertick.store.engine.identity import OtherCluster
from evertick.wiring import running
from faults.processes import EVERTICK, TESTS


async def worker_error(database_url: str, environment: Mapping[str, str]) -> str:
    """What a worker says that does not start."""
    settings = {**os.environ, **environment, "EVERTICK_DATABASE_URL": database_url, "PYTHONPATH": str(TESTS)}
    words = [str(EVERTICK), "worker", "faults.worker_app:app"]
    ended = await asyncio.to_thread(
        subprocess.run, words, env=settings, capture_output=True, text=True, timeout=120, check=False, cwd=TESTS
    )
    assert ended.returncode == 1, ended.stdout
    return str(ended.stderr)


async def test_a_cluster_gets_its_name_and_others_do_not_start(
    database_url: str, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    production = Settings(cluster="production")
    with pytest.raises(OtherCluster, match="without a name, and EVERTICK_CLUSTER is production here"):
        async with running(database_url, "node", (), production):
            pass
    cli = Cli(database_url)
    cli.environment = {"EVERTICK_CLUSTER": "production"}
    assert "The cluster is called production." in await cli("cluster", "confirm")
    async with running(database_url, "node", (), production):
        pass
    for wrong in (Settings(), Settings(cluster="staging")):
        with pytest.raises(OtherCluster, match="of the cluster production"):
            async with running(database_url, "node", (), wrong):
                pass
    assert "evertick cluster confirm" in await worker_error(database_url, {"EVERTICK_CLUSTER": "staging"})


async def test_a_confirmation_is_shown_and_in_the_audit_log(database_url: str, connection: asyncpg.Connection) -> None:
    cli = Cli(database_url)
    before = await cli.json("cluster", "show")
    assert before == {
        "name": None,
        "is_confirmed": True,
        "suspicion": None,
        "confirmed_at": None,
        "active_at": None,
    }
    await connection.execute("UPDATE cluster_identity SET suspected_at = clock_at(), suspicion = 'copied'")
    assert "restored from a dump or copied" in (await cli.json("cluster", "show"))["suspicion"]
    done = await cli.json("cluster", "confirm")
    assert not done["before"]["is_confirmed"]
    after = await cli.json("cluster", "show")
    assert after["is_confirmed"]
    assert after["suspicion"] is None
    assert await connection.fetchval("SELECT action FROM audit_log WHERE actor = 'command line'") == "confirm_cluster"


async def test_the_doctor_tells_a_name_that_differs(database_url: str) -> None:
    cli = Cli(database_url)
    cli.environment = {"EVERTICK_CLUSTER": "staging"}
    examined = await cli.run("doctor")
    assert "the cluster has no name, and EVERTICK_CLUSTER is staging here" in examined.stdout
