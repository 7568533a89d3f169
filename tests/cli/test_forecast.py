"""`evertick forecast`, over the API and on a database."""

import pytest

from cli.commands import Cli
from schedules import daily, daily_in_half_a_day

BOTH = pytest.mark.parametrize("backend", ["database", "api"])


async def add_crowd(cli: Cli, count: int) -> None:
    schedule = daily(daily_in_half_a_day())
    for number in range(count):
        await cli("jobs", "add", f"report-{number}", schedule, "--handler", "h")


@BOTH
async def test_the_forecast_shows_a_strip_and_the_hottest_minutes(cli: Cli) -> None:
    assert "Nothing fires." in await cli("forecast")
    await add_crowd(cli, 3)
    shown = await cli("forecast")
    assert "3 firings of 3 jobs" in shown
    assert "█" in shown
    assert "report-0" in shown
    assert (await cli.json("forecast", "30d"))["total"] == 90
    assert (await cli.json("forecast", "--label", "team:none"))["total"] == 0


async def test_an_advice_is_applied_and_undone_on_a_database_without_a_server(cli: Cli) -> None:
    await add_crowd(cli, 30)
    advice = await cli.json("forecast", "--advice")
    assert advice["peak_after"] < advice["peak_before"] == 30
    assert "30 jobs jitter_seconds" in await cli("forecast", "--advice")
    refused = await cli.run("forecast", "--apply", stdin="n\n")
    assert refused.exit_code == 1
    applied = await cli("forecast", "--apply", "--yes")
    assert "30 jobs have jitter_seconds" in applied
    assert (await cli.json("forecast"))["peak"] == advice["peak_after"]
    assert "no jitter of up to an hour" in await cli("forecast", "--apply", "--yes")
    undone = await cli.json("forecast", "--undo", "last")
    assert (undone["status"], undone["undone"]) == ("undone", 30)
    assert (await cli.json("forecast"))["peak"] == 30
    assert "undone" in await cli("forecast", "--smears")


async def test_wrong_usage_is_refused(cli: Cli) -> None:
    await cli("forecast", "--apply", "--undo", "last", code=2)
    await cli("forecast", "1y", code=2)
    await cli("forecast", "--undo", "last", code=2)
    await cli("forecast", "--undo", "smr_nothing", code=1)
