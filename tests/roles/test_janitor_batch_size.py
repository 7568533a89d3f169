"""Batches adapt to how long they take, and a step that ran into its time-out goes on with smaller ones."""

import asyncio
import itertools
from datetime import timedelta

import asyncpg
import pytest

from engine import add_job
from evertick.roles.janitor import Janitor, batch_size, maintenance
from evertick.roles.janitor.batch_size import FIRST_ROWS, MAX_ROWS, BatchSize
from evertick.roles.janitor.maintenance import BatchSizes
from evertick.store.database import Pool, Timeouts, open_pool
from evertick.store.maintenance import ledgers
from roles.aged_tables import AgedTables

DAY = timedelta(days=1)


class Disk:
    """Work whose rows take so many seconds each, and which times out after a minute."""

    def __init__(self, seconds: float, error: type[Exception] = TimeoutError) -> None:
        self.error = error
        self.now = 0.0
        self.seconds = seconds
        self.sizes: list[int] = []

    def monotonic(self) -> float:
        return self.now

    async def read(self, rows: int) -> int:
        self.sizes.append(rows)
        self.now += min(rows * self.seconds, 60.0)
        if rows * self.seconds > 60.0:
            raise self.error
        return rows


async def test_batches_of_what_lies_in_memory_grow_to_the_largest() -> None:
    disk = Disk(0.00001)
    own = BatchSize(monotonic=disk.monotonic)
    for _ in range(5):
        await own.run(disk.read)
    assert disk.sizes[0] == FIRST_ROWS
    assert disk.sizes[-1] == MAX_ROWS


async def test_batches_from_a_cold_disk_shrink_until_they_take_a_second() -> None:
    disk = Disk(0.1)
    own = BatchSize(monotonic=disk.monotonic)
    for _ in range(6):
        await own.run(disk.read)
    assert disk.sizes[-1] == 10


@pytest.mark.parametrize("error", [TimeoutError, asyncpg.QueryCanceledError])
async def test_a_batch_that_timed_out_is_tried_again_with_fewer_rows(error: type[Exception]) -> None:
    disk = Disk(5.0, error)
    own = BatchSize(monotonic=disk.monotonic)
    assert await own.run(disk.read) == 5
    assert disk.sizes == [500, 50, 5]
    await own.run(disk.read)
    assert disk.sizes[3:] == [1], "what was too much once is not tried again"


async def test_a_batch_that_found_little_does_not_make_the_next_one_larger() -> None:
    disk = Disk(0.1)
    own = BatchSize(10, monotonic=disk.monotonic)

    async def find_none(rows: int) -> int:
        disk.sizes.append(rows)
        return 0

    for _ in range(3):
        await own.run(find_none, is_full=bool)
    await own.run(disk.read, is_full=bool)
    assert disk.sizes == [10] * 4


async def test_a_single_row_that_times_out_is_an_error() -> None:
    disk = Disk(100.0)
    own = BatchSize(monotonic=disk.monotonic)
    with pytest.raises(TimeoutError):
        await own.run(disk.read)


SLOW_DELETE = """
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    deleted integer := coalesce(nullif(current_setting('test.deleted', true), ''), '0')::integer + 1;
BEGIN
    PERFORM set_config('test.deleted', deleted::text, true);
    IF deleted > 5 THEN PERFORM pg_sleep(600); END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER wait BEFORE DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION wait();
"""
"""More than five at once never end."""


async def test_a_purge_that_the_server_gives_up_gets_on_with_fewer_jobs(
    database_url: str, connection: asyncpg.Connection
) -> None:
    aged = AgedTables(connection)
    for _ in range(7):
        await aged.job(status="deleted", age=200 * DAY, deleted=100 * DAY)
    await connection.execute(SLOW_DELETE)
    before_at = await aged.now() - 90 * DAY
    async with await open_pool(database_url, timeouts=Timeouts(60, 4, 4)) as pool:
        assert await maintenance.purge_jobs(pool, before_at, BatchSizes()) == 7


async def test_a_sweep_that_runs_out_of_time_goes_on_in_the_next_round(
    pool: Pool, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged = AgedTables(connection)
    monkeypatch.setattr(batch_size, "MAX_ROWS", 2)
    for _ in range(5):
        await aged.job(status="deleted", age=200 * DAY, deleted=100 * DAY)
    seconds = itertools.count(0, 31)  # two batches fit a round
    janitor = Janitor(pool, monotonic=seconds.__next__)
    assert (await janitor.maintain()).jobs_purged == 2
    purged = [(await janitor.maintain()).jobs_purged for _ in range(3)]
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
    aged = AgedTables(connection)
    today = await aged.today()
    assert await ledgers.add_day(connection, today + 20 * DAY)
    assert await ledgers.add_day(pool, today + 21 * DAY)
    async with pool.acquire() as borrowed:
        assert await ledgers.add_day(borrowed, today + 22 * DAY)
        assert not await ledgers.add_day(borrowed, today + 22 * DAY)
    added = await asyncio.gather(*(ledgers.add_day(pool, today + 23 * DAY) for _ in range(3)))
    assert sum(added) == 1
    assert {today + ahead * DAY for ahead in range(20, 24)} <= await aged.days()
