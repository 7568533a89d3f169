"""Tenants by commands: made, listed and changed, each with the same limits."""

import asyncpg

from cli.commands import Cli


async def test_a_tenant_is_made_with_limits_and_changed(cli: Cli, connection: asyncpg.Connection) -> None:
    made = await cli.json("tenants", "create", "acme", "--jobs-quota", "5", "--shortest-interval-seconds", "30")
    assert (made["name"], made["jobs_quota"], made["shortest_interval_seconds"]) == ("acme", 5, 30)
    assert made["api_key"].startswith("evt_")
    assert made["http_timeout_max_seconds"] == 300
    limits = ("--jobs-quota", "7", "--weight", "3", "--http-timeout-max-seconds", "600")
    edited = await cli.json("tenants", "edit", "acme", *limits)
    assert edited["http_timeout_max_seconds"] == 600
    assert (edited["jobs_quota"], edited["weight"], edited["shortest_interval_seconds"]) == (7, 3, 30)
    assert [each["name"] for each in await cli.json("tenants", "list")] == ["default", "acme"]
    log = await connection.fetch("SELECT action, subject FROM audit_log ORDER BY entry_id")
    assert [tuple(row) for row in log] == [("create_tenant", made["tenant_id"]), ("edit_tenant", made["tenant_id"])]


async def test_commands_keep_to_a_tenants_shortest_interval(cli: Cli) -> None:
    await cli("tenants", "create", "acme", "--shortest-interval-seconds", "3600")
    add = ("jobs", "add", "refresh", "--handler", "h", "--tenant", "acme")
    assert "more often than the allowed 1:00:00" in await cli(*add, "every 5m", code=2)
    await cli(*add, "every 2h")


async def test_an_unfit_limit_changes_nothing(cli: Cli) -> None:
    assert "weight" in await cli("tenants", "create", "acme", "--weight", "0", code=2)
    assert [each["name"] for each in await cli.json("tenants", "list")] == ["default"]
