import asyncpg
import pytest

from cli.commands import Cli
from evertick.store.tenants import alerts
from evertick.store.tenants.alerts import NewAlert

pytestmark = pytest.mark.parametrize("backend", ["database", "api"])
URL = "https://hooks.example.invalid/alerts"


async def test_the_target_of_notices_is_set_shown_tested_and_removed(
    cli: Cli, connection: asyncpg.Connection, backend: str
) -> None:
    assert "there is no alert target" in await cli("alerts", "target", code=1)
    assert await cli("alerts", "set-target", URL, "--condition", "late") == f"Notices go to {URL}.\n"
    shown = await cli.json("alerts", "target")
    assert (shown["url"], shown["conditions"]) == (URL, ["late"])
    run_id = (await cli.json("alerts", "test"))["run_id"]
    assert (await cli.json("runs", "show", run_id))["job_id"] == shown["job_id"]
    assert (await cli.run("alerts", "set-target", URL, "--condition", "boredom")).exit_code == 2
    assert (await cli.run("alerts", "set-target", "ftp://example.com")).exit_code == 2
    await cli("alerts", "remove-target")
    await cli("alerts", "target", code=1)
    changes = await connection.fetch("SELECT actor, action FROM audit_log WHERE action LIKE '%alert_target'")
    assert {change["action"] for change in changes} >= {"put_alert_target", "delete_alert_target"}
    assert {change["actor"] == "command line" for change in changes} == {backend == "database"}


async def test_alerts_are_listed_with_what_they_are_about(
    cli: Cli, connection: asyncpg.Connection, backend: str
) -> None:
    assert await cli("alerts", "list") == "No alerts.\n"
    await cli("alerts", "set-target", URL)
    await alerts.open_all(connection, [NewAlert(1, None, 3, "quota", "jobs", "nearly used up")])
    shown = await cli("alerts", "list", "--status", "open")
    assert all(word in shown for word in ("quota", "jobs", "open", "3", "nearly used up"))
    assert await cli.json("alerts", "list", "--status", "closed") == []


async def test_a_jobs_rules_are_set_with_its_fields(cli: Cli, backend: str) -> None:
    await cli("jobs", "add", "report", "@daily", "--handler", "send", "--set", "must_succeed_within=26h")
    await cli("jobs", "edit", "report", "--set", "alert_if_running_seconds=2x")
    job = await cli.json("jobs", "show", "report")
    assert (job["must_succeed_within"], job["alert_if_running_seconds"]) == ("26h", "2x")
    assert (await cli.run("jobs", "edit", "report", "--set", "alert_after_failures=0")).exit_code == 2
