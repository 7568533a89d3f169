"""The ledgers `attempts` and `outcomes`: their days, and the statistics of partitioned tables.

Called by the janitor, and by schedulers that lack a day.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date, datetime
from typing import NamedTuple

import asyncpg

from evertick.store import statements
from evertick.store.database import Pool, Session, transaction_without_timeout
from evertick.store.statements import Connection

_ANALYZE_SECONDS = 60 * 60
"""Reading samples of many large days may take long, and nothing depends on it."""


class ExpiredDay(NamedTuple):
    """A day that is older than history is kept. `is_finished`: nothing in it waits or runs."""

    day: date
    is_finished: bool


_SQL = statements.load("ledgers")
_SET_LOCK_TIMEOUT = _SQL["set_lock_timeout"].values(str)
_MISSING_DAYS = _SQL["missing_days"].values(date)
_ADD_DAY = _SQL["add_day"].values(bool)
_EXPIRED_DAYS = _SQL["expired_days"].rows(ExpiredDay)
_STALE_STATISTICS = _SQL["stale_statistics"].values(str)


async def missing_days(pool: Pool, ahead: int) -> list[date]:
    """The days from today on, up to so many ahead, that are no partition of the ledgers yet."""
    return await _MISSING_DAYS.all(pool, ahead=ahead)


async def add_day(pool: Connection, day: date) -> bool:
    """Add a day to the ledgers. False: it is locked, or exists already. Janitors add days ahead, schedulers at need."""
    try:
        async with briefly_locking(pool) as connection:
            return await _ADD_DAY.one(connection, day=day)
    except (
        asyncpg.DuplicateTableError,
        asyncpg.DuplicateObjectError,  # its row type, which comes before it
        asyncpg.UniqueViolationError,
        asyncpg.LockNotAvailableError,
    ):
        return False


async def expired_days(pool: Pool, before_at: datetime) -> list[ExpiredDay]:
    """Days that ended before an instant, oldest first."""
    return await _EXPIRED_DAYS.all(pool, before_at=before_at)


async def drop_day(pool: Pool, day: date) -> bool:
    """Drop a day of the ledgers. False: it is locked."""
    try:
        async with briefly_locking(pool) as connection:
            await _SQL["drop_day"].execute(connection, day=day)
            return True
    except asyncpg.LockNotAvailableError:
        return False


async def stale_statistics(pool: Pool) -> list[str]:
    """The partitioned tables that should be analysed."""
    return await _STALE_STATISTICS.all(pool)


async def analyze(pool: Pool, table: str) -> None:
    async with transaction_without_timeout(pool) as connection:
        await connection.execute(_SQL[f"analyze_{table}"].text, timeout=_ANALYZE_SECONDS)


@asynccontextmanager
async def briefly_locking(pool: Connection) -> AsyncIterator[Session]:
    """A transaction that soon gives up a lock that it has to wait for: firing would wait behind it."""
    if isinstance(pool, asyncpg.Pool):
        async with pool.acquire() as connection, briefly_locking(connection) as session:
            yield session
        return
    async with pool.transaction():
        await _SET_LOCK_TIMEOUT.one(pool)
        yield pool
