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
