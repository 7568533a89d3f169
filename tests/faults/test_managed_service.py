"""A cluster on a server as managed services run it: checked TLS, a plain role, and a password that changes."""

from pathlib import Path

import pytest

from evertick.store import database
from evertick.store.migrate import migrate
from faults.cluster import Cluster
from secured_server import ROLE, secured_server

pytestmark = pytest.mark.slow

OUTCOMES = "SELECT count(*) FROM outcomes"
END_ALL = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'"


def _write(file: Path, password: str) -> None:
    file.write_text(f"{password}\n", encoding="utf-8")


async def test_a_password_that_changes_stops_nothing(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "password"
    _write(file, "first")
    async with secured_server(data_dir, "first") as server:
        connection = await database.connect(server.url("first"))
        await migrate(connection)
        await connection.close()
        cluster = Cluster(server.url(), tmp_path, {"EVERTICK_DATABASE_PASSWORD_FILE": str(file)})
        cluster.own_url = server.url("first")
        await cluster.open()
        try:
            cluster.scheduler()
            cluster.worker()
            await cluster.jobs(4, schedule="every 1s")
            await cluster.until_count(OUTCOMES, 4)
            await cluster.close_connections()
            await server.change_password("second")
            await server.admin(END_ALL)  # for a moment all processes have the old password only
            _write(file, "second")
            cluster.own_url = server.url("second")
            await cluster.open()
            await cluster.until_count(OUTCOMES, await cluster.value(OUTCOMES) + 8)
            await cluster.wait_until_idle()
            await cluster.check()
        finally:
            await cluster.close()
