import json
import signal

import asyncpg
import pytest

from cli.commands import Cli
from cli.processes import evertick
from evertick.domain.access import KeyRole
from evertick.store.database import Pool
from evertick.store.tenants import broker_connections, events
from evertick.store.tenants.broker_connections import ConnectionKey, Content
from evertick.usecases.tenants import keys
from roles.dispatching import SEAL

pytestmark = pytest.mark.parametrize("backend", ["database", "api"])
URL = "https://hooks.example.invalid/events"


@pytest.fixture(autouse=True)
async def as_admin(cli: Cli, pool: Pool, backend: str) -> None:
    if backend == "api":
        cli.environment["EVERTICK_API_KEY"] = (await keys.create(pool, 1, KeyRole.ADMIN)).api_key


async def test_events_are_switched_on_listed_and_switched_off(cli: Cli, pool: Pool, backend: str) -> None:
    assert "there is no event stream" in await cli("events", "list", code=1)
    assert await cli("events", "switch-on") == "Events are kept.\n"
    await cli("jobs", "add", "report", "@daily", "--handler", "send")
    await cli("jobs", "pause", "report", "--reason", "a holiday")
    await events.give_positions(pool, 100)
    shown = await cli("events", "list", "--type", "job.created", "--type", "job.paused")
    assert [line.split()[2:4] for line in shown.splitlines()] == [["job.created", "report"], ["job.paused", "report"]]
    first, second = map(
        json.loads,
        (await cli("events", "list", "--json", "--type", "job.created", "--type", "job.paused")).splitlines(),
    )
    assert second["data"]["pause_reason"] == "a holiday"
    later = await cli("events", "list", "--cursor", first["id"], "--type", "job.paused")
    assert second["id"] in later
    assert await cli("events", "switch-off") == "No events are kept any more.\n"
    await cli("events", "stream", code=1)


async def test_a_sink_is_set_and_shown(cli: Cli, connection: asyncpg.Connection, backend: str) -> None:
    assert await cli("events", "set-sink", URL, "--type", "run.finished", "--header", "X-Team:a") == (
        f"Events go to {URL}.\n"
    )
    shown = await cli.json("events", "stream")
    assert shown["sink"] == {"type": "http", "url": URL, "headers": {"X-Team": "a"}}
    assert shown["types"] == ["run.finished"]
    assert shown["status"]["failures"] == 0
    await connection.execute("UPDATE event_sinks SET delivered_at = '2026-06-15 14:00+00', last_error = 'not now'")
    printed = await cli("events", "stream")
    assert all(text in printed for text in ('["run.finished"]', '"2026-06-15T14:00:00Z"', '"not now"'))
    assert (await cli.run("events", "set-sink", "ftp://example.com")).exit_code == 2
    assert (await cli.run("events", "set-sink", "pigeon")).exit_code == 2
    assert (await cli.run("events", "set-sink", URL, "--set", "topic=events")).exit_code == 2
    assert (await cli.run("events", "set-sink", URL, "--type", "rumour")).exit_code == 2
    changes = await connection.fetch("SELECT actor FROM audit_log WHERE action = 'put_event_stream'")
    assert {change["actor"] == "command line" for change in changes} == {backend == "database"}


async def test_a_broker_is_set_as_sink(cli: Cli, pool: Pool, backend: str) -> None:
    settings = Content("kafka", '{"bootstrap_servers": ["broker.example.invalid"]}', {})
    assert await broker_connections.add(pool, ConnectionKey(1, "warehouse"), settings, SEAL)
    words = ("events", "set-sink", "kafka", "--set", "connection=warehouse", "--set", "topic=events")
    assert await cli(*words) == "Events go to kafka over connection warehouse.\n"
    assert (await cli.json("events", "stream"))["sink"] == {
        "type": "kafka",
        "connection": "warehouse",
        "topic": "events",
    }
    assert "did you mean 'warehouse'?" in await cli(*words[:4], "connection=wharehouse", *words[5:], code=2)


async def test_events_are_followed_until_a_signal_stops_it(cli: Cli, pool: Pool, backend: str) -> None:
    await cli("events", "switch-on")
    async with evertick(
        *("events", "list", "--follow", "--json", "--type", "job.paused", *cli.options), **cli.environment
    ) as following:
        for name in ("a", "b"):
            await cli("jobs", "add", name, "@daily", "--handler", "send")
            await cli("jobs", "pause", name)
            await events.give_positions(pool, 100)
            assert json.loads(await following.line())["data"]["job_name"] == name
        assert await following.stop(signal.SIGINT) == 0
