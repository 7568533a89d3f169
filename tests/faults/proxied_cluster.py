"""A cluster in which each role uses its own proxy to the database, with a check that each role works."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from faults.cluster import PATIENT_US, Cluster
from faults.processes import Process
from faults.proxy import Proxy
from faults.webhook_receiver import WebhookReceiver, receiving

JOBS = 10
ROLES = ("scheduler", "worker", "dispatcher", "api")
SOON_SECONDS = 240.0
"""A role that lost its connections works again within this time, even on a slow machine."""


class ProxiedCluster:
    """A scheduler, a worker, a dispatcher and an API, with jobs for the first three."""

    def __init__(
        self, cluster: Cluster, receiver: WebhookReceiver, proxies: Mapping[str, Proxy], urls: Mapping[str, str]
    ) -> None:
        self.cluster = cluster
        self.receiver = receiver
        self.proxies = proxies
        self.urls = urls
        self.processes: dict[str, Process] = {}

    async def start(self, schedule: str) -> None:
        plain: dict[str, Any] = {"schedule": schedule, "concurrent_policy": "ALLOW", "max_concurrent": 100}
        await self.cluster.jobs(JOBS, "handled", **plain)
        await self.cluster.jobs(JOBS, "posted", **plain, target={"type": "http", "url": self.receiver.url})
        starting = (asyncio.to_thread(getattr(self.cluster, role), url=self.urls[role]) for role in ROLES)
        self.processes = dict(zip(ROLES, await asyncio.gather(*starting), strict=True))
        await asyncio.to_thread(self.cluster.wait_until_ready)
        said = self.processes["api"].log.read_text(encoding="utf-8")
        self._address = said.partition("Evertick is ready at ")[2].split()[0]
        key = said.partition("API key: ")[2].split()[0]
        self._client = httpx.AsyncClient(
            base_url=f"{self._address}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=120
        )
        await self.works()

    async def close(self) -> None:
        if hasattr(self, "_client"):
            await self._client.aclose()

    def inject(self, fault: Callable[[Proxy], None], roles: Iterable[str] = ROLES) -> None:
        for role in roles:
            fault(self.proxies[role])

    async def works(self, seconds: float = SOON_SECONDS) -> None:
        """Wait until every role works: several ticks of all jobs are run, and a request is answered."""
        attempts = await self.cluster.value("SELECT count(*) FROM attempts")
        worked, posted = self._worked(), self.receiver.count
        await self.cluster.until_count("SELECT count(*) FROM attempts", attempts + 6 * JOBS, seconds)

        async def all_worked() -> bool:
            return self._worked() >= worked + 3 * JOBS and self.receiver.count >= posted + 3 * JOBS

        await self.cluster.until(all_worked, "the worker and the dispatcher work", seconds)
        await self.cluster.until(self._answers, "the API answers", seconds)

    async def ready(self) -> int:
        return (await self._client.get(f"{self._address}/readyz")).status_code

    async def alive(self) -> int:
        return (await self._client.get(f"{self._address}/livez")).status_code

    async def end(self, bound_us: int = PATIENT_US) -> None:
        """Heal all proxies, and check the whole history. `bound_us`: how late a start may be."""
        for proxy in self.proxies.values():
            proxy.heal()
        await self.cluster.wait_until_idle()
        await self.cluster.check(bound_us=bound_us)

    async def submit(self, payload: str = "") -> int:
        """Create a job that does not fire for long, and return the status of the answer; 0: there was none."""
        target = {"type": "worker", "queue": "nobody", "handler": "note"}
        job = {"schedule": "0 0 1 1 *", "target": target, "payload": {"text": payload}}
        try:
            answer = await self._client.post("/jobs", json=job)
        except httpx.HTTPError:
            return 0
        assert answer.status_code in {201, 503}, answer.text
        return answer.status_code

    async def _answers(self) -> bool:
        return await self.submit() == 201

    def _worked(self) -> int:
        return sum(log.read_text(encoding="utf-8").count("\n") for log in self.cluster.folder.glob("worker*.receipts"))


@asynccontextmanager
async def proxied_cluster(
    url: str,
    folder: Path,
    settings: Mapping[str, str] | None = None,
    schedule: str = "every 1s",
    own_url: str | None = None,
) -> AsyncIterator[ProxiedCluster]:
    """Each role has one proxy. `own_url`: by which the test itself connects, if by another."""
    proxies = {role: Proxy(url) for role in ROLES}
    urls = {role: proxy.url for role, proxy in proxies.items()}
    cluster = Cluster(url, folder, settings)
    cluster.own_url = own_url or url
    async with _proxied(cluster, proxies, urls) as all_roles:
        await all_roles.start(schedule)
        yield all_roles


@asynccontextmanager
async def cluster_with_two_hosts(
    url: str, folder: Path, order: Callable[[str, str], str]
) -> AsyncIterator[ProxiedCluster]:
    """All roles have two hosts, of which the first one is in use and the other stands by."""
    used, spare = Proxy(url), Proxy(url)
    hosts = order(f"127.0.0.1:{used.port}", f"127.0.0.1:{spare.port}")
    both = used.url.replace(f"127.0.0.1:{used.port}", hosts)
    proxies = {"used": used, "spare": spare}
    async with _proxied(Cluster(url, folder), proxies, dict.fromkeys(ROLES, both)) as all_roles:
        spare.refuse()
        await all_roles.start("every 1s")
        spare.heal()
        yield all_roles


@asynccontextmanager
async def _proxied(
    cluster: Cluster, proxies: Mapping[str, Proxy], urls: Mapping[str, str]
) -> AsyncIterator[ProxiedCluster]:
    await cluster.open()
    async with receiving(cluster.folder) as receiver:
        all_roles = ProxiedCluster(cluster, receiver, proxies, urls)
        try:
            yield all_roles
        finally:
            await all_roles.close()
            await cluster.close()
            await asyncio.gather(*(asyncio.to_thread(proxy.stop) for proxy in proxies.values()))
