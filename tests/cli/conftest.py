from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cli.commands import Cli
from evertick.api.server import ApiServer
from evertick.config.settings import Settings
from evertick.domain.access import KeyRole
from evertick.store.database import open_pool
from evertick.usecases.tenants import keys
from sdk.served import HOST_TENANT


@pytest.fixture
def backend() -> str:
    """The backend of the commands. Tests of both backends are parametrised with it."""
    return "database"


@pytest.fixture
async def cli(backend: str, database_url: str) -> AsyncIterator[Cli]:
    if backend == "database":
        yield Cli(database_url)
    else:
        async with _served(database_url) as over_api:
            yield over_api


@pytest.fixture
def on_database(database_url: str) -> Cli:
    return Cli(database_url)


@pytest.fixture
async def over_api(database_url: str) -> AsyncIterator[Cli]:
    async with _served(database_url) as over_api:
        yield over_api


@asynccontextmanager
async def _served(database_url: str) -> AsyncIterator[Cli]:
    """An API on the database, without a scheduler: nothing fires."""
    server = ApiServer(database_url, Settings(port=0))
    await server.start()
    try:
        async with await open_pool(database_url, max_size=1) as pool:
            key = await keys.create(pool, HOST_TENANT, KeyRole.EDITOR)
        yield Cli.at("--url", server.address, EVERTICK_API_KEY=key.api_key)
    finally:
        await server.stop()
