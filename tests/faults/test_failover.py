"""The database fails over to a standby, with everything at work: with commits that get lost, and without.

What is judged is the history on the standby that was promoted. Commits that it never received were never made: their
ticks are due again, so each tick is in one place there, and nothing may be left open. Starts that it knows nothing of
are counted. An epoch may be smaller there than it was on the old primary only where taking that partition was lost. A
token never is: whoever received one of a lost attempt receives larger ones afterwards. Nothing is restarted: all
processes have a URL with both hosts.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest

from evertick.store.engine import lanes
from faults.campaign import LONG, OUTCOMES, SHORT, Campaign, Load, everything
from faults.checkers import lost_before_started_again
from faults.ledger import read_deliveries
from faults.replication import Pair, replicated
from faults.report import CampaignReport

pytestmark = pytest.mark.slow

EPOCHS = "SELECT array_agg(epoch ORDER BY partition) FROM partitions"
SEQS = "SELECT array_agg(seq) FROM attempts"
FIRST_NEW_SEQS = """
SELECT json_object_agg(job_id, seq)
  FROM (SELECT job_id, min(seq) AS seq FROM attempts WHERE seq <> ALL($1::bigint[]) GROUP BY job_id) AS made
"""


async def _lossy(pair: Pair, folder: Path, load: Load) -> CampaignReport:
    async with everything(pair.url(), folder, load) as campaign:
        cluster = campaign.cluster
        parted_us = time.time_ns() // 1000
        await pair.part()
        done = await cluster.value(OUTCOMES)
        await asyncio.sleep(load.lost_seconds)  # so long commits are made that will be lost
        await cluster.until_count(OUTCOMES, done + load.jobs)
        epochs = await cluster.value(EPOCHS)
        await cluster.close_connections()
        pair.primary.kill()
        kept = await pair.standby.ask(EPOCHS)
        seqs = await pair.standby.ask(SEQS)
        # Before the promotion: right after it workers record again.
        assert await pair.standby.ask(OUTCOMES) < done + load.jobs
        await pair.promote()
        promoted_us = time.time_ns() // 1000
        await cluster.open()
        report = await campaign.end(await lanes.clock(cluster.pool))
        final = await cluster.value(EPOCHS)
        fallen = [each for each, epoch in enumerate(epochs) if final[each] < epoch]
        assert [each for each in fallen if kept[each] == epochs[each]] == []
        assert await campaign.missing(parted_us, promoted_us) == 0
        await _compare_tokens(campaign, seqs, promoted_us)
        _print_first_run(campaign, promoted_us)
        return report


async def _compare_tokens(campaign: Campaign, known: list[int], promoted_us: int) -> None:
    """Each attempt that the promoted server made has a larger token than all that the job's receivers saw before."""
    before: dict[int, int] = {}
    for delivery in read_deliveries(campaign.cluster.folder.glob("*.receipts")):
        if delivery.at_us < promoted_us:
            job_id = delivery.run_key.job_id
            before[job_id] = max(before.get(job_id, 0), delivery.seq)
    made = json.loads(await campaign.cluster.value(FIRST_NEW_SEQS, known))
    assert before
    assert {job_id: seq for job_id, seq in before.items() if made.get(str(job_id), seq + 1) <= seq} == {}


def _print_first_run(campaign: Campaign, promoted_us: int) -> float:
    """How many seconds after the promotion the first run started."""
    first_us = min(line["at_us"] for line in campaign.cluster.receipts() if line["at_us"] > promoted_us)
    seconds: float = (first_us - promoted_us) / 1e6
    sys.stdout.write(f"first run {seconds:.1f} s after the promotion\n")
    return seconds


async def test_a_fail_over_that_loses_commits_leaves_nothing_stuck(data_dir: Path, tmp_path: Path) -> None:
    async with replicated(data_dir) as pair:
        await _lossy(pair, tmp_path, SHORT)


@pytest.mark.campaign
@pytest.mark.parametrize("number", range(3))
async def test_many_jobs_through_a_fail_over_that_loses_commits(data_dir: Path, tmp_path: Path, number: int) -> None:
    async with replicated(data_dir) as pair:
        report = await _lossy(pair, tmp_path, LONG)
        assert report.unrecorded > 0


async def _lossless(pair: Pair, folder: Path, load: Load) -> CampaignReport:
    await pair.make_synchronous()
    async with everything(pair.url(), folder, load) as campaign:
        cluster = campaign.cluster
        await cluster.close_connections()
        pair.primary.kill()
        await pair.promote()
        promoted_us = time.time_ns() // 1000
        await cluster.open()
        report = await campaign.end(await lanes.clock(cluster.pool))
        assert await campaign.missing(0, 0) == 0
        _print_first_run(campaign, promoted_us)
        assert report.unrecorded == 0
        return report


async def test_a_synchronous_fail_over_loses_nothing(data_dir: Path, tmp_path: Path) -> None:
    async with replicated(data_dir) as pair:
        await _lossless(pair, tmp_path, SHORT)


@pytest.mark.campaign
async def test_many_jobs_through_a_synchronous_fail_over(data_dir: Path, tmp_path: Path) -> None:
    async with replicated(data_dir) as pair:
        await _lossless(pair, tmp_path, LONG)


LEASES = {"EVERTICK_LEASE_SECONDS": "30"}
"""As long as they are by default, so that they outlast the outage and nothing has to be done twice."""
BACK_SECONDS = 60
"""So long after the promotion the first run starts, at most, though the old primary neither answers nor closes.

It once took two minutes."""


async def _left_behind(data_dir: Path, tmp_path: Path, *, standby_first: bool, is_timed: bool) -> None:
    async with replicated(data_dir) as pair:
        await pair.make_synchronous()
        url = pair.url(standby_first=standby_first)
        async with everything(url, tmp_path, SHORT, **LEASES) as campaign:
            cluster = campaign.cluster
            await cluster.close_connections()
            pair.primary.freeze()
            await asyncio.sleep(2)  # so long it takes a watchdog of the servers to act
            await pair.promote()
            promoted_us = time.time_ns() // 1000
            cluster.own_url = pair.standby.url()
            await cluster.open()
            report = await campaign.end(await lanes.clock(cluster.pool))
            back_seconds = _print_first_run(campaign, promoted_us)
            if is_timed:
                assert back_seconds < BACK_SECONDS
                assert report.summary.longest_gap_seconds < BACK_SECONDS
                assert report.summary.doubled == 0
            deliveries = read_deliveries(cluster.folder.glob("*.receipts"))
            again = lost_before_started_again((await cluster.ledger()).jobs, deliveries)
            assert again.ok, again
            assert await campaign.missing(0, 0) == 0


async def test_a_primary_that_freezes_is_left_behind(data_dir: Path, tmp_path: Path) -> None:
    await _left_behind(data_dir, tmp_path, standby_first=False, is_timed=False)


@pytest.mark.campaign
@pytest.mark.parametrize("standby_first", [False, True])
async def test_a_primary_that_freezes_is_left_behind_in_time(
    data_dir: Path, tmp_path: Path, *, standby_first: bool
) -> None:
    await _left_behind(data_dir, tmp_path, standby_first=standby_first, is_timed=True)
