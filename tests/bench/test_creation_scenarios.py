"""The scenarios register, webhooks, load and idle, with tiny sizes."""

import postgres
from bench.commands import assert_all_ran_once, assert_ranked, measured


def test_register_counts_the_jobs_of_each_way(postgres_server: postgres.Server) -> None:
    sizes = ("--jobs", "1200", "--singles", "150", "--connections", "8")
    found = measured(postgres_server.embedded, "register", *sizes)
    assert (found["jobs"], found["missing"], found["duplicates"]) == (2550, 0, 0)
    assert found["batch"]["statuses"] == {"200": 1}
    assert found["single"]["statuses"] == {"201": 150}
    assert_ranked(found["single"]["latency_ms"])
    assert found["client"]["jobs"] == 1200


def test_webhooks_reach_their_receivers_once(postgres_server: postgres.Server) -> None:
    found = measured(postgres_server.embedded, "webhooks", "--deliveries", "200", "--hosts", "3")
    assert_all_ran_once(found, 200)
    assert found["received"] == 200
    assert_ranked(found["lag_ms"])


def test_load_reports_the_bytes_of_a_job(postgres_server: postgres.Server) -> None:
    found = measured(postgres_server.embedded, "load", "--jobs", "2000", "--rules", "30")
    assert (found["jobs"], found["missing"], found["duplicates"]) == (2000, 0, 0)
    sizes = found["bytes_per_job"]
    assert sizes["total"] == sizes["jobs"] + sizes["job_versions"] + sizes["timers"] > 0


def test_idle_reports_the_cost_when_nothing_is_due(postgres_server: postgres.Server) -> None:
    found = measured(
        postgres_server.embedded, "idle", "--jobs", "500", "--rules", "10", "--seconds", "2", "--calm-seconds", "0"
    )
    assert found["runs"] == 0
    assert found["statements_per_second"] >= 0
    # The server of a URL may be anywhere.
    assert found["cores_used"].keys() == {"scheduler", "worker"}
