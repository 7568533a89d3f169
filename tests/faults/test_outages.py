"""Scheduler and worker are down for an hour or a day, on a virtual clock, with jobs of mixed policies."""

import logging
import sys
from datetime import timedelta

import pytest

from evertick.domain.policies import MissedWindow
from evertick.domain.states import RunReason
from faults.outage import LATE, MAX_MISSED, Recovery, virtual_cluster

pytestmark = pytest.mark.slow

FACTOR = 2.0
NORMAL_PER_JOB = 0.02
"""Runs per second: more than the jobs have on average, so that this is what counts as normal."""
SLOW_START_SECONDS = 20
"""What workers take at a time is found out from small numbers on."""
ON_TIME_SECONDS = 1.0
"""The clock moves by whole seconds."""


@pytest.fixture(autouse=True)
def no_log_of_failures(caplog: pytest.LogCaptureFixture) -> None:
    """Very many runs fail on purpose."""
    caplog.set_level(logging.ERROR, "evertick.worker")


async def _survive(url: str, jobs: int, outage: timedelta, **limits: float) -> Recovery:
    async with virtual_cluster(url, days=3, **limits) as cluster:
        await cluster.create(jobs)
        recovery = await cluster.survive(outage)
    verdicts = recovery.verdicts()
    curve = recovery.catch_up_curve()
    sys.stdout.write("".join(f"{verdict}\n" for verdict in verdicts))
    sys.stdout.write(f"{sum(curve)} late runs in {len(curve)} s, at most {max(curve)} in one\n")
    assert [verdict for verdict in verdicts if not verdict.ok] == []
    assert all(verdict.figures.get("ticks", jobs) >= jobs for verdict in verdicts)
    return recovery


def _check(recovery: Recovery) -> None:
    reasons = recovery.reasons()
    assert reasons[MissedWindow.SKIP][RunReason.CATCH_UP] == 0
    # The missed ticks, and the one that was late within its grace.
    assert max(recovery.runs_after(MissedWindow.SKIP)) == 1
    assert max(recovery.runs_after(MissedWindow.RUN_ONCE)) == 2
    assert max(recovery.runs_after(MissedWindow.RUN_ALL)) == MAX_MISSED + 1
    assert min(recovery.runs_after(MissedWindow.RUN_ONCE)) >= 1
    assert all(reasons[each][RunReason.TICK] > 0 for each in MissedWindow)
    assert sum(recovery.catch_up_curve()) == sum(reasons[each][reason] for each in MissedWindow for reason in LATE)
    lags = recovery.on_time_lags()
    assert len(lags) > len(recovery.jobs) / 4
    assert max(lags) <= ON_TIME_SECONDS


def _check_rate(recovery: Recovery, rate: float) -> None:
    """No second of the catch-up has more than its rate, which retries and on-time ticks use too."""
    curve = recovery.held_back_curve()
    sys.stdout.write(f"{sum(curve)} held back, in {len(curve)} s, at most {max(curve)} of {rate:.0f} in one\n")
    assert max(curve) <= rate
    assert sum(curve) / rate <= len(curve) <= 3 * sum(curve) / rate + SLOW_START_SECONDS


async def test_an_hour_of_outage_leaves_no_tick_unaccounted_for(database_url: str) -> None:
    recovery = await _survive(database_url, 1_000, timedelta(hours=1))
    _check(recovery)
    assert max(recovery.catch_ups(MissedWindow.RUN_ONCE)) == 1
    assert max(recovery.catch_ups(MissedWindow.RUN_ALL)) == MAX_MISSED


async def _catch_up(url: str, jobs: int, outage: timedelta) -> None:
    normal_rate = jobs * NORMAL_PER_JOB
    recovery = await _survive(url, jobs, outage, catch_up_factor=FACTOR, normal_rate=normal_rate)
    _check(recovery)
    _check_rate(recovery, FACTOR * normal_rate)


async def test_a_catch_up_keeps_to_its_rate_and_on_time_work_does_not_wait_for_it(database_url: str) -> None:
    await _catch_up(database_url, 500, timedelta(hours=1))


@pytest.mark.campaign
@pytest.mark.parametrize("hours", [1, 24])
async def test_an_outage_of_ten_thousand_jobs_leaves_no_tick_unaccounted_for(database_url: str, hours: int) -> None:
    await _catch_up(database_url, 10_000, timedelta(hours=hours))
