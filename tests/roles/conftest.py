"""Fixtures for tests of roles."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from roles.dispatching import PostOffice, Receiver, receiving
from roles.workshop import Workshop


@pytest.fixture
def workshop(connection: asyncpg.Connection, database_url: str) -> Workshop:
    return Workshop(connection, database_url)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
def office(connection: asyncpg.Connection, database_url: str) -> PostOffice:
    return PostOffice(connection, database_url)
