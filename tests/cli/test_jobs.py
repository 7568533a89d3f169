import json

import asyncpg
import pytest

from cli.commands import Cli

pytestmark = pytest.mark.parametrize("backend", ["database", "api"])


async def test_a_job_is_added_listed_and_shown(cli: Cli) -> None:
    said = await cli("jobs", "add", "refresh", "0 9 * * *", "-z", "Asia/Tokyo", "--handler", "refresh")
    assert said.startswith("refresh is job_")
    assert "first run at" in said
    listed = (await cli("jobs", "list")).splitlines()
    assert [line.split()[1:3] for line in listed[2:]] == [["refresh", "active"]]
    shown = await cli.json("jobs", "show", "refresh")
    assert shown["timezone"] == "Asia/Tokyo"
    assert shown["target"] == {"type": "worker", "queue": "default", "handler": "refresh"}
    assert shown["next_run_at"].endswith("T00:00:00Z")
    assert await cli.json("jobs", "show", shown["job_id"]) == shown
    assert "Asia/Tokyo" in await cli("jobs", "show", "refresh")


async def test_every_field_of_a_job_can_be_set(cli: Cli) -> None:
    arguments = ("--target-url", "https://example.com/hook", "--payload", '{"a": [1]}', "--label", "team:growth")
    fields = ("--set", "max_retries=7", "--set", "priority=high", "--set", 'labels={"team": "other"}')
    job = await cli.json("jobs", "add", "report", "@daily", *arguments, *fields)
    assert job["target"]["url"] == "https://example.com/hook"
    assert job["payload"] == {"a": [1]}
    assert (job["max_retries"], job["priority"]) == (7, "high")
    assert job["labels"] == {"team": "other"}, "what is set by name goes before"


