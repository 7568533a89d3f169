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


async def test_a_host_is_limited(cli: Cli, connection: asyncpg.Connection, backend: str) -> None:
    limited = await cli.json("targets", "edit", HOST, "--rate-limit", "0.5", "--rate-burst", "3")
    assert (limited["host"], limited["rate_limit"], limited["rate_burst"]) == (HOST, 0.5, 3)
    assert "0.5" in await cli("targets", "list")
    unlimited = await cli.json("targets", "edit", HOST, "--rate-limit", "none")
    assert (unlimited["rate_limit"], unlimited["rate_burst"]) == (None, None)
    for wrong in ("many", "0", "-1"):
        assert (await cli.run("targets", "edit", HOST, "--rate-limit", wrong)).exit_code == 2
    changes = await connection.fetch("SELECT actor, subject FROM audit_log WHERE action = 'put_target'")
    assert [change["subject"] for change in changes] == [HOST, HOST]
    assert {change["actor"] == "command line" for change in changes} == {backend == "database"}
