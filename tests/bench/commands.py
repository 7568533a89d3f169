"""Runs `evertick bench` in this process, on the server of the tests."""

import asyncio
import json
from typing import Any

from click.testing import CliRunner, Result

from evertick.cli.main import app
from evertick.store.database import connect
from evertick.store.server.embedded import EmbeddedServer

MEASURED_ON = {"python", "cores", "memory_mb", "evertick", "postgres"}
SERVER_SETTINGS = {"synchronous_commit", "fsync", "shared_buffers", "max_wal_size", "wal_compression"}


def bench(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == code, result.output
    return result


def measured(server: EmbeddedServer, *arguments: str) -> dict[str, Any]:
    """The result of a scenario, which left no database behind."""
    result = bench(*arguments, "--database-url", server.url, "--json")
    assert databases(server.url) == []
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["scenario"] == arguments[0]
    assert found["machine"].keys() >= MEASURED_ON
    assert found["settings"]["server"].keys() >= SERVER_SETTINGS
    return found


def databases(url: str) -> list[str]:
    """The databases of the bench on a server."""
    return [
        row["datname"] for row in fetched(url, "SELECT datname FROM pg_database WHERE datname LIKE 'evertick_bench%'")
    ]


def fetched(url: str, query: str) -> list[Any]:
    async def fetch() -> list[Any]:
        connection = await connect(url)
        try:
            return await connection.fetch(query)
        finally:
            await connection.close()

    return asyncio.run(fetch())


def assert_all_ran_once(found: dict[str, Any], runs: int) -> None:
    assert (found["runs"], found["missing"], found["duplicates"]) == (runs, 0, 0)


def assert_ranked(lag_ms: dict[str, float]) -> None:
    assert lag_ms["p50"] <= lag_ms["p95"] <= lag_ms["p99"] <= lag_ms["max"]
