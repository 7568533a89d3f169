"""What a measurement of age needs: jobs that are due again and again, sizes, a snapshot that stays."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.database import connect
from evertick.store.statements import Connection, row_count


class Footprint(NamedTuple):
    """Bytes, with indexes."""

    attempts: int
    outcomes: int
    timers: int
    lanes: int
    leases: int


_SQL = statements.load("age", "evertick.bench")
_FOOTPRINT = _SQL["footprint"].rows(Footprint)


async def make_due(connection: Connection, queue: str, partition: int, fire_at: datetime) -> int:
    """Let the jobs that a queue has in a partition be due at an instant. Returns how many there are."""
    status = await _SQL["make_due"].execute(connection, queue=queue, partition=partition, fire_at=fire_at)
    return row_count(status)


async def footprint(connection: Connection) -> Footprint:
    return await _FOOTPRINT.one(connection)


@asynccontextmanager
async def pinned(url: str) -> AsyncIterator[None]:
    """Hold a snapshot on a connection of its own: what is dead since then cannot be cleared away meanwhile."""
    connection = await connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await _SQL["stay"].execute(connection)
            yield
    finally:
        await connection.close()
