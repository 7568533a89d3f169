"""REPLACE, webhooks, pull workers and the embedded server under kill -9: what other fault tests leave out."""

import os
import random
import signal
from pathlib import Path

import pytest

from evertick.store.engine import lanes
from evertick.store.server.embedded import EmbeddedServer
from faults.campaign import LONG, OUTCOMES, SHORT, Campaign, Load, add_jobs, at_work, everything
from faults.full_cluster import FIRST, FullCluster
from faults.webhook_receiver import receiving
from ports import free_port


async def _kill_in_turn(campaign: Campaign, load: Load, rounds: int) -> None:
    """Kill a dispatcher or a scheduler again and again, at random moments, and start another."""
    chance, cluster = random.Random(11), campaign.cluster
    victims = [(cluster.dispatcher(), cluster.dispatcher), (cluster.scheduler(), cluster.scheduler)]
    for number in range(rounds):
        await campaign.more_outcomes(chance.randrange(1, 10 * load.jobs))
        process, another = victims[number % 2]
        process.kill()
        victims[number % 2] = (another(), another)


async def _survive_kills(url: str, folder: Path, load: Load, rounds: int) -> None:
    async with everything(url, folder, load) as campaign:
        await _kill_in_turn(campaign, load, rounds)
        report = await campaign.end(await lanes.clock(campaign.cluster.pool))
        assert report.unrecorded == 0
        assert await campaign.missing(0, 0) == 0


async def test_dispatchers_and_schedulers_killed_in_turn_lose_no_webhook(database_url: str, tmp_path: Path) -> None:
    await _survive_kills(database_url, tmp_path, SHORT, 2)


@pytest.mark.campaign
async def test_dispatchers_and_schedulers_killed_many_times(database_url: str, tmp_path: Path) -> None:
    await _survive_kills(database_url, tmp_path, LONG, 40)


async def test_an_embedded_server_that_is_killed_and_comes_back_has_lost_nothing(
    data_dir: Path, tmp_path: Path
) -> None:
    """First the server, which its process brings back; then that process, too."""
    server, port = EmbeddedServer(data_dir), free_port()
    address = f"http://127.0.0.1:{port}"
    async with receiving(tmp_path, serves=FIRST) as receiver:
        cluster = FullCluster(server.url, tmp_path, receiver.url)
        try:
            process = cluster.up(data_dir, port)
            await cluster.begin()
            await add_jobs(cluster, SHORT)
            cluster.direct_worker()
            cluster.pull_worker(address)
            async with at_work(cluster, address) as campaign:
                await campaign.more_outcomes(10 * SHORT.jobs)
                done = await cluster.value(OUTCOMES)
                await cluster.close_connections()
                os.kill(_postmaster(server), signal.SIGKILL)
                process.wait_for("starting it again")
                server.start()  # waits until it answers
                await cluster.open()
                assert await cluster.value(OUTCOMES) >= done
                await campaign.more_outcomes(10 * SHORT.jobs)
                process.kill()
                cluster.up(data_dir, port)
                report = await campaign.end(await lanes.clock(cluster.pool))
                assert report.unrecorded == 0
                assert await campaign.missing(0, 0) == 0
        finally:
            await cluster.close()
            server.stop()


def _postmaster(server: EmbeddedServer) -> int:
    return int((server.cluster / "postmaster.pid").read_text(encoding="utf-8").split("\n", 1)[0])
