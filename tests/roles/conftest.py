"""Fixtures for tests of roles."""

from collections.abc import AsyncIterator
from datetime import datetime

import asyncpg
import pytest

from engine import scheduler
from evertick.roles.scheduler import Scheduler
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


@pytest.fixture
async def node(database_url: str) -> AsyncIterator[Scheduler]:
    """A scheduler without loops, which holds everything."""
    async with scheduler(database_url) as opened:
        await opened.join()
        yield opened


@pytest.fixture
async def now_at(connection: asyncpg.Connection) -> datetime:
    now: datetime = await connection.fetchval("SELECT clock_at()")
    return now
