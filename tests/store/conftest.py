"""Each test of the store runs on the newest and on the oldest PostgreSQL that Evertick supports."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

import postgres
from engine import Holder, Job, add_job
from evertick.store.database import connect


@pytest.fixture(scope="session", params=[postgres.EMBEDDED, postgres.DEBIAN])
def postgres_server(request: pytest.FixtureRequest, postgres_servers: postgres.Servers) -> postgres.Server:
    programs = postgres.VERSIONS[request.param]
    if programs and not programs.exists():
        pytest.skip(f"no PostgreSQL in {programs}: `apt install postgresql-15`")
    return postgres_servers.get(request.param)


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Another connection, for what happens at the same time."""
    connection = await connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def watcher(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that sees which of the others waits for a lock."""
    connection = await connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def holder(connection: asyncpg.Connection) -> Holder:
    """A scheduler that holds all partitions."""
    holder = Holder(connection)
    await holder.take(*range(256))
    return holder


@pytest.fixture
async def job(connection: asyncpg.Connection) -> Job:
    return await add_job(connection)
