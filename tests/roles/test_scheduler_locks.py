"""Firing against sessions that hold what it needs, statements that take too long, and a day that nobody has made."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from engine import Job, add_job, runs_of, scheduler, until
from evertick.domain.policies import ConcurrentPolicy
from evertick.domain.rule import Policies
from evertick.roles.scheduler import Scheduler, batch_size
from evertick.store.database import Timeouts, connect, open_pool
from hooked_pool import Run, hooked

REPLACE = Policies(concurrent_policy=ConcurrentPolicy.REPLACE)
NEIGHBOURS = 20
CLOCK = "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS"


@pytest.fixture
async def user(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def node(database_url: str) -> AsyncIterator[Scheduler]:
    async with waiting(database_url, Timeouts(20, 60, 0.2)) as opened:
        yield opened


@asynccontextmanager
async def waiting(url: str, timeouts: Timeouts) -> AsyncIterator[Scheduler]:
    """A scheduler that holds everything, and whose firing waits for so long."""
    async with scheduler(url) as opened, await open_pool(url, timeouts=timeouts) as pool:
        opened.state.firing = pool
        await opened.join()
        yield opened


@pytest.fixture
async def now_at(connection: asyncpg.Connection) -> datetime:
    now: datetime = await connection.fetchval("SELECT date_trunc('hour', clock_at())")
    return now


@pytest.fixture
async def jobs(connection: asyncpg.Connection, node: Scheduler, now_at: datetime) -> list[Job]:
    """Some with an open run each, and the next tick due."""
    added = [await add_job(connection, "0 * * * *", REPLACE, fire_at=now_at) for _ in range(NEIGHBOURS + 1)]
    await node.fire_due()
    await next_tick(connection, now_at, 1)
    return added


async def next_tick(connection: asyncpg.Connection, now_at: datetime, number: int) -> None:
    """Let the next tick of all jobs be due."""
    tick_at = now_at + timedelta(milliseconds=number)
    await connection.execute("UPDATE timers SET fire_at = $1, due_at = $1 WHERE kind = 'tick'", tick_at)


async def counts(connection: asyncpg.Connection, jobs: list[Job]) -> list[int]:
    return [len(await runs_of(connection, job)) for job in jobs]


async def take_outcome(user: asyncpg.Connection, job: Job) -> None:
    """As nobody of ours does: the outcome without any lock before it."""
    await user.execute(
        "INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final)"
        " SELECT lane_id, seq, now(), 'success', true FROM attempts WHERE job_id = $1",
        job.job_id,
    )


async def test_a_batch_that_runs_into_a_lock_is_split_until_all_others_have_fired(
    connection: asyncpg.Connection, user: asyncpg.Connection, node: Scheduler, jobs: list[Job]
) -> None:
    stuck, *others = jobs
    plain = await add_job(connection, "now")
    transaction = user.transaction()
    await transaction.start()
    await take_outcome(user, stuck)
    await node.fire_due()
    assert await counts(connection, [stuck, plain, *others]) == [1, 1, *[2] * NEIGHBOURS]
    assert not node.state.ownership.in_doubt
    await transaction.rollback()
    await until(node.firing.fire_batch)
    assert await counts(connection, [stuck]) == [2]


async def test_what_ran_into_a_lock_is_tried_apart_from_others(
    connection: asyncpg.Connection,
    user: asyncpg.Connection,
    node: Scheduler,
    jobs: list[Job],
    now_at: datetime,
) -> None:
    sizes: list[int] = []

    async def noted(fire: Run, values: Mapping[str, Any]) -> object:
        sizes.append(len(values["job_ids"]))
        return await fire()

    async with user.transaction():
        await take_outcome(user, jobs[0])
        await node.fire_due()
        await next_tick(connection, now_at, 2)
        node.state.firing = hooked(node.state.firing, "timers.fire", noted)
        await node.fire_due()
    assert sizes == [NEIGHBOURS, 1]
    assert await counts(connection, jobs) == [1, *[3] * NEIGHBOURS]


async def test_a_locked_job_with_a_corrupt_rule_keeps_nobody_waiting_and_is_paused_later(
    connection: asyncpg.Connection, user: asyncpg.Connection, node: Scheduler
) -> None:
    broken, neighbour = await add_job(connection, "0 3 * * *"), await add_job(connection, "now")
    await connection.execute("UPDATE rules SET canonical = '{\"spec\": 7' WHERE rule_id = $1", broken.rule_id)
    status = "SELECT status::text FROM jobs WHERE job_id = $1"
    async with user.transaction():
        await user.execute("SELECT FROM jobs WHERE job_id = $1 FOR UPDATE", broken.job_id)
        await node.fire_due()
        assert await counts(connection, [broken, neighbour]) == [0, 1]
        assert await connection.fetchval(status, broken.job_id) == "active"
    await until(node.firing.fire_batch)
    assert await connection.fetchval(status, broken.job_id) == "paused"


async def test_batches_shrink_after_a_time_out_and_grow_again(
    connection: asyncpg.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in {"BATCH": 16, "FIRST_BATCH": 16, "SMALLEST_BATCH": 2}.items():
        monkeypatch.setattr(batch_size, name, size)
    for _ in range(40):
        await add_job(connection, "now")
    async with waiting(database_url, Timeouts(20, 2, 0.2)) as node:
        await node.loading.step()
        await connection.execute(f"{CLOCK} 'SELECT clock_timestamp() FROM pg_sleep(600)'")
        with pytest.raises((TimeoutError, asyncpg.QueryCanceledError)):
            await node.firing.fire_batch()
        await connection.execute(f"{CLOCK} 'SELECT clock_timestamp()'")
        await node.join()
        await node.loading.step()
        assert [await node.firing.fire_batch() for _ in range(4)] == [8, 16, 16, 0]
    assert await connection.fetchval("SELECT count(*) FROM attempts") == 40


async def test_a_day_that_the_ledgers_lack_is_made_by_who_fires(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    await connection.execute(f"{CLOCK} $$ SELECT clock_timestamp() + interval '10 days' $$")
    await node.join()
    epoch = node.state.ownership.epochs[7]
    job = await add_job(connection, "now")
    await node.fire_due()
    assert await counts(connection, [job]) == [1]
    assert not node.state.ownership.in_doubt
    assert node.state.ownership.epochs[7] == epoch
