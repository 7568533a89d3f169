"""Events by the clients: lists that end, and streams that go on after they were cut off."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from evertick.api.server import ApiServer
from evertick.client import AsyncClient, Client, NotFound
from evertick.config.settings import Settings
from evertick.domain.access import KeyRole
from evertick.roles.janitor.sequencing import Sequencing
from evertick.store.database import Pool
from evertick.usecases.tenants import keys

TARGET = {"type": "worker", "handler": "send"}


@pytest.fixture
async def sequencing(pool: Pool) -> AsyncIterator[None]:
    made = Sequencing(pool)
    made.start()
    yield
    await made.stop()


async def started(url: str, port: int = 0) -> ApiServer:
    server = ApiServer(url, Settings(port=port), connections=4)
    await server.start()
    return server


@pytest.mark.usefixtures("sequencing")
async def test_a_stream_goes_on_after_the_server_was_restarted(database_url: str, pool: Pool) -> None:
    key = (await keys.create(pool, 1, KeyRole.ADMIN)).api_key
    server = await started(database_url)
    async with AsyncClient(server.address, key) as client:
        with pytest.raises(NotFound):
            await anext(client.events.follow())
        await client.events.set_stream()
        events = client.events.follow(types=["job.created"])
        await client.jobs.create(name="before", schedule="manual", target=TARGET)
        first = await anext(events)
        assert first.data["job_name"] == "before"
        await server.stop()
        server = await started(database_url, int(server.address.rpartition(":")[2]))
        await client.jobs.create(name="after", schedule="manual", target=TARGET)
        second = await anext(events)
        assert second.data["job_name"] == "after"
        assert [event.id async for event in client.events.list(types=["job.created"], page_size=1)] == [
            first.id,
            second.id,
        ]
        assert [event.id async for event in client.events.list(cursor=second.id, types=["job.created"])] == []
        assert (await client.events.stream()).sink is None
        await client.events.remove_stream()
    await server.stop()


@pytest.mark.usefixtures("sequencing")
async def test_the_sync_client_follows_too(database_url: str, pool: Pool) -> None:
    key = (await keys.create(pool, 1, KeyRole.ADMIN)).api_key
    server = await started(database_url)
    began = threading.Event()

    def work() -> str:
        with Client(server.address, key) as client:
            client.events.set_stream()
            began.set()
            client.jobs.create(name="mine", schedule="manual", target=TARGET)
            event = next(client.events.follow(types=["job.created"]))
            name: str = event.data["job_name"]
            return name

    assert await asyncio.to_thread(work) == "mine"
    assert began.is_set()
    await server.stop()
