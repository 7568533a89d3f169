import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.commands import Cli
from evertick.cli.main import app

CRONTAB = """\
SHELL=/bin/bash
CRON_TZ=Asia/Tokyo
0 9 * * 1-5 report --to boss%Hello
@daily /opt/backup.sh
"""
IMPORT = ("jobs", "import", "crontab")


@pytest.fixture
def crontab(tmp_path: Path) -> Path:
    return written(tmp_path / "nightly.cron", CRONTAB)


def written(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_text(text, encoding=encoding)
    return path


async def test_each_entry_becomes_a_job(cli: Cli, crontab: Path) -> None:
    said = await cli(*IMPORT, str(crontab), "--handler", "run_command", "--queue", "cron")
    assert "nightly-backup-sh" in said
    assert "SHELL=/bin/bash" in said
    job = await cli.json("jobs", "show", "nightly-report-to-boss")
    assert (job["schedule"], job["timezone"]) == ("0 9 * * 1-5", "Asia/Tokyo")
    assert job["target"] == {"type": "worker", "queue": "cron", "handler": "run_command"}
    assert job["payload"] == {"command": "report --to boss", "stdin": "Hello\n", "env": {"SHELL": "/bin/bash"}}


async def test_jobs_may_be_delivered_by_http_with_other_fields_for_all(cli: Cli, crontab: Path) -> None:
    arguments = ("--target-url", "https://example.com/cron", "--set", "timeout_seconds=3600")
    said = await cli.json(*IMPORT, str(crontab), *arguments)
    assert [each["line"] for each in said["imported"]] == [3, 4]
    job = await cli.json("jobs", "show", said["imported"][0]["job_id"])
    assert (job["target"]["url"], job["timeout_seconds"]) == ("https://example.com/cron", 3600)


async def test_a_system_crontab_keeps_the_user_in_the_payload(cli: Cli, tmp_path: Path) -> None:
    path = written(tmp_path / "crontab", "17 * * * * root tidy\n")
    said = await cli.json(*IMPORT, str(path), "--system", "--handler", "h", "--timezone", "Europe/Paris")
    assert said["imported"][0]["payload"] == {"command": "tidy", "stdin": None, "env": {}, "user": "root"}
    assert said["imported"][0]["timezone"] == "Europe/Paris"


async def test_importing_again_fails_line_by_line_unless_jobs_are_to_be_replaced(cli: Cli, crontab: Path) -> None:
    again = (*IMPORT, str(crontab), "--handler", "h")
    await cli(*again)
    said = await cli(*again, code=1)
    assert "line 3: name: 'nightly-report-to-boss' is taken by another job" in said
    assert "2 lines could not be imported" in said
    await cli(*again, "--replace")
    assert len(await cli.json("jobs", "list")) == 2


async def test_lines_that_fail_do_not_keep_back_the_others(cli: Cli, crontab: Path) -> None:
    written(crontab, "61 * * * * odd\n@daily fine\n@reboot start\n")
    said = await cli(*IMPORT, str(crontab), "--handler", "h", code=1)
    assert "Error: line 1: cron field minute '61'" in said
    assert [job["name"] for job in await cli.json("jobs", "list")] == ["nightly-fine"]


async def test_many_entries_are_imported_in_one_go(cli: Cli, crontab: Path) -> None:
    written(crontab, "".join(f"{n} * * * * task {n}\n" for n in range(60)))
    await cli(*IMPORT, str(crontab), "--handler", "h")
    assert len(await cli.json("jobs", "list", "--limit", "100")) == 60


async def test_a_dry_run_makes_nothing(cli: Cli, crontab: Path) -> None:
    said = await cli(*IMPORT, str(crontab), "--handler", "h", "--dry-run")
    assert "nightly-report-to-boss" in said
    assert await cli.json("jobs", "list") == []


async def test_a_dry_run_shows_when_each_job_would_run_next(cli: Cli, crontab: Path) -> None:
    written(crontab, "0 0 1 1 * celebrate\n")
    year = datetime.now(UTC).year + 1
    for arguments in (("--dry-run",), ()):
        assert f"{year}-01-01 00:00" in await cli(*IMPORT, str(crontab), "--handler", "h", *arguments)


async def test_a_crontab_may_come_from_a_pipe_and_its_zone_is_asked_for() -> None:
    arguments = [*IMPORT, "-", "--handler", "h", "--dry-run", "--json"]
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments, "@daily tidy\n")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["imported"][0]["name"] == "crontab-tidy"
    assert "--timezone" in said["not_carried_over"][0]["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--handler or --target-url"),
        (("--handler", "h", "--target-url", "https://example.com"), "--handler or --target-url"),
        (("--target-url", "https://example.com", "--queue", "q"), "--queue needs --handler"),
    ],
)
async def test_an_import_without_a_clear_target_is_wrong_usage(
    cli: Cli, crontab: Path, arguments: tuple[str, ...], words: str
) -> None:
    assert words in await cli(*IMPORT, str(crontab), *arguments, code=2)


async def test_a_dry_run_refuses_what_an_import_would(cli: Cli, crontab: Path) -> None:
    said = await cli(*IMPORT, str(crontab), "--handler", "h", "--set", "max_retris=1", "--dry-run", code=1)
    assert "did you mean 'max_retries'?" in said


async def test_a_file_that_is_no_text_is_wrong_usage(cli: Cli, crontab: Path) -> None:
    written(crontab, "@daily café\n", "latin-1")
    assert "is not UTF-8" in await cli(*IMPORT, str(crontab), "--handler", "h", code=2)
