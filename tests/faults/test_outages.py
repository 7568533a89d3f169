"""Scheduler and worker are down for an hour or a day, on a virtual clock, with jobs of mixed policies."""

import logging
import sys
from datetime import timedelta

import pytest

from evertick.domain.policies import MissedWindow
from evertick.domain.states import RunReason
from faults.outage import LATE, MAX_MISSED, Recovery, virtual_cluster

ON_TIME_SECONDS = 1.0
"""The clock moves by whole seconds."""


@pytest.fixture(autouse=True)
def no_log_of_failures(caplog: pytest.LogCaptureFixture) -> None:
    """Very many runs fail on purpose."""
    caplog.set_level(logging.ERROR, "evertick.worker")


async def _survive(url: str, jobs: int, outage: timedelta) -> Recovery:
    async with virtual_cluster(url, days=3) as cluster:
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
    assert max(recovery.catch_ups(MissedWindow.RUN_ONCE)) == 1
    assert max(recovery.catch_ups(MissedWindow.RUN_ALL)) == MAX_MISSED
    assert all(reasons[each][RunReason.TICK] > 0 for each in MissedWindow)
    assert sum(recovery.catch_up_curve()) == sum(reasons[each][reason] for each in MissedWindow for reason in LATE)
    lags = recovery.on_time_lags()
    assert lags
    assert max(lags) <= ON_TIME_SECONDS


async def test_an_hour_of_outage_leaves_no_tick_unaccounted_for(database_url: str) -> None:
    _check(await _survive(database_url, 1_000, timedelta(hours=1)))


@pytest.mark.campaign
@pytest.mark.parametrize("hours", [1, 24])
async def test_an_outage_of_ten_thousand_jobs_leaves_no_tick_unaccounted_for(database_url: str, hours: int) -> None:
    _check(await _survive(database_url, 10_000, timedelta(hours=hours)))
