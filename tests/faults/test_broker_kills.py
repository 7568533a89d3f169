"""Brokers that are killed under a real dispatcher under load: every tick ends as C1 to C3 demand, every success was in
the broker for consumers to see (C4), and what is there twice has equal keys.
"""

import pytest

from faults.broker_load import BrokerLoad
from faults.cluster import Cluster
from real_brokers import KINDS, Broker, real_broker

pytestmark = pytest.mark.slow


async def kill_under_load(cluster: Cluster, broker: Broker, *, jobs: int, kills: int, between: int) -> None:
    """`between`: so many messages are acknowledged before each kill, and after the last."""
    load = BrokerLoad(cluster, broker)
    await load.begin(jobs)
    for _ in range(kills):
        await load.stored(between)
        await broker.kill()
        await load.setback()
        await broker.start()
    await load.stored(between)
    await load.judge(kills)


async def test_a_redis_that_is_killed_under_a_dispatcher_has_every_success(cluster: Cluster) -> None:
    async with real_broker("redis_stream") as broker:
        await kill_under_load(cluster, broker, jobs=50, kills=1, between=100)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", KINDS)
async def test_a_broker_that_is_killed_again_and_again_has_every_success(cluster: Cluster, kind: str) -> None:
    async with real_broker(kind) as broker:
        await kill_under_load(cluster, broker, jobs=200, kills=2, between=1000)
