"""`evertick preview` as people and scripts use it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from evertick import __version__, tzdb
from evertick.cli.main import app

NEW_YORK = ("--timezone", "America/New_York")
BEFORE_GAP = ("--after", "2026-03-07T00:00:00Z")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["preview", *arguments])


def run_json(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def fires(*arguments: str) -> list[str]:
    return [row["fire_at"] for row in run_json(*arguments)["upcoming"]]


def test_the_table_has_description_times_notes_and_findings() -> None:
    lines = run("30 2 * * *", *NEW_YORK, *BEFORE_GAP, "--count", "3").stdout.splitlines()
    assert lines[0] == "At 02:30 every day, America/New_York time"
    assert lines[1] == f"30 2 * * *   (tz database {tzdb.VERSION})"
    assert lines[3].split() == ["#", "America/New_York", "UTC", "note"]
    assert [line.strip() for line in lines[5:8]] == [
        "1  Sat 2026-03-07 02:30 -05:00 EST  2026-03-07 07:30",
        "2  Sun 2026-03-08 03:00 -04:00 EDT  2026-03-08 07:00  02:30 does not exist on this day: caught up at 03:00",
        "3  Mon 2026-03-09 02:30 -04:00 EDT  2026-03-09 06:30",
    ]
    assert lines[9].startswith("info  02:30 does not exist on Sunday 8 March 2026")
    assert lines[9].endswith("(dst_gap)")


def test_a_lost_time_stands_at_its_place() -> None:
    lines = run("30 2 * * *", *NEW_YORK, *BEFORE_GAP, "--count", "2", "--dst-gap", "skip").stdout.splitlines()
    assert [line.split()[0] for line in lines[5:8]] == ["1", "-", "2"]
    assert "Sun 2026-03-08 02:30" in lines[6]
    assert "left out by dst_gap skip" in lines[6]


def test_in_utc_one_column_of_times_is_enough() -> None:
    lines = run("7 2 * * *", *BEFORE_GAP, "--count", "1").stdout.splitlines()
    assert lines[3].split() == ["#", "UTC"]
    assert lines[5] == "1  Sat 2026-03-07 02:07"


def test_seconds_are_shown_where_they_matter() -> None:
    assert "2026-03-07 00:00:30" in run("every 30s", *BEFORE_GAP, "--count", "1").stdout


def test_a_pipe_gets_whole_lines() -> None:
    lines = run("0 0 1-7 */2 1", *NEW_YORK, *BEFORE_GAP).stdout.splitlines()
    assert lines[0].endswith("in January, March, May, July, September and November, America/New_York time")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("manual",), "No fire times of its own."),
        (("2026-06-09T13:00:00Z",), "Nothing after that."),
        (("7 2 * * *", "--key", "k", "--jitter-seconds", "60"), "Jitter: each is due "),
        (("H 2 * * *",), "info  `H` follows from the job's id: without one, these times are an example"),
    ],
)
def test_what_a_reader_may_wonder_about_is_said(arguments: tuple[str, ...], line: str) -> None:
    assert any(found.startswith(line) for found in run(*arguments, *BEFORE_GAP).stdout.splitlines())


def test_json_is_one_stable_object() -> None:
    found = run_json("30 2 * * *", *NEW_YORK, *BEFORE_GAP, "--count", "2", "--preset", "quartz")
    assert list(found) == ["schedule", "timezone", "tzdb", "description", "upcoming", "lost", "findings"]
    assert found["schedule"] == "30 2 * * *"
    assert found["timezone"] == "America/New_York"
    assert found["tzdb"] == tzdb.VERSION
    assert found["upcoming"] == [
        {
            "fire_at": "2026-03-07T07:30:00Z",
            "due_at": "2026-03-07T07:30:00Z",
            "local": "2026-03-07T02:30:00-05:00",
            "notes": [],
        },
        {
            "fire_at": "2026-03-09T06:30:00Z",
            "due_at": "2026-03-09T06:30:00Z",
            "local": "2026-03-09T02:30:00-04:00",
            "notes": ["after the clocks go forward 1 hour"],
        },
    ]
    assert found["lost"] == [
        {
            "at": "2026-03-08T07:00:00Z",
            "ticks": 1,
            "first_local": "2026-03-08T02:30:00",
            "last_local": "2026-03-08T02:30:00",
            "note": "02:30 does not exist on this day: left out by dst_gap skip",
        }
    ]
    assert [(finding["code"], finding["severity"]) for finding in found["findings"]] == [("dst_gap", "warning")]


@pytest.mark.parametrize(
    ("options", "second"),
    [
        ((), "2026-03-08T07:00:00Z"),
        (("--preset", "airflow"), "2026-03-08T07:30:00Z"),
        (("--preset", "airflow", "--dst-gap", "skip"), "2026-03-09T06:30:00Z"),
    ],
)
def test_a_preset_holds_where_no_option_says_otherwise(options: tuple[str, ...], second: str) -> None:
    assert fires("30 2 * * *", *NEW_YORK, *BEFORE_GAP, "--count", "2", *options)[1] == second


def test_the_window_is_kept() -> None:
    window = ("--start-at", "2026-03-08T00:00:00Z", "--end-at", "2026-03-09T00:00:00+01:00")
    assert fires("7 2 * * *", *BEFORE_GAP, *window) == ["2026-03-08T02:07:00Z"]


def test_a_key_decides_hash_and_jitter() -> None:
    def due(key: str) -> list[str]:
        found = run_json("H 2 * * *", *BEFORE_GAP, "--count", "1", "--jitter-seconds", "60", "--key", key)
        return [found["upcoming"][0]["fire_at"], found["upcoming"][0]["due_at"]]

    first = due("job_0000000000001")
    assert due("job_0000000000001") == first
    assert len({tuple(due(key)) for key in ("job_0000000000001", "job_0000000000002", "any text")}) == 3


def test_an_interval_begins_at_after_as_for_a_job_created_then() -> None:
    assert fires("every 1h", "--after", "2026-03-07T00:12:34Z", "--count", "1") == ["2026-03-07T01:12:34Z"]
    assert fires("now", "--after", "2026-03-07T00:12:34Z") == ["2026-03-07T00:12:34Z"]


def test_without_after_the_clock_is_read() -> None:
    (first, second) = fires("* * * * *", "--count", "2")
    assert first < second


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("61 * * * *",), "Error in schedule: cron field minute '61': expected 0-59"),
        (("",), "Error in schedule: is empty"),
        (("0 0 30 2 *",), "Error in schedule: never fires: day 30 does not occur in month 2"),
        (("9999-12-31T23:59:59-14:00",), "Error in schedule: "),
        (("DTSTART:00010101T000000Z\nRRULE:FREQ=DAILY", *NEW_YORK), "Error in schedule: "),
        (("@daily", "--timezone", "America/New_Yrk"), "Error in timezone: 'America/New_Yrk' is not a zone"),
        (("@daily", "--timezone", "../etc/passwd"), "Error in timezone: "),
        (("@daily", "--after", "nonsense"), "Error in after: 'nonsense': write an instant with its offset"),
        (("@daily", "--after", "2026-03-07T00:00:00"), "Error in after: '2026-03-07T00:00:00': write an instant"),
        (("@daily", "--after", "0001-01-01T00:00:00+14:00"), "Error in after: "),
        (("@daily", "--after", "9999-12-31T23:59:59-14:00"), "Error in after: "),
        (("@daily", "--start-at", "x"), "Error in start_at: "),
        (("@daily", "--end-at", ""), "Error in end_at: "),
        (("@daily", "--start-at", "2026-03-08T00:00Z", "--end-at", "2026-03-07T00:00Z"), "Error in end_at: "),
        (("@daily", "--preset", "vixie"), "Error in preset: 'vixie' is not one of evertick, kubernetes"),
    ],
)
def test_bad_input_is_one_line_that_names_the_field(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_bad_input_is_an_object_for_scripts() -> None:
    result = run("61 * * * *", "--json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert json.loads(result.stderr) == {
        "error": {"field": "schedule", "reason": "cron field minute '61': expected 0-59"}
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("--count", "0"),
        ("--count", "1001"),
        ("--count", "x"),
        ("--dst-gap", "x"),
        ("--jitter-seconds", "-1"),
        ("--no",),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = run("@daily", *arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_the_version_names_the_time_zone_database_too() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"evertick {__version__} (tz database {tzdb.VERSION})\n")


def test_the_installed_command_works_in_a_process_of_its_own() -> None:
    command = Path(sys.executable).with_name("evertick")
    good = subprocess.run(
        [command, "preview", "30 2 * * *", *NEW_YORK, *BEFORE_GAP, "--json"], capture_output=True, text=True, check=True
    )
    assert len(json.loads(good.stdout)["upcoming"]) == 10
    bad = subprocess.run([command, "preview", "every nothing"], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("Error in schedule: ")
