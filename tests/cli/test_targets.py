import asyncpg
import pytest

from api.routes.test_targets import HOST, stored
from cli.commands import Cli
from evertick.domain.breaker import MIN_CALLS

pytestmark = pytest.mark.parametrize("backend", ["database", "api"])


async def test_failing_hosts_are_listed_and_reset(cli: Cli, connection: asyncpg.Connection, backend: str) -> None:
    assert await cli("targets", "list") == "No target host failed lately.\n"
    await stored(connection, HOST, 15)
    await stored(connection, "other.example.com", MIN_CALLS)
    shown = await cli("targets", "list", "--limit", "1")
    assert all(word in shown for word in (HOST, "open", "15 of 20", "the connection was refused"))
    assert "other" not in shown
    assert [host["state"] for host in await cli.json("targets", "list")] == ["open", "open"]
    assert await cli("targets", "reset", HOST) == f"The circuit of {HOST} is closed.\n"
    assert [host["state"] for host in await cli.json("targets", "list")] == ["closed", "open"]
    assert "there is no failing target host" in await cli("targets", "reset", "healthy.example.com", code=1)
    (change,) = await connection.fetch("SELECT actor, subject FROM audit_log WHERE action = 'reset_target'")
    assert change["subject"] == HOST
    assert (change["actor"] == "command line") == (backend == "database")
