"""Batches adapt to how long they take, and a chore that ran into its time-out gets on all the same."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from engine import add_job
from evertick.roles.janitor import Janitor, chores, pace
from evertick.roles.janitor.chores import Paces
from evertick.roles.janitor.pace import FIRST, MOST, Pace
from evertick.store import ledgers
from evertick.store.database import Pool, Timeouts, open_pool
from roles.household import Household

DAY = timedelta(days=1)


class Disk:
    """Work whose rows take so many seconds each, and which times out after a minute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float, error: type[Exception] = TimeoutError) -> None:
        self.error = error
        self.now = 0.0
        self.seconds = seconds
        self.sizes: list[int] = []
        monkeypatch.setattr(pace, "monotonic", lambda: self.now)

    async def read(self, rows: int) -> int:
        self.sizes.append(rows)
        self.now += min(rows * self.seconds, 60.0)
        if rows * self.seconds > 60.0:
            raise self.error
        return rows


async def test_batches_of_what_lies_in_memory_grow_to_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, own = Disk(monkeypatch, 0.00001), Pace()
    for _ in range(5):
        await own.take(disk.read)
    assert disk.sizes[0] == FIRST
    assert disk.sizes[-1] == MOST


async def test_batches_from_a_cold_disk_shrink_until_they_take_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, own = Disk(monkeypatch, 0.1), Pace()
    for _ in range(6):
        await own.take(disk.read)
    assert disk.sizes[-1] == 10


@pytest.mark.parametrize("error", [TimeoutError, asyncpg.QueryCanceledError])
async def test_a_batch_that_timed_out_is_tried_again_with_fewer_rows(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    disk, own = Disk(monkeypatch, 5.0, error), Pace()
    assert await own.take(disk.read) == 5
    assert disk.sizes == [500, 50, 5]
    await own.take(disk.read)
    assert disk.sizes[3:] == [1], "what was too much once is not tried again"


async def test_a_single_row_that_times_out_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, own = Disk(monkeypatch, 100.0), Pace()
    with pytest.raises(TimeoutError):
        await own.take(disk.read)


SLOW_DELETE = """
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.15); RETURN OLD; END $$;
CREATE TRIGGER wait BEFORE DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION wait();
"""


async def test_a_purge_that_the_server_gives_up_gets_on_with_fewer_jobs(
    database_url: str, connection: asyncpg.Connection
) -> None:
    house = Household(connection)
    for _ in range(7):
        await house.job(status="deleted", age=200 * DAY, deleted=100 * DAY)
    await connection.execute(SLOW_DELETE)
    before_at = await house.now() - 90 * DAY
    async with await open_pool(database_url, timeouts=Timeouts(10, 1, 1)) as pool:
        assert await chores.purge_jobs(pool, before_at, Paces()) == 7


async def test_a_sweep_that_runs_out_of_time_goes_on_in_the_next_round(
    pool: Pool, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Household(connection)
    monkeypatch.setattr(pace, "MOST", 2)
    for _ in range(5):
        await house.job(status="deleted", age=200 * DAY, deleted=100 * DAY)
    seconds = iter(range(0, 10_000_000, 31))
    monkeypatch.setattr(chores, "monotonic", lambda: next(seconds))  # two batches fit a sweep
    janitor = Janitor(pool)
    assert (await janitor.keep_house()).jobs_purged == 2
    assert janitor._paces.is_cut
    purged = [(await janitor.keep_house()).jobs_purged for _ in range(3)]
    assert sum(purged) == 3


async def test_statistics_may_take_longer_than_other_statements(
    database_url: str, connection: asyncpg.Connection
) -> None:
    of = "FUNCTION weighed(id bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS"
    await connection.execute(f"CREATE {of} 'BEGIN RETURN id; END'")
    await connection.execute("CREATE INDEX timers_weighed ON timers (evertick.weighed(job_id))")
    await add_job(connection)
    await connection.execute(f"CREATE OR REPLACE {of} 'BEGIN PERFORM pg_sleep(2.5); RETURN id; END'")
    async with await open_pool(database_url, timeouts=Timeouts(10, 2, 10)) as pool:
        await ledgers.analyze(pool, "timers")
    assert await connection.fetchval("SELECT count(*) FROM pg_stats WHERE tablename = 'timers'") > 0


async def test_a_day_can_be_added_on_a_connection_or_on_a_pool(pool: Pool, connection: asyncpg.Connection) -> None:
    house = Household(connection)
    today = await house.today()
    assert await ledgers.add_day(connection, today + 20 * DAY)
    assert await ledgers.add_day(pool, today + 21 * DAY)
    async with pool.acquire() as borrowed:
        assert await ledgers.add_day(borrowed, today + 22 * DAY)
        assert not await ledgers.add_day(borrowed, today + 22 * DAY)
    added = await asyncio.gather(*(ledgers.add_day(pool, today + 23 * DAY) for _ in range(3)))
    assert sum(added) == 1
    assert {today + ahead * DAY for ahead in range(20, 24)} <= await house.days()
