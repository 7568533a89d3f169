import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from cli.commands import Cli

pytestmark = pytest.mark.parametrize("backend", ["database", "api"])


def job(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "schedule": "@daily", "target": {"type": "worker", "handler": "h"}, **fields}


def lines(*jobs: object) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in jobs)


async def names(cli: Cli) -> list[str]:
    return [each["name"] for each in await cli.json("jobs", "list", "--limit", "1000")]


async def test_each_line_of_a_file_becomes_a_job(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "jobs.ndjson"
    path.write_text(lines(job("one"), job("two", max_retries=7)), encoding="utf-8")
    assert "two" in await cli("jobs", "import", str(path))
    assert (await cli.json("jobs", "show", "two"))["max_retries"] == 7


async def test_an_array_may_come_from_a_pipe(cli: Cli) -> None:
    said = await cli.json("jobs", "import", "-", stdin=json.dumps([job("one"), job("two")], indent=2))
    assert [(each["line"], each["name"]) for each in said["imported"]] == [(1, "one"), (2, "two")]
    assert said["imported"][0]["job_id"] == (await cli.json("jobs", "show", "one"))["job_id"]
    assert said["failed"] == []


async def test_invalid_lines_are_reported_and_the_others_imported(cli: Cli) -> None:
    text = lines(job("one"), job("odd", schedule="* * *")) + "{\n\n" + lines(job("one"), 7)
    said = await cli("jobs", "import", "-", code=1, stdin=text)
    assert "Error: line 2: schedule: " in said
    assert "Error: line 3: is not JSON: " in said
    assert "Error: line 5: name: is taken by line 1 of this batch" in said
    assert "Error: line 6: job: " in said
    assert "4 lines could not be imported." in said
    assert await names(cli) == ["one"]


async def test_jobs_of_the_same_names_are_replaced_only_when_asked_for(cli: Cli) -> None:
    await cli("jobs", "import", "-", stdin=lines(job("one")))
    changed = lines(job("one", max_retries=7), job("", schedule="@daily"), job("two", priority="odd"))
    assert "line 1: name: is taken by another job" in await cli("jobs", "import", "-", code=1, stdin=changed)
    said = await cli("jobs", "import", "--replace", "-", code=1, stdin=changed)
    assert "line 2: name: is needed to replace a job" in said
    assert "line 3: priority: " in said
    assert (await cli.json("jobs", "show", "one"))["max_retries"] == 7


async def test_a_large_file_goes_in_several_batches(cli: Cli) -> None:
    wanted = [f"job-{number}" for number in range(600)]
    said = await cli.json("jobs", "import", "-", stdin=lines(*map(job, wanted)))
    assert [each["name"] for each in said["imported"]] == wanted
    assert await names(cli) == wanted


async def test_a_terminal_gets_a_progress_bar(cli: Cli) -> None:
    watched = Cli.at(*cli.options, **cli.environment, FORCE_COLOR="1")
    shown = await watched.run("jobs", "import", "-", stdin=lines(*map(job, map(str, range(40)))))
    assert "Importing" in shown.stderr
    assert "Importing" not in (await cli.run("jobs", "import", "-", stdin=lines(*map(job, map(str, range(40)))))).stderr


async def test_an_import_that_breaks_off_says_how_far_it_came(cli: Cli, connection: asyncpg.Connection) -> None:
    await connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'admin_shutdown', MESSAGE = 'stopping'; END $$"
    )
    await connection.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.name = 'job-300') EXECUTE FUNCTION refuse()"
    )
    said = await cli.run("jobs", "import", "-", stdin=lines(*(job(f"job-{number}") for number in range(400))))
    assert said.exit_code in {1, 3}
    assert "250 jobs of 400 imported before the error, the last from line 250." in said.stderr
    assert len(await names(cli)) == 250


async def test_a_file_that_is_neither_is_wrong_usage(cli: Cli, tmp_path: Path) -> None:
    assert "not a JSON array" in await cli("jobs", "import", "-", code=2, stdin="[1,")
    path = tmp_path / "jobs.ndjson"
    path.write_bytes(b"\xff")
    assert "is not UTF-8" in await cli("jobs", "import", str(path), code=2)
    assert await cli("jobs", "import", "-", stdin="") == "No jobs.\n"


