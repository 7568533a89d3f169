"""A real server on a free port for each test, and clients with keys."""

from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

import postgres
from api.callers import Caller, Callers
from evertick.api.server import ApiServer
from evertick.config.settings import Settings
from evertick.roles.scheduler import Scheduler
from evertick.store import database
from hooked_pool import count_statements


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[ApiServer]:
    server = ApiServer(database_url, Settings(port=0), connections=8)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def callers(server: ApiServer, pool: database.Pool) -> AsyncIterator[Callers]:
    """Makes clients: of any role, of any tenant."""
    made = Callers(server.address, pool)
    yield made
    await made.close()


@pytest.fixture
async def admin(callers: Callers) -> Caller:
    """An admin of the hosting tenant."""
    return await callers.make("admin")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_callers(postgres_server: postgres.Server) -> AsyncIterator[Callers]:
    """As `callers`, for all tests of a module that are marked with ON_SHARED_SERVER."""
    async with postgres_server.database() as url, await database.open_pool(url) as pool:
        server = ApiServer(url, Settings(port=0), connections=8)
        await server.start()
        made = Callers(server.address, pool)
        yield made
        await made.close()
        await server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_admin(shared_callers: Callers) -> Caller:
    return await shared_callers.make("admin")


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each statement was run in this process, which is the server's too."""
    return count_statements(monkeypatch)


@pytest.fixture
async def scheduler(database_url: str, server: ApiServer) -> AsyncIterator[Scheduler]:
    """Fires what is due, and soon reaps what ran out."""
    scheduler = Scheduler(
        database_url,
        "test",
        heartbeat=timedelta(seconds=0.2),
        lifetime=timedelta(seconds=5),
        lease_time=timedelta(seconds=2),
    )
    await scheduler.start()
    yield scheduler
    await scheduler.stop()
