"""A server and its database, and executors that reach their attempts by either source."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from evertick.client import AsyncClient
from evertick.executor.executor import Executor
from evertick.executor.handlers.registry import Handlers
from evertick.executor.source import Source
from evertick.executor.sources.database.queues import NamedQueues
from evertick.executor.sources.database.source import DatabaseSource
from evertick.executor.sources.http.source import HttpSource
from sdk.served import HOST_TENANT, Served, served

LEASE_SECONDS = 9.0
"""So long that a machine may stand still for some seconds."""
QUEUE = "default"


class Site:
    """Where executors work. All of them draw from one queue, by one kind of source."""

    def __init__(self, kind: str, database_url: str, house: Served, client: AsyncClient) -> None:
        self.house = house
        self.client = client
        self._kind = kind
        self._database_url = database_url

    def executor(self, handlers: Mapping[str, Callable[..., Any]], **options: Any) -> Executor:
        return Executor(self._source(), Handlers(handlers), **options)

    @asynccontextmanager
    async def running(
        self, handlers: Mapping[str, Callable[..., Any]], grace: timedelta = timedelta(0), **options: Any
    ) -> AsyncIterator[Executor]:
        executor = self.executor(handlers, **options)
        await executor.start()
        try:
            yield executor
        finally:
            await executor.stop(grace)

    async def results(self, run_id: str) -> list[tuple[int, str]]:
        """Of all attempts of a run: number and result."""
        return [(each.attempt, each.result or "") for each in (await self.client.runs.get(run_id)).attempts]

    async def leases(self) -> int:
        count: int = await self.house.pool.fetchval("SELECT count(*) FROM leases WHERE worker IS NOT NULL")
        return count

    def _source(self) -> Source:
        if self._kind == "http":
            house = self.house
            return HttpSource(lambda timeout: house.client(retries=0, timeout=timeout or 10.0), [QUEUE])
        queues = NamedQueues([QUEUE], HOST_TENANT)
        return DatabaseSource(self._database_url, queues, lease_time=timedelta(seconds=LEASE_SECONDS))


@pytest.fixture(params=["database", "http"])
async def site(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Site]:
    async with served(database_url, LEASE_SECONDS) as house, house.client() as client:
        yield Site(request.param, database_url, house, client)
