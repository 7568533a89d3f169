"""A whole server in a thread of its own: browsers are driven by calls that block, and it goes on meanwhile."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import httpx

import postgres
from evertick.api.server import ApiServer
from evertick.config.settings import Settings
from evertick.dashboard.site import SITE
from evertick.domain.access import KeyRole
from evertick.roles.janitor.replayer import Replayer
from evertick.roles.scheduler import Scheduler
from evertick.store import database
from evertick.usecases.tenants import keys

PATIENCE_SECONDS = 180
_T = TypeVar("_T")


class LiveServer:
    """An API with the dashboard, a scheduler and a janitor's replayer. `run` does something in its event loop.

    `ids` are those of what the addresses of pages name.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.pool: database.Pool
        self.address = ""
        self.ids: dict[str, str] = {}

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    def key(self, role: str, tenant_id: int = 1) -> str:
        """A new key."""
        return self.run(self._key(role, tenant_id))

    async def _key(self, role: str, tenant_id: int) -> str:
        async with self.pool.acquire() as connection, connection.transaction():
            return (await keys.create(connection, tenant_id, KeyRole(role))).api_key

    def execute(self, statement: str, *values: object) -> None:
        """Change the database directly, where no use case does."""
        self.run(self._execute(statement, *values))

    async def _execute(self, statement: str, *values: object) -> None:
        async with self.pool.acquire() as connection:
            await connection.execute(statement, *values)

    def forget_sessions(self) -> None:
        """Let the server look at sessions anew, as it does every few seconds by itself."""
        with self.client(self.key("admin")) as api:
            made = api.post("/api-keys", json={"role": "viewer"}).raise_for_status().json()
            api.delete(f"/api-keys/{made['key_id']}").raise_for_status()

    def client(self, key: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(
            base_url=f"{self.address}/api/v1", headers=headers, timeout=PATIENCE_SECONDS, trust_env=False
        )


@contextmanager
def live_server(postgres_server: postgres.Server, settings: Settings) -> Iterator[LiveServer]:
    loop = asyncio.new_event_loop()
    server = LiveServer(loop)
    is_up, ending = threading.Event(), asyncio.Event()
    failed: list[BaseException] = []

    async def serve() -> None:
        async with postgres_server.database() as url, await database.open_pool(url) as server.pool:
            api = ApiServer(url, settings, connections=8, site=SITE)
            scheduler = Scheduler(url, "test", heartbeat=timedelta(seconds=0.2), lifetime=timedelta(seconds=5))
            replayer = Replayer(server.pool)
            await api.start()
            await scheduler.start()
            replayer.start()
            server.address = api.address
            is_up.set()
            await ending.wait()
            await replayer.stop()
            await scheduler.stop()
            await api.stop()

    def work() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(serve())
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the tests
            failed.append(error)
        finally:
            is_up.set()

    thread = threading.Thread(target=work, name="live server")
    thread.start()
    is_up.wait(PATIENCE_SECONDS)
    try:
        if not failed:
            yield server
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(PATIENCE_SECONDS)
        loop.close()
    if failed:
        raise failed[0]
