import asyncpg
import pytest

from cli.commands import Cli


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
    arguments = ("--url", "https://example.com/hook", "--payload", '{"a": [1]}', "--label", "team:growth")
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
        (("@daily",), "--handler or --url"),
        (("@daily", "--handler", "h", "--url", "https://example.com"), "--handler or --url"),
        (("@daily", "--url", "https://example.com", "--queue", "q"), "--queue goes with --handler"),
        (("@daily", "--handler", "h", "--payload", "{"), "--payload must be JSON"),
        (("@daily", "--handler", "h", "--label", "team"), "--label must read NAME:VALUE"),
        (("* * *", "--handler", "h"), "schedule: "),
        (("@daily", "--handler", "h", "--set", "max_retris=4"), "did you mean 'max_retries'?"),
    ],
)
async def test_a_job_that_cannot_be_is_wrong_usage(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    assert words in await cli("jobs", "add", "odd", *arguments, code=2)
    assert await cli.json("jobs", "list") == []


async def test_a_list_is_cut_where_it_is_said_and_filtered(cli: Cli) -> None:
    for name in ("a-one", "a-two", "b-one"):
        await cli("jobs", "add", name, "@daily", "--handler", "h", "--queue", name, "--label", f"name:{name}")
    await cli("jobs", "pause", "a-two")

    async def names(*arguments: str) -> list[str]:
        return [job["name"] for job in await cli.json("jobs", "list", *arguments)]

    assert await names() == ["a-one", "a-two", "b-one"]
    assert await names("--limit", "2") == ["a-one", "a-two"]
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
    assert await connection.fetchval("SELECT payload FROM requested_runs") == '{"a": 1}'
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


async def test_a_tenant_that_is_not_there_is_wrong_usage(cli: Cli) -> None:
    said = await cli("jobs", "list", "--tenant", "nobody", code=2)
    assert said == "Error: tenant: there is none called 'nobody'\n"
