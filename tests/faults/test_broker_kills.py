"""Brokers that are killed under a real dispatcher under load: every tick ends as C1 to C3 demand, every success was in
the broker for consumers to see (C4), and what is there twice has equal keys.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from evertick.sdk.receive import MessageRun
from evertick.store.tenants.secrets import Seal
from evertick.usecases.tenants import connections
from faults.cluster import Cluster
from real_brokers import KINDS, Broker, real_broker

pytestmark = pytest.mark.slow

SEAL = Seal("a key of at least thirty-two characters")
_SUCCESSES = "SELECT count(*) FROM outcomes WHERE result = 'success'"
_SETBACKS = "SELECT count(*) FROM outcomes WHERE result <> 'success'"
PATIENCE_SECONDS = 300


async def kill_under_load(cluster: Cluster, broker: Broker, *, jobs: int, kills: int, between: int) -> None:
    """`between`: so many messages are acknowledged before each kill, and after the last."""
    await connections.create(cluster.tenant, broker.connection(), SEAL)
    cluster.scheduler()
    cluster.dispatcher()
    options: dict[str, Any] = {"concurrent_policy": "ALLOW", "max_concurrent": 1000, "max_retries": 100}
    await cluster.jobs(jobs, schedule="every 1s", target=broker.target(), **options)
    for _ in range(kills):
        await cluster.until_count(_SUCCESSES, await cluster.value(_SUCCESSES) + between, PATIENCE_SECONDS)
        setbacks = await cluster.value(_SETBACKS)
        await broker.kill()
        await cluster.until_count(_SETBACKS, setbacks + 1, PATIENCE_SECONDS)
        await broker.start()
    await cluster.until_count(_SUCCESSES, await cluster.value(_SUCCESSES) + between, PATIENCE_SECONDS)
    await cluster.wait_until_idle(PATIENCE_SECONDS)
    log_messages(await broker.read(), cluster.folder / "consumer.receipts")
    assert await cluster.value("SELECT count(*) FROM dead_letters") == 0
    await cluster.check()
    sys.stdout.write(f"{broker.kind}: {await cluster.value(_SETBACKS)} attempts did not succeed over {kills} kills\n")


def log_messages(runs: Iterable[MessageRun], log: Path) -> None:
    """What consumers saw, in the format of all receivers of fault tests."""
    lines = [
        {
            "run_id": run.run_id,
            "idempotency_key": run.idempotency_key,
            "token": run.token,
            "attempt": run.attempt,
            "at_us": 0,
            "worker": "consumer",
        }
        for run in runs
    ]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


async def test_a_redis_that_is_killed_under_a_dispatcher_has_every_success(cluster: Cluster) -> None:
    async with real_broker("redis_stream") as broker:
        await kill_under_load(cluster, broker, jobs=50, kills=1, between=100)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", KINDS)
async def test_a_broker_that_is_killed_again_and_again_has_every_success(cluster: Cluster, kind: str) -> None:
    async with real_broker(kind) as broker:
        await kill_under_load(cluster, broker, jobs=200, kills=2, between=1000)
