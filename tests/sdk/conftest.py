"""A server for the tests of its clients and workers."""

from collections.abc import AsyncIterator

import pytest

from evertick.client import AsyncClient
from sdk.served import Served, served


@pytest.fixture
def lease_seconds() -> float:
    """For how long the server leases; tests of what happens after it put a shorter time here."""
    return 30.0


@pytest.fixture
async def house(database_url: str, lease_seconds: float) -> AsyncIterator[Served]:
    async with served(database_url, lease_seconds) as house:
        yield house


@pytest.fixture
async def client(house: Served) -> AsyncIterator[AsyncClient]:
    async with house.client() as client:
        yield client
