"""The scenario `forecast`, with tiny sizes."""

import pytest

import postgres
from bench.commands import measured

DAY_HOURS = 24


@pytest.mark.parametrize("distribution", ["shared", "spread", "distinct"])
def test_forecast_counts_the_timers_that_it_wrote(postgres_server: postgres.Server, distribution: str) -> None:
    words = "--jobs", "500", "--rules", "20", "--distribution", distribution, "--repeats", "1"
    found = measured(postgres_server.embedded, "forecast", *words)
    left_out = 60 if distribution == "shared" else 10  # each of its rules has about 25 jobs
    assert 500 - left_out <= found["jobs"] <= 500, "all but those that are due after a day: they fired in this minute"
    assert (found["distribution"], found["is_estimate"]) == (distribution, False)
    assert found["peak_after_advice"] <= found["peak"]
    if distribution == "distinct":
        assert found["runs"] == 500 * DAY_HOURS
