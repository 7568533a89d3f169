"""The scenarios growth, age and floor, with tiny sizes. Results are checked for plausibility, not for speed."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import postgres
from bench.commands import assert_all_ran_once, bench, measured
from evertick.cli.commands.bench import print_table

pytestmark = pytest.mark.slow


def test_growth_has_a_point_for_each_size_and_draws_them(postgres_server: postgres.Server, tmp_path: Path) -> None:
    svg = tmp_path / "growth.svg"
    sizes = ("--sizes", "300,1200", "--due", "400", "--rules", "10", "--svg", str(svg))
    found = measured(postgres_server.embedded, "growth", *sizes)
    assert_all_ran_once(found, 800)
    assert [(point["jobs"], point["loaded"]) for point in found["points"]] == [(300, 300), (1200, 900)]
    for point in found["points"]:
        assert_all_ran_once(point["hot_second"], 400)
        looked = point["look_up_ms"]
        assert [looked[name]["timers"] for name in ("nothing_due", "due")] == [0, 400]
        assert all(each["groups"] == 16 and 0 < each["p50"] <= each["max"] for each in looked.values())
        assert min(point["us_per_job_loaded"], point["us_per_run"], point["bytes_per_job"]) > 0
        assert point["scheduler_peak_memory_mb"] > 0
    assert ET.parse(svg).getroot().tag.endswith("svg")


def test_age_runs_the_same_jobs_again_and_again(postgres_server: postgres.Server) -> None:
    found = measured(postgres_server.embedded, "age", "--runs", "450", "--step", "300", "--pin-seconds", "1")
    assert_all_ran_once(found, 900)
    assert [step["until_run"] for step in found["steps"]] == [300, 600]
    for step in (*found["steps"], found["pinned"]):
        assert_all_ran_once(step, 300)
        assert step["rate_per_second"] > 0
        assert step["bytes_per_run"].keys() == {"attempts", "outcomes", "total"}
        assert step["bytes"].keys() == {"timers", "lanes", "leases"}
    assert sum(step["bytes_per_run"]["total"] for step in found["steps"]) > 0


def test_floor_writes_the_rows_of_all_runs(postgres_server: postgres.Server) -> None:
    found = measured(postgres_server.embedded, "floor", "--runs", "9000")
    assert (found["runs"], found["missing"]) == (9000, 0)
    assert found["rows"].keys() == {"attempts", "outcomes", "attempts_and_outcomes", "timers"}
    assert all(each["rate_per_second"] > 0 for each in found["rows"].values())
    assert found["runs_per_second"] > 0


@pytest.mark.parametrize("sizes", ["", "10,", "ten", "0", "20,10", "10,10", "99999999999"])
def test_sizes_that_do_not_grow_are_wrong_usage(sizes: str) -> None:
    bench("growth", "--sizes", sizes, code=2)


def test_the_table_has_lines_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(
        {"steps": [{"runs": 10, "bytes": {"lanes": 8192}}, {"runs": 20, "bytes": {"lanes": 16384}}], "pinned": None}
    )
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        *("steps 1 runs 10", "steps 1, bytes lanes 8,192"),
        *("steps 2 runs 20", "steps 2, bytes lanes 16,384", "pinned -"),
    ]