async def test_a_name_is_taken_once_unless_the_job_is_to_be_replaced(cli: Cli) -> None:
    add = ("jobs", "add", "refresh", "@daily", "--handler")
    await cli(*add, "one")
    assert "'refresh' is taken by another job" in await cli(*add, "two", code=1)
    await cli(*add, "two", "--replace")
    job = await cli.json("jobs", "show", "refresh")
    assert (job["target"]["handler"], job["spec_version"]) == ("two", 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("@daily",), "--handler or --target-url"),
        (("@daily", "--handler", "h", "--target-url", "https://example.com"), "--handler or --target-url"),
        (("@daily", "--target-url", "https://example.com", "--queue", "q"), "--queue needs --handler"),
        (("@daily", "--handler", "h", "--payload", "{"), "--payload must be JSON"),
        (("@daily", "--handler", "h", "--label", "team"), "--label must be NAME:VALUE"),
        (("@daily", "--handler", "h", "--label", "a:b", "--label", "a:c"), "--label gives 'a' two values"),
    ],
)
async def test_an_invalid_job_is_wrong_usage(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    assert words in await cli("jobs", "add", "odd", *arguments, code=2)
    assert await cli.json("jobs", "list") == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("* * *",), "Error: schedule: "),
        (("@daily", "--set", "max_retris=4"), "did you mean 'max_retries'?"),
        (("@daily", "--set", "if_match=4"), "Error: if_match: "),
        (("@daily", "--set", "max_retries=-1", "--set", "priority=odd"), "Error: priority: "),
    ],
)
async def test_invalid_fields_are_reported(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    assert words in await cli("jobs", "add", "odd", *arguments, "--handler", "h", code=2)
    assert await cli.json("jobs", "list") == []


async def test_some_fields_of_a_job_are_edited_and_others_stay(cli: Cli) -> None:
    await cli("jobs", "add", "refresh", "@daily", "--handler", "h", "--payload", "[1.0]", "--set", "max_retries=7")
    said = await cli("jobs", "edit", "refresh", "--schedule", "0 9 * * *", "-z", "Asia/Tokyo")
    assert said.startswith("refresh is at version 2: next run at 20")
    edited = await cli.json(
        "jobs", "edit", "refresh", "--set", "max_retries=null", "--set", "name=other", "--label", "team:growth"
    )
    assert (edited["schedule"], edited["timezone"], edited["payload"]) == ("0 9 * * *", "Asia/Tokyo", [1.0])
    assert (edited["name"], edited["max_retries"], edited["labels"]) == ("other", 3, {"team": "growth"})
    assert await cli.json("jobs", "show", "other") == edited


async def test_an_invalid_edit_changes_nothing(cli: Cli) -> None:
    await cli("jobs", "add", "refresh", "@daily", "--handler", "h")
    assert "there is nothing to change" in await cli("jobs", "edit", "refresh", code=2)
    assert "there is no job 'odd'" in await cli("jobs", "edit", "odd", "--schedule", "@daily", code=1)
    assert "Error: schedule: " in (await cli.run("jobs", "edit", "refresh", "--schedule", "* * *")).stderr
    assert (await cli.json("jobs", "show", "refresh"))["spec_version"] == 1


async def test_a_list_is_cut_where_it_is_said_and_filtered(cli: Cli) -> None:
    for name in ("a-one", "a-two", "b-one"):
        await cli("jobs", "add", name, "@daily", "--handler", "h", "--queue", name, "--label", f"name:{name}")
    await cli("jobs", "pause", "a-two")

    async def names(*arguments: str) -> list[str]:
        return [job["name"] for job in await cli.json("jobs", "list", *arguments)]

    assert await names() == ["a-one", "a-two", "b-one"]
    assert await names("--limit", "2") == ["a-one", "a-two"]
    assert "There are more" in (await cli.run("jobs", "list", "--limit", "2")).stderr
    assert "There are more" not in (await cli.run("jobs", "list", "--limit", "3")).stderr
    assert await names("--status", "paused") == ["a-two"]
    assert await names("--name-prefix", "a-") == ["a-one", "a-two"]
    assert await names("--label", "name:b-one") == ["b-one"]
    assert await names("--queue", "a-one") == ["a-one"]


async def test_an_empty_list_says_so_to_people_and_nothing_to_machines(cli: Cli) -> None:
    assert await cli("jobs", "list") == "No jobs.\n"
    assert await cli.json("jobs", "list") == []


async def test_a_job_is_paused_and_resumed(cli: Cli) -> None:
    await cli("jobs", "add", "refresh", "@daily", "--handler", "h")
    assert await cli("jobs", "pause", "refresh", "--reason", "provider is down") == "refresh is paused.\n"
    paused = await cli.json("jobs", "show", "refresh")
    assert (paused["status"], paused["pause_reason"]) == ("paused", "provider is down")
    assert (await cli.json("jobs", "resume", "refresh", "--missed", "run_once"))["status"] == "active"


async def test_a_job_is_triggered_with_a_payload_of_its_own(cli: Cli, connection: asyncpg.Connection) -> None:
    await cli("jobs", "add", "by-hand", "manual", "--handler", "h")
    run = await cli.json("jobs", "trigger", "by-hand", "--payload", '{"a": 1}')
    assert json.loads(await connection.fetchval("SELECT payload FROM requested_runs")) == {"a": 1}
    (listed,) = await cli.json("runs", "list", "--job", "by-hand")
    assert (listed["run_id"], listed["status"], listed["reason"]) == (run["run_id"], "pending", "manual")


async def test_a_deleted_job_is_gone(cli: Cli) -> None:
    await cli("jobs", "add", "refresh", "@daily", "--handler", "h")
    assert await cli("jobs", "delete", "refresh") == "refresh is deleted.\n"
    assert await cli("jobs", "show", "refresh", code=1) == "Error: there is no job 'refresh'\n"
    assert await cli("jobs", "delete", "job_0000000000000", code=1) == "Error: there is no job job_0000000000000\n"


async def test_a_name_is_shown_as_it_is(cli: Cli) -> None:
    await cli("jobs", "add", "[red]odd[/red]", "@daily", "--handler", "h")
    assert "[red]odd[/red]" in await cli("jobs", "list")


async def test_a_job_is_found_by_its_whole_name(cli: Cli) -> None:
    for name in ("refresh-all", "refresh"):
        await cli("jobs", "add", name, "@daily", "--handler", "h")
    assert (await cli.json("jobs", "show", "refresh"))["name"] == "refresh"


async def test_both_backends_show_the_same(on_database: Cli, over_api: Cli, backend: str) -> None:
    here, there = (on_database, over_api) if backend == "database" else (over_api, on_database)
    fields = ("--set", "retry_delay_seconds=1.5", "--set", "start_at=2020-01-01T00:00:00Z", "--payload", "2.0")
    added = await here.json("jobs", "add", "refresh", "@daily", "--handler", "h", *fields)
    assert await there.json("jobs", "show", "refresh") == added
    for arguments in (("jobs", "list"), ("jobs", "show", "refresh"), ("jobs", "list", "--json")):
        assert await here(*arguments) == await there(*arguments)
