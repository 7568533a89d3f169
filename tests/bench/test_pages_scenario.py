"""The scenario `pages`, with tiny sizes. Results are checked for plausibility, not for speed."""

import pytest

import postgres
from bench.commands import measured
from evertick.bench.scenarios.pages import PAGES
from evertick.cli.commands.bench import print_table


def test_pages_are_requested_and_their_time_and_statements_are_measured(
    postgres_server: postgres.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--jobs", "300", "--runs-per-job", "2", "--busy-runs", "200", "--days", "3", "--requests", "2")
    found = measured(postgres_server.embedded, "pages", *sizes)
    assert (found["jobs"], found["runs"]) == (300, 800)
    assert found["pages_ms"].keys() == PAGES.keys()
    for name, page in found["pages_ms"].items():
        assert 0 < page["p50"] <= page["p95"] <= page["p99"] <= page["max"], name
    slowest = found["pages_ms"]["overview"]["slowest_statements"]  # which ones, depends on the machine
    assert slowest
    assert all("." in statement and took > 0 for statement, took in slowest.items())
    assert found["pages_ms"]["busy job"]["statements_p95"] > 0
    print_table(found)
    assert "pages ms, busy job" in capsys.readouterr().out
