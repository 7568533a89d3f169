"""A database whose clock can be set while it runs on, as an operator or NTP sets it, and the ticks of a job by it."""

from datetime import datetime, timedelta

import asyncpg

from engine import MINUTE, Job, gaps_of, runs_of
from evertick.store.engine import clock
from evertick.store.engine.clock import Marks


class Dial:
    """Sets the database's clock. It is the real one, moved by as much as the test says."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    @classmethod
    async def on(cls, connection: asyncpg.Connection) -> "Dial":
        await connection.execute("CREATE TABLE dial AS SELECT interval '0' AS moved_by")
        await connection.execute(
            "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE"
            " AS 'SELECT clock_timestamp() + moved_by FROM dial'"
        )
        return cls(connection)

    async def move(self, span: timedelta) -> None:
        await self._connection.execute("UPDATE dial SET moved_by = moved_by + $1", span)

    async def now(self) -> datetime:
        now: datetime = await self._connection.fetchval("SELECT clock_at()")
        return now

    async def run_on(self, span: timedelta, every: timedelta = timedelta(minutes=10)) -> Marks:
        """Let time pass while somebody marks the clock as ever."""
        for _ in range(span // every):
            await self.move(every)
            await clock.mark(self._connection)
        return await clock.marks(self._connection)


def ticks(first_at: datetime, last_at: datetime) -> list[datetime]:
    return [first_at + n * MINUTE for n in range((last_at - first_at) // MINUTE + 1)]


async def accounted(connection: asyncpg.Connection, job: Job) -> list[datetime]:
    """Each tick that is in a run or in a gap, as often as it is there."""
    found = [fire_at for fire_at, _, _ in await runs_of(connection, job)]
    for first_at, last_at, count, _ in await gaps_of(connection, job):
        inside = ticks(first_at, last_at)
        assert len(inside) == count
        found += inside
    return sorted(found)
