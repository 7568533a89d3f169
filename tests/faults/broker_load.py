"""A dispatcher that publishes to a real broker all the time, and the judgement of what consumers can read there."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from evertick.receive import MessageRun
from evertick.store.tenants.secrets import Seal
from evertick.usecases.tenants import connections
from faults.cluster import Cluster
from real_brokers import Broker

SEAL = Seal("a key of at least thirty-two characters")
_SUCCESSES = "SELECT count(*) FROM outcomes WHERE result = 'success'"
_SETBACKS = "SELECT count(*) FROM outcomes WHERE result <> 'success'"
PATIENCE_SECONDS = 300


class BrokerLoad:
    """Jobs that fire each second, whose messages a dispatcher publishes to a broker."""

    def __init__(self, cluster: Cluster, broker: Broker) -> None:
        self.cluster = cluster
        self.broker = broker

    async def begin(self, jobs: int) -> None:
        await connections.create(self.cluster.tenant, self.broker.connection(), SEAL)
        self.cluster.scheduler()
        self.cluster.dispatcher()
        options: dict[str, Any] = {"concurrent_policy": "ALLOW", "max_concurrent": 1000, "max_retries": 100}
        await self.cluster.jobs(jobs, schedule="every 1s", target=self.broker.target(), **options)

    async def stored(self, more: int) -> None:
        """Wait until so many more messages are acknowledged."""
        await self._until_more(_SUCCESSES, more)

    async def setback(self) -> None:
        """Wait until an attempt has failed from now on."""
        await self._until_more(_SETBACKS, 1)

    async def judge(self, kills: int) -> None:
        """All that was acknowledged is there, nothing was given up, and what is there twice has equal keys."""
        await self.cluster.wait_until_idle(PATIENCE_SECONDS)
        log_messages(await self.broker.read(), self.cluster.folder / "consumer.receipts")
        assert await self.cluster.value("SELECT count(*) FROM dead_letters") == 0
        await self.cluster.check()
        setbacks = await self.cluster.value(_SETBACKS)
        sys.stdout.write(f"{self.broker.kind}: {setbacks} attempts did not succeed over {kills} kills\n")

    async def _until_more(self, query: str, more: int) -> None:
        await self.cluster.until_count(query, await self.cluster.value(query) + more, PATIENCE_SECONDS)


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
