"""`evertick bench schedules`: its JSON object and its table. Results are checked for plausibility, not for speed."""

import json

from click.testing import CliRunner

from evertick.cli.main import app

SMALL = ["bench", "schedules", "--seconds", "0.01", "--jobs", "500", "--rules", "50"]


def test_the_json_object_has_the_documented_keys() -> None:
    result = CliRunner().invoke(app, [*SMALL, "--seed", "7", "--json"])
    assert result.exit_code == 0
    measured = json.loads(result.stdout)
    assert measured["scenario"] == "schedules"
    assert measured["runs"] == 500
    assert 0 < measured["plans"] <= 50
    assert measured["rate_per_second"] > 0
    assert all(rate > 0 for rate in measured["next_fires_per_second"].values())
    assert measured["settings"] == {"seconds": 0.01, "jobs": 500, "rules": 50, "seed": 7}
    assert {"python", "cores", "evertick", "tzdb"} <= measured["machine"].keys()


def test_the_default_output_is_a_table() -> None:
    result = CliRunner().invoke(app, SMALL)
    assert result.exit_code == 0
    assert "cron daily 02:30, New York" in result.stdout
    assert "timers planned per CPU second" in result.stdout


def test_a_size_out_of_range_is_wrong_usage() -> None:
    assert CliRunner().invoke(app, ["bench", "schedules", "--jobs", "0"]).exit_code == 2
