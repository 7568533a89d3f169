"""The lines between the roles and their database: cut, silent, half open, lossy, slow. Nothing is lost, all go on."""

import asyncio
import functools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.cluster import BOUND_US
from faults.proxied_cluster import ROLES, cluster_with_two_hosts, proxied_cluster
from faults.proxy import Proxy

pytestmark = pytest.mark.slow

lossy = functools.partial(Proxy.reset_instead_of_reply, every=40)

FAULTS: dict[str, Callable[[Proxy], None]] = {
    "cut": Proxy.cut,
    "silent": Proxy.silence,
    "replies are lost": Proxy.lose_replies,
    "reset after the statement was done": lossy,
}

FAR_AWAY = {"EVERTICK_HEARTBEAT_TIMEOUT_SECONDS": "10", "EVERTICK_LEASE_SECONDS": "30"}
"""Several round trips, as they have to be set so far from a database."""

STOP_SECONDS = 180
"""Far more than the half minute for which a worker tries to tell how its attempts ended. It once took five minutes."""
USED_FIRST = pytest.param(lambda used, spare: f"{used},{spare}", id="used first")
SPARE_FIRST = pytest.param(lambda used, spare: f"{spare},{used}", id="spare first", marks=pytest.mark.campaign)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_all_roles_go_on_after_what_happened_to_their_connections(
    database_url: str, tmp_path: Path, fault: Callable[[Proxy], None]
) -> None:
    async with proxied_cluster(database_url, tmp_path) as cluster:
        cluster.inject(fault)
        await cluster.works()
        await cluster.end()


@pytest.mark.parametrize("order", [USED_FIRST, SPARE_FIRST])
async def test_all_roles_go_on_with_the_second_host_when_the_first_one_freezes(
    database_url: str, tmp_path: Path, order: Callable[[str, str], str]
) -> None:
    async with cluster_with_two_hosts(database_url, tmp_path, order) as cluster:
        cluster.inject(Proxy.freeze, ["used"])
        await cluster.works()
        await cluster.end()


async def test_without_a_database_the_api_is_alive_but_not_ready_and_every_role_stops_when_asked(
    database_url: str, tmp_path: Path
) -> None:
    async with proxied_cluster(database_url, tmp_path) as cluster:
        cluster.inject(Proxy.freeze)

        async def is_unready() -> bool:
            return await cluster.ready() == 503

        await cluster.cluster.until(is_unready, "the API says that it is not ready")
        assert await cluster.alive() == 200
        stopping = (asyncio.to_thread(each.terminate, STOP_SECONDS) for each in cluster.processes.values())
        assert await asyncio.gather(*stopping) == [0] * len(ROLES)


@pytest.mark.campaign
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_one_role_alone_goes_on_after_what_happens_to_its_connections_again_and_again(
    database_url: str, tmp_path: Path, role: str, fault: Callable[[Proxy], None]
) -> None:
    async with proxied_cluster(database_url, tmp_path) as cluster:
        for _ in range(5):
            cluster.inject(fault, [role])
            await cluster.works()
        await cluster.end(BOUND_US)


async def test_a_database_that_is_slow_for_all_roles_loses_nothing(database_url: str, tmp_path: Path) -> None:
    async with proxied_cluster(database_url, tmp_path, FAR_AWAY, "every 3s") as cluster:
        cluster.inject(lambda proxy: proxy.delay(0.1))
        await cluster.works()
        await cluster.end()


@pytest.mark.campaign
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("round_trip_seconds", [0.2, 0.5, 1.0, 2.0])
async def test_slow_round_trips_lose_nothing(
    database_url: str, tmp_path: Path, role: str, round_trip_seconds: float
) -> None:
    # A firing is one round trip, and one tick of a job: what is due more often than that falls behind.
    async with proxied_cluster(database_url, tmp_path, FAR_AWAY, "every 5s") as cluster:
        cluster.inject(lambda proxy: proxy.delay(round_trip_seconds / 2), [role])
        until = time.monotonic() + 120
        while time.monotonic() < until:
            await cluster.works(120)
        await cluster.end(BOUND_US)