async def test_a_crontab_is_imported_too(cli: Cli) -> None:
    arguments = ("jobs", "import", "crontab", "-", "--target-url", "https://example.com/cron")
    said = await cli(*arguments, code=1, stdin="@daily tidy\n@daily tidy %odd\n61 * * * * odd\n")
    assert "Error: line 3: cron field minute '61'" in said
    again = await cli(*arguments, code=1, stdin="@daily tidy\n")
    assert "line 1: name: 'crontab-tidy' is taken by another job" in again
    await cli(*arguments, "--replace", stdin="@daily tidy\n")


async def test_what_is_exported_can_be_imported_again(cli: Cli) -> None:
    full = job(
        "full", labels={"team": "growth"}, payload={"a": [1, None]}, max_retries=7, start_at="2040-01-01T00:00:00Z"
    )
    await cli("jobs", "import", "-", stdin=lines(job("plain"), full))
    before = [await cli.json("jobs", "show", name) for name in ("plain", "full")]
    for file_format in ("ndjson", "json", "yaml"):
        exported = await cli("jobs", "export", "--format", file_format)
        assert exported.count("max_retries") == 1, "defaults are left out"
        said = await cli.json("jobs", "import", "-", "--replace", "--dry-run", "--format", file_format, stdin=exported)
        assert said == {"created": [], "changed": {}, "unchanged": ["plain", "full"], "failed": []}
        for name in ("plain", "full"):
            await cli("jobs", "delete", name)
        await cli("jobs", "import", "-", "--format", file_format, stdin=exported)
        again = [await cli.json("jobs", "show", name) for name in ("plain", "full")]
        assert [_definition(each) for each in again] == [_definition(each) for each in before]
    assert "full" not in await cli("jobs", "export", "--label", "team:other")


async def test_an_export_has_what_was_set_and_not_what_follows_from_it(cli: Cli) -> None:
    target = {"type": "worker", "queue": "default", "handler": "h"}
    for schedule in ("every 5m", "H H * * *", "RRULE:FREQ=WEEKLY;COUNT=5", "2040-01-01T00:00:00Z"):
        derived = job("derived", schedule=schedule, target=target, concurrency_key="account")
        chosen = derived | {"name": "chosen", "concurrency_key": "c", "max_running": 3, "misfire_grace_seconds": 7}
        await cli("jobs", "import", "-", "--replace", stdin=lines(derived, chosen))
        exported = {each["name"]: each for each in map(json.loads, (await cli("jobs", "export")).splitlines())}
        assert exported == {"derived": derived, "chosen": chosen}
        assert (await cli.json("jobs", "show", "derived"))["max_running"] == 1, "which is in force"


def _definition(answer: dict[str, Any]) -> dict[str, Any]:
    changing = {"job_id", "created_at", "updated_at", "next_run_at"}
    return {name: value for name, value in answer.items() if name not in changing}


async def test_an_answer_of_the_api_is_imported_without_its_read_only_fields(cli: Cli) -> None:
    await cli("jobs", "import", "-", stdin=lines(job("one")))
    answer = await cli.json("jobs", "show", "one")
    await cli("jobs", "import", "-", "--replace", stdin=lines(answer | {"max_retries": 9}))
    assert (await cli.json("jobs", "show", "one"))["max_retries"] == 9
    shown = await cli("jobs", "show", "one", "--json")
    await cli("jobs", "import", "-", "--replace", stdin=shown.replace('"max_retries": 9', '"max_retries": 8'))
    assert (await cli.json("jobs", "show", "one"))["max_retries"] == 8


async def test_a_dry_run_says_what_would_change_and_changes_nothing(cli: Cli, tmp_path: Path) -> None:
    await cli("jobs", "import", "-", stdin=lines(job("one", max_retries=7)))
    path = tmp_path / "jobs.yaml"
    path.write_text(
        "- {name: one, schedule: every 5m, target: {type: worker, handler: h}}\n"
        "- {name: two, schedule: '@daily', target: {type: worker, handler: h}}\n"
        "- {name: odd, schedule: '@never', target: {type: worker, handler: h}}\n",
        encoding="utf-8",
    )
    result = await cli.run("jobs", "import", str(path), "--replace", "--dry-run")
    assert result.exit_code == 1
    assert '~ one: schedule: "@daily" → "every 5m"' in result.stdout
    assert "~ one: max_retries: 7 → default" in result.stdout
    assert "+ two: new" in result.stdout
    assert "Nothing was imported." in result.stdout
    assert "line 3: schedule: " in result.stderr
    assert await names(cli) == ["one"]
    assert "use --replace" in await cli("jobs", "import", str(path), "--dry-run", code=1)
