"""A server with a scheduler beside it, on a database of the test's own, and keys to it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from engine import until
from evertick import App
from evertick.api.server import ApiServer
from evertick.client import AsyncClient, Client
from evertick.config.settings import Settings
from evertick.contract.runs import RunDetail
from evertick.domain.access import KeyRole
from evertick.roles.janitor import Janitor
from evertick.roles.scheduler import Scheduler
from evertick.sdk.remote import Worker
from evertick.store.database import Pool, open_pool
from evertick.usecases.tenants import keys

HOST_TENANT = 1


class Served:
    """Where it is, and how to come in."""

    def __init__(self, url: str, api_key: str, pool: Pool) -> None:
        self.url = url
        self.api_key = api_key
        self.pool = pool

    async def key(self, role: KeyRole) -> str:
        return (await keys.create(self.pool, HOST_TENANT, role)).api_key

    def client(self, **options: Any) -> AsyncClient:
        return AsyncClient(self.url, self.api_key, **options)

    def sync_client(self, **options: Any) -> Client:
        return Client(self.url, self.api_key, **options)

    async def until_run(self, client: AsyncClient, run_id: str, status: str) -> RunDetail:
        async def is_so() -> bool:
            return (await client.runs.get(run_id)).status == status

        await until(is_so)
        return await client.runs.get(run_id)


@asynccontextmanager
async def served(database_url: str, lease_seconds: float = 30.0, **options: Any) -> AsyncIterator[Served]:
    settings = Settings(port=0, lease_seconds=lease_seconds, **options)
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(await open_pool(database_url, max_size=4))
        await Janitor(pool).maintain(full=False)
        scheduler = Scheduler(database_url, "scheduler", lease_time=settings.lease_time)
        await scheduler.start()
        stack.push_async_callback(scheduler.stop)
        server = ApiServer(database_url, settings)
        await server.start()
        stack.push_async_callback(server.stop)
        first = await keys.create(pool, HOST_TENANT, KeyRole.ADMIN)
        yield Served(server.address, first.api_key, pool)


def worker_target(handler: str = "handle", queue: str = "default") -> dict[str, str]:
    return {"type": "worker", "queue": queue, "handler": handler}


async def worker_of(house: Served, handlers: App | dict[str, Callable[..., Any]], **options: Any) -> Worker:
    return Worker(handlers, house.url, await house.key(KeyRole.WORKER), **options)


async def submitted(client: AsyncClient, handler: str, payload: Any = None, **fields: Any) -> str:
    """A run of a handler that is ready at once."""
    job = await client.jobs.create(schedule="manual", target=worker_target(handler), payload=payload, **fields)
    return (await client.jobs.trigger(job.job_id)).run_id
