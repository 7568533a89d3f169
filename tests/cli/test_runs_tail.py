"""`evertick runs tail`: which runs are shown, and the command as a process."""

import json
import signal
from datetime import UTC, datetime, timedelta

import pytest

from cli.commands import Cli
from cli.processes import evertick
from evertick.cli.commands.runs import ChangeTracker, print_entry
from evertick.contract.runs import Gap, Run, RunOrGap

AT = datetime(2026, 6, 1, tzinfo=UTC)


def run(name: str, status: str = "success", attempt: int = 1, error: str | None = None) -> Run:
    return Run(
        run_id=name,
        job_id="job_1",
        scheduled_at=AT,
        started_at=None,
        finished_at=None,
        duration_ms=None,
        status=status,
        attempt=attempt,
        reason="tick",
        spec_version=1,
        worker_id=None,
        result_code=None,
        error=error,
    )


def gap(count: int) -> Gap:
    until = AT + timedelta(minutes=count)
    return Gap(
        job_id="job_1", status="missed", reason="missed", scheduled_at=AT, until=until, count=count, spec_version=1
    )


def test_the_first_page_shows_the_last_runs_oldest_first() -> None:
    assert ChangeTracker(2).changes([run("c"), run("b"), run("a")]) == [run("b"), run("c")]


def test_later_pages_show_new_and_changed_runs() -> None:
    tracker = ChangeTracker(0)
    first: list[RunOrGap] = [run("b", "running"), run("a", "pending", 0), gap(1)]
    assert tracker.changes(first) == []
    newest: list[RunOrGap] = [run("c"), run("b"), run("a", "pending", 0), gap(2)]
    assert tracker.changes(newest) == [gap(2), run("b"), run("c")]
    assert tracker.changes(newest) == []
    assert tracker.changes([run("a", "running"), *newest[:2], newest[3]]) == [run("a", "running")]


def test_a_page_without_known_runs_is_a_burst() -> None:
    tracker = ChangeTracker(5)
    assert not tracker.is_burst([run("b")]), "the first page is not"
    tracker.changes([run("b"), run("a")])
    assert not tracker.is_burst([run("c"), run("b")])
    assert tracker.is_burst([run("e"), run("d")])


def test_an_error_that_is_followed_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    failed = run("a", "dead", error="\x1b[2J\x9bboom")
    print_entry(failed, as_json=False)
    print_entry(failed, as_json=True)
    plain, as_json = capsys.readouterr().out.splitlines()
    assert plain.endswith(r"\x1b[2J\x9bboom")
    assert "\x9b" not in as_json
    assert json.loads(as_json)["error"] == "\x1b[2J\x9bboom"


@pytest.mark.parametrize("backend", ["database", "api"])
async def test_runs_are_followed_until_a_signal_stops_it(cli: Cli) -> None:
    await cli("jobs", "add", "by-hand", "manual", "--handler", "h")
    before = (await cli.json("jobs", "trigger", "by-hand"))["run_id"]
    arguments = ("runs", "tail", "--job", "by-hand", "--every", "0.1", *cli.options)
    async with (
        evertick(*arguments, "--json", **cli.environment) as machines,
        evertick(*arguments, "--last", "1", **cli.environment) as people,
    ):
        assert (json.loads(await machines.line())["run_id"], before in await people.line()) == (before, True)
        again = (await cli.json("jobs", "trigger", "by-hand"))["run_id"]
        assert json.loads(await machines.line())["run_id"] == again
        assert again in await people.line()
        await cli("runs", "cancel", before)
        changed = json.loads(await machines.line())
        assert (changed["run_id"], changed["status"]) == (before, "cancelled")
        assert "cancelled" in await people.line()
        assert await machines.stop(signal.SIGINT) == 0
        assert await people.stop(signal.SIGTERM) == 0
