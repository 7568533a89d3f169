"""Scenarios that create or run jobs, with tiny sizes. Results are checked for plausibility, not speed."""

import json
import shutil
import sys

import pytest
from hypothesis import given, strategies as st

import postgres
from bench.commands import assert_all_ran_once, assert_ranked, bench, measured
from engine import AT
from evertick.bench.scenarios.steady import SteadyOptions, expected_ticks, recurring_jobs

GROWTH_MB = 24
"""What the scheduler may grow by after its cache of rules is full, because allocators keep some memory."""


def test_drain_runs_everything_that_is_ready_once(postgres_server: postgres.Server) -> None:
    found = measured(postgres_server.embedded, "drain", "--runs", "3000", "--payload-bytes", "50", "--workers", "2")
    assert_all_ran_once(found, 3000)
    assert found["rate_per_second"] > 0
    assert found["with_process_start_seconds"] >= found["seconds"]
    assert found["cpu_us_per_run"].keys() == {"worker"}
    assert {"runs": 3000, "payload_bytes": 50, "workers": 2}.items() <= found["settings"].items()


def test_brokers_publishes_everything_that_is_ready_once(postgres_server: postgres.Server) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("NOT TESTED WITH REDIS: there is no redis-server; on Debian, apt-get install redis-server")
    found = measured(postgres_server.embedded, "brokers", "--messages", "1000", "--payload-bytes", "50")
    assert_all_ran_once(found, 1000)
    assert found["rate_per_second"] > 0


@pytest.mark.parametrize(
    ("scenario", "default"), [("brokers", "redis"), ("growth", "100000,1000000,10000000")], ids=["brokers", "growth"]
)
def test_the_help_shows_a_default_as_a_user_would_type_it(scenario: str, default: str) -> None:
    shown = "".join(bench(scenario, "--help").stdout.replace("│", "").split())
    assert f"[default:{default}]" in shown


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
    assert found["scheduler_memory_mb"].keys() == {"start", "middle", "end"}
    assert 0 < max(found["scheduler_memory_mb"].values()) <= found["scheduler_peak_memory_mb"]


def test_lag_tells_one_offs_from_what_runs_now(postgres_server: postgres.Server) -> None:
    found = measured(postgres_server.embedded, "lag", "--jobs", "60", "--seconds", "1")
    assert_all_ran_once(found, 120)
    assert_ranked(found["lag_ms"])
    assert_ranked(found["immediate_lag_ms"])


def test_submit_counts_the_jobs_of_each_way(postgres_server: postgres.Server) -> None:
    found = measured(postgres_server.embedded, "submit", "--submits", "40", "--connections", "2")
    assert [found[way]["jobs"] for way in ("own", "transaction", "function")] == [40, 40, 40]
    assert (found["missing"], found["duplicates"]) == (0, 0)


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


@given(jobs=st.integers(1, 60), rate=st.integers(1, 20), seconds=st.integers(1, 40), offset=st.integers(0, 100))
def test_each_tick_of_the_interval_is_expected(jobs: int, rate: int, seconds: int, offset: int) -> None:
    options = SteadyOptions(jobs=jobs, rate=rate, seconds=seconds)
    interval = range(offset, offset + seconds)
    period, stride = options.period_seconds, options.stride
    ticks = sum((second - number * stride) % period == 0 for second in interval for number in range(jobs))
    assert expected_ticks(options, offset) == ticks


@given(jobs=st.integers(1, 10**7), rate=st.integers(1, 10**5))
def test_about_as_many_fire_each_second_as_asked_for(jobs: int, rate: int) -> None:
    options = SteadyOptions(jobs=jobs, rate=rate, seconds=1)
    assert jobs / options.period_seconds <= rate or options.period_seconds == 1


@given(jobs=st.integers(1, 60), rate=st.integers(1, 20))
def test_jobs_share_a_rule_unless_each_is_to_have_its_own(jobs: int, rate: int) -> None:
    def rules(*, distinct: bool) -> int:
        options = SteadyOptions(jobs=jobs, rate=rate, distinct_rules=distinct)
        return len({(job["start_at"], job.get("end_at")) for job in recurring_jobs(options, AT)})

    period = SteadyOptions(jobs=jobs, rate=rate).period_seconds
    assert rules(distinct=False) == min(jobs, period)
    assert rules(distinct=True) == jobs


@pytest.mark.campaign
def test_memory_stays_flat_with_more_rules_than_the_scheduler_keeps(postgres_server: postgres.Server) -> None:
    sizes = ("--jobs", "300000", "--rate", "1000", "--seconds", "600", "--distinct-rules")
    found = measured(postgres_server.embedded, "steady", *sizes)
    sys.stdout.write(json.dumps(found, indent=1))
    assert_all_ran_once(found, 600_000)
    # By the middle each rule was used once.
    memory = found["scheduler_memory_mb"]
    assert memory["end"] - memory["middle"] <= GROWTH_MB
