"""A receiver of webhooks on loopback, attempts that are ready for it, and dispatchers that may reach it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from ipaddress import ip_network
from typing import Any, NamedTuple

from aiohttp import web

from engine import PATIENCE_SECONDS, RETRIES, Job, Planned, add_job
from evertick.roles.dispatcher import Dispatcher
from evertick.roles.dispatcher.settings import Egress
from evertick.store.tenants.secrets import Seal
from evertick.targets.egress.guard import EgressPolicy
from roles.workshop import PARTITION, Workshop

LOOPBACK = EgressPolicy(opened=(ip_network("127.0.0.0/8"),), allow_http=True)
SEAL = Seal("a key of at least thirty-two characters")

_KEEP_PUT_BACK = """
CREATE FUNCTION keep_put_back() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN NEW.expires_at := evertick.clock_at() + interval '1 day'; RETURN NEW; END $$;
CREATE TRIGGER keep_put_back BEFORE INSERT OR UPDATE OF worker ON leases
    FOR EACH ROW WHEN (NEW.worker IS NULL) EXECUTE FUNCTION keep_put_back();
"""

Answer = Callable[[], Awaitable[web.StreamResponse]]


class Received(NamedTuple):
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Answers 200, or what it is told to answer next."""

    def __init__(self) -> None:
        self.url = ""
        self.received: list[Received] = []
        self._answers: list[Answer] = []
        self._news = asyncio.Event()

    def will(self, answer: Answer) -> None:
        self._answers.append(answer)

    def will_answer(self, status: int, text: str = "", **headers: str) -> None:
        async def answer() -> web.StreamResponse:
            return web.Response(status=status, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()})

        self.will(answer)

    async def until_received(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.received) < count:
                self._news.clear()
                await self._news.wait()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(headers, await request.read()))
        self._news.set()
        return await self._answers.pop(0)() if self._answers else web.Response(text="thanks")


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield receiver
    finally:
        await runner.cleanup()


class PostOffice(Workshop):
    """A workshop whose attempts are deliveries."""

    async def posted(
        self,
        url: str,
        *,
        payload: Any = None,
        timeout_seconds: int = 60,
        retry: str = RETRIES,
        count: int = 1,
        tenant_id: int = 1,
        **target_options: Any,
    ) -> Job:
        """A job with so many webhooks, of as many runs, that stand in their lane."""
        target = {"type": "http", "url": url, "method": "POST", "headers": {"X-Team": "billing"}, **target_options}
        options: dict[str, Any] = {"payload": payload, "timeout_seconds": timeout_seconds, "retry": retry}
        return await self.addressed(target, **options, count=count, tenant_id=tenant_id)

    async def addressed(
        self,
        target: Mapping[str, Any],
        *,
        payload: Any = None,
        timeout_seconds: int = 60,
        retry: str = RETRIES,
        count: int = 1,
        tenant_id: int = 1,
    ) -> Job:
        """A job with so many attempts for a target, of as many runs, that stand in their lane."""
        queue = str(target["type"])
        job = await add_job(self.connection, partition=PARTITION, retry=retry, queue=queue, tenant_id=tenant_id)
        await self.connection.execute(
            "UPDATE job_versions SET handler = NULL, payload = $2, timeout_seconds = $3, spec = $4 WHERE job_id = $1",
            *(job.job_id, None if payload is None else json.dumps(payload)),
            *(timeout_seconds, json.dumps({"target": target})),
        )
        if not self._holder.epochs:
            await self._holder.take(PARTITION)
        await self._holder.fire_ticks(Planned(job, policy="ALLOW", limit=1000), count)
        return job

    def dispatcher(self, policy: EgressPolicy = LOOPBACK, seal: Seal = SEAL, **options: Any) -> Dispatcher:
        return Dispatcher(self.url, seal, lambda _: Egress(policy, "as the test says"), **options)

    async def deliver(self, policy: EgressPolicy = LOOPBACK, **options: Any) -> Dispatcher:
        """Deliver all that is ready, by a dispatcher without loops."""
        dispatcher = self.dispatcher(policy, **options)
        await dispatcher.open()
        await dispatcher.work_off()
        await dispatcher.close()
        return dispatcher

    async def code(self, job: Job) -> int | None:
        """The status that was recorded last."""
        code: int | None = await self.connection.fetchval(
            "SELECT code FROM outcomes JOIN attempts USING (lane_id, seq) WHERE job_id = $1 ORDER BY seq DESC LIMIT 1",
            job.job_id,
        )
        return code

    async def put_back(self) -> list[tuple[float, int]]:
        """The attempts that wait to be leased again: for how many seconds in all, and how often that was so before."""
        rows = await self.connection.fetch("SELECT lease_seconds::float, deferrals FROM leases WHERE worker IS NULL")
        return [tuple(row) for row in rows]

    async def returns(self) -> list[datetime]:
        """When they may be leased again, in order."""
        rows = await self.connection.fetch("SELECT expires_at FROM leases WHERE worker IS NULL ORDER BY expires_at")
        return [row[0] for row in rows]

    async def keep_put_back(self) -> None:
        """What is put back from now on does not come back by itself, however slow the machine is."""
        await self.connection.execute(_KEEP_PUT_BACK)

    async def let_return(self) -> None:
        """All that was put back may be leased now."""
        await self.connection.execute("UPDATE leases SET expires_at = clock_at() WHERE worker IS NULL")

    async def edit(self, job: Job) -> None:
        """Give a job a second version."""
        await self.connection.execute(
            "INSERT INTO job_versions SELECT (jsonb_populate_record(version, '{\"spec_version\": 2}')).*"
            " FROM job_versions version WHERE job_id = $1",
            job.job_id,
        )
        await self.connection.execute("UPDATE jobs SET spec_version = 2 WHERE job_id = $1", job.job_id)

    async def add_tenant(self, name: str) -> int:
        tenant_id: int = await self.connection.fetchval(
            "INSERT INTO tenants (name) VALUES ($1) RETURNING tenant_id", name
        )
        return tenant_id
