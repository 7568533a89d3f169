"""The scenarios drain, hot-second, steady and lag, with tiny sizes. Results are checked for plausibility, not speed."""

import postgres
from bench.commands import assert_all_ran_once, assert_ranked, measured


def test_drain_runs_everything_that_is_ready_once(postgres_server: postgres.Server) -> None:
    found = measured(postgres_server.embedded, "drain", "--runs", "3000", "--payload-bytes", "50", "--workers", "2")
    assert_all_ran_once(found, 3000)
    assert found["rate_per_second"] > 0
    assert found["with_process_start_seconds"] >= found["seconds"]
    assert {"runs": 3000, "payload_bytes": 50, "workers": 2}.items() <= found["settings"].items()


def test_hot_second_counts_from_the_instant_at_which_all_is_due(postgres_server: postgres.Server) -> None:
    found = measured(postgres_server.embedded, "hot-second", "--jobs", "1500", "--due", "1000", "--rules", "20")
    assert_all_ran_once(found, 1000)
    assert found["first_start_seconds"] <= found["last_finish_seconds"] <= found["seconds"]
    assert_ranked(found["lag_ms"])
    assert found["cpu_us_per_run"].keys() == {"scheduler", "worker"}
    # The lag of the last start counts from that instant too.
    assert found["lag_ms"]["max"] <= 1000 * found["last_finish_seconds"] + 1


def test_steady_fires_each_tick_of_its_interval(postgres_server: postgres.Server) -> None:
    found = measured(postgres_server.embedded, "steady", "--jobs", "400", "--rate", "100", "--seconds", "2")
    assert found["period_seconds"] == 4
    assert_all_ran_once(found, 200)
    assert found["gaps"] == 0
    assert_ranked(found["lag_ms"])
    assert found["cores_used"].keys() == {"scheduler", "worker"}
    assert found["due_look_up_ms"]["groups"] == 3 * 16


def test_lag_tells_one_offs_from_what_runs_now(postgres_server: postgres.Server) -> None:
    found = measured(postgres_server.embedded, "lag", "--jobs", "60", "--seconds", "1")
    assert_all_ran_once(found, 120)
    assert_ranked(found["lag_ms"])
    assert_ranked(found["immediate_lag_ms"])
