"""A cluster with every role and two tenants: one has direct workers and webhooks, the other a worker over the API.

Each start of a handler and each webhook is a line in a log, with the tenant that owns the payload and the tenant that
the receiver serves.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evertick.domain.access import KeyRole
from evertick.store.tenants import tenants
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create_many import create_many
from evertick.usecases.tenants import keys
from faults.cluster import Cluster
from faults.processes import Process

FIRST, SECOND = "first", "second"
SERVES = "FAULTS_TENANT"
READY = "Evertick is ready"
RECURRING = "recurring"
"""How the names of jobs begin that come again and again, so that each must fire after every fault."""
RETRIED: dict[str, Any] = {"misfire_grace_seconds": 60, "max_retries": 20, "retry_delay_seconds": 0.2}
WORKER_TARGET = {"type": "worker", "queue": "faults", "handler": "stay"}


class FullCluster(Cluster):
    """What `Cluster` has, and the rest of the product."""

    def __init__(self, url: str, folder: Path, hook_url: str) -> None:
        super().__init__(url, folder)
        self._hook_url = hook_url
        self._batches = 0

    def launch(self, command: str, *arguments: str, url: str | None = None, **environment: str) -> Process:
        """In a thread of its own, as its clients and receivers go on meanwhile: so it waits."""
        process = super().launch(command, *arguments, url=url, **environment)
        process.wait_for(READY)
        return process

    async def begin(self) -> None:
        """Open, and make a second tenant and all keys."""
        await self.open()
        row = await tenants.add(self.pool, SECOND, weight=1)
        assert row is not None
        self.second = row.tenant_id
        self.editors = {
            FIRST: (await keys.create(self.pool, 1, KeyRole.EDITOR)).api_key,
            SECOND: (await keys.create(self.pool, self.second, KeyRole.EDITOR)).api_key,
        }
        self._pulls = (await keys.create(self.pool, self.second, KeyRole.WORKER)).api_key

    def direct_worker(self) -> Process:
        return self.launch("worker", "faults.worker_app:app", **{SERVES: FIRST})

    def api_address(self) -> str:
        """The address of an API that was started for this."""
        return _address(self.api())

    def up(self, data_dir: Path, port: int) -> Process:
        """The whole product with its embedded server in one process."""
        own = {"EVERTICK_DATABASE_URL": "", "EVERTICK_DATA_DIR": str(data_dir)}
        return self.launch("up", "--port", str(port), **own)

    def pull_worker(self, address: str, key: str | None = None, serves: str = SECOND) -> Process:
        own = {SERVES: serves, "EVERTICK_API_KEY": key or self._pulls, "EVERTICK_DATABASE_URL": ""}
        return self.launch("worker", "faults.worker_app:app", "--url", address, **own)

    async def add(self, owner: str, count: int, policy: str, *, seconds: float) -> None:
        """Jobs of a worker whose handlers take so long."""
        await self._create(owner, count, policy, WORKER_TARGET, seconds)

    async def add_webhooks(self, count: int, policy: str) -> None:
        await self._create(FIRST, count, policy, {"type": "http", "url": self._hook_url}, 0)

    async def _create(self, owner: str, count: int, policy: str, target: dict[str, str], seconds: float) -> None:
        self._batches += 1
        job = {
            **RETRIED,
            "schedule": "every 1s",
            "concurrent_policy": policy,
            "max_concurrent": 20 if policy == "ALLOW" else 1,
            "target": target,
            "payload": {"seconds": seconds, "owner": owner},
        }
        tenant = TenantContext(self.pool, 1 if owner == FIRST else self.second)
        names = [f"{RECURRING}-{self._batches}-{number}" for number in range(count)]
        verdicts = await create_many(tenant, [{**job, "name": name} for name in names])
        assert not [verdict.faults for verdict in verdicts if verdict.faults]

    def receipts(self) -> Iterator[dict[str, Any]]:
        """Everything that was delivered, in no order. A line that a kill cut short says nothing."""
        for log in self.folder.glob("*.receipts"):
            for line in log.read_text(encoding="utf-8").splitlines():
                if line.endswith("}"):
                    yield json.loads(line)


def _address(process: Process) -> str:
    said = f"{READY} at "
    process.wait_for("\n")
    line = next(line for line in process.log.read_text(encoding="utf-8").splitlines() if line.startswith(said))
    return line.removeprefix(said)
