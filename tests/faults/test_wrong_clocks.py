"""Nodes and the database have wrong clocks: nothing is early, nothing fires twice.

A node's wall clock is shifted by a small library that its process loads first, so that all of its code sees the shift.
Clocks that only measure durations are left alone. The database's clock is the function `clock_at`.
"""

import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from faults.checkers import epochs_only_grow, one_run_per_tick, receivers_log
from faults.cluster import LONG_LEASES, PATIENT_GRACE, Cluster
from faults.ledger import read_deliveries

pytestmark = pytest.mark.slow

HOUR = 3600
RUNS = "SELECT count(*) FROM outcomes"
SHIFT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long shift(void) {
    const char *seconds = getenv("FAULTS_CLOCK_SHIFT");
    return seconds ? atol(seconds) : 0;
}

int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, at);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void) zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
STEPPED_CLOCK = """
CREATE TABLE clock_offset AS SELECT interval '0' AS by;
CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS 'SELECT clock_timestamp() + (SELECT by FROM evertick.clock_offset)';
"""
SECONDLY = "* * * * * *"
"""By the wall, unlike an interval, which counts from the creation of its job."""
EARLY = "SELECT count(*) FROM attempts WHERE fire_at > clock_at()"
FIRED_SINCE = "SELECT count(DISTINCT job_id) FROM attempts WHERE fire_at > $1 AND fire_at <= clock_at()"
MISSED = "SELECT coalesce(sum(ticks), 0) FROM gaps WHERE reason = 'missed'"
JOBS = 20


@pytest.fixture
def library(tmp_path: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("NOT TESTED: NODES WITH WRONG CLOCKS, because there is no C compiler to build the shift with")
    source = tmp_path / "shift.c"
    source.write_text(SHIFT, encoding="utf-8")
    built = tmp_path / "shift.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, source, "-ldl"], check=True)
    return built


def _shift(cluster: Cluster, library: Path, seconds: int) -> None:
    """Shift the clocks of all processes that are started from now on."""
    cluster.settings |= {"LD_PRELOAD": str(library), "FAULTS_CLOCK_SHIFT": str(seconds)}


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_a_node_with_a_wrong_clock_fires_nothing_early_late_or_twice(
    cluster: Cluster, library: Path, seconds: int
) -> None:
    cluster.settings |= LONG_LEASES
    right = [cluster.scheduler(), cluster.worker()]
    _shift(cluster, library, seconds)
    wrong = [cluster.scheduler(), cluster.worker(), cluster.api()]
    await cluster.jobs(40, schedule="every 1s", concurrent_policy="ALLOW", max_concurrent=100, **PATIENT_GRACE)
    await cluster.until_count(RUNS, 200)
    for each in right:  # all is left to those with wrong clocks
        assert each.terminate() == 0
    await _check_submitted(cluster, wrong[-1].log.read_text(encoding="utf-8"))
    await cluster.until_count(RUNS, await cluster.value(RUNS) + 200)
    await cluster.wait_until_idle()
    verdicts = await cluster.check(allow_gaps=False)
    assert verdicts["C4"].figures["duplicates"] == 0
    assert _is_shifted(cluster, seconds)


async def _check_submitted(cluster: Cluster, said: str) -> None:
    """A job that an API with a wrong clock takes is due by the clock of the database."""
    address, key = said.partition("Evertick is ready at ")[2].split()[0], said.partition("API key: ")[2].split()[0]
    job = {"schedule": "in 2s", "target": {"type": "worker", "queue": "faults", "handler": "note"}}
    async with httpx.AsyncClient(
        base_url=address, headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=120
    ) as api:
        (await api.post("/api/v1/jobs", json=job | {"name": "submitted"})).raise_for_status()
    due_in = await cluster.value(
        "SELECT attempts.fire_at - created_at FROM jobs JOIN attempts USING (job_id) WHERE name = 'submitted'"
        " UNION ALL SELECT timers.fire_at - created_at FROM jobs JOIN timers USING (job_id) WHERE name = 'submitted'"
    )
    assert abs(due_in - timedelta(seconds=2)) < timedelta(seconds=1)


def _is_shifted(cluster: Cluster, seconds: int) -> bool:
    """Whether the shift had an effect: receipts have the worker's wall clock."""
    times = [each.at_us for each in read_deliveries(cluster.folder.glob("*.receipts"))]
    return max(times) - min(times) > (abs(seconds) - 600) * 1e6


@pytest.fixture
async def stepped(cluster: Cluster) -> Cluster:
    """Two schedulers and a worker, with jobs that fire each second, on a clock that can be set."""
    await cluster.pool.execute(STEPPED_CLOCK)
    plain: dict[str, Any] = {"concurrent_policy": "ALLOW", "max_concurrent": 100, "missed_window": "SKIP"}
    await cluster.jobs(JOBS, schedule=SECONDLY, **plain)
    for _ in range(2):
        cluster.scheduler()
    cluster.worker()
    await cluster.until_count(RUNS, 5 * JOBS)
    return cluster


async def _set(cluster: Cluster, by: timedelta) -> None:
    """Set the database's clock so far off, and wait until every job fires by it."""
    await cluster.pool.execute("UPDATE clock_offset SET by = $1", by)
    now_at = await cluster.value("SELECT clock_at()")

    async def all_fire() -> bool:
        return bool(await cluster.value(FIRED_SINCE, now_at) == JOBS)

    await cluster.until(all_fire, "every job fires by the new time")
    await cluster.until_count(RUNS, await cluster.value(RUNS) + 5 * JOBS)


async def test_a_database_clock_that_jumps_ahead_makes_its_ticks_missed_and_none_is_fired_twice(
    stepped: Cluster,
) -> None:
    await _set(stepped, timedelta(hours=1))
    await stepped.wait_until_idle()
    assert await stepped.value(EARLY) == 0
    await stepped.check(bound_us=2 * HOUR * 1_000_000)
    assert await stepped.value(MISSED) > JOBS * (HOUR - 600)


@pytest.mark.campaign
async def test_a_database_clock_that_is_corrected_back_fires_by_the_right_time_and_nothing_twice(
    stepped: Cluster,
) -> None:
    await _set(stepped, timedelta(hours=1))
    await _set(stepped, timedelta(0))
    ahead = await stepped.value(EARLY)  # all of them by the wrong time: their tokens stay the largest for an hour
    await stepped.until_count(RUNS, await stepped.value(RUNS) + 5 * JOBS)
    await stepped.wait_until_idle()
    assert await stepped.value(EARLY) == ahead
    ledger = await stepped.ledger()
    deliveries = read_deliveries(stepped.folder.glob("*.receipts"))
    verdicts = (
        one_run_per_tick(ledger.jobs),
        receivers_log(ledger.jobs, deliveries),
        epochs_only_grow(ledger.writes),
    )
    for verdict in verdicts:
        sys.stdout.write(f"{verdict}\n")
        assert verdict.ok, verdict
