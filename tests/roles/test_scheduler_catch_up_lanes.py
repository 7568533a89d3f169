"""A catch-up beside workers that have little room: what is on time does not wait behind it in the lanes."""

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from engine import LEASE, Job, add_job, runs_of, scheduler
from evertick.roles.scheduler import Scheduler
from evertick.store.engine import lanes
from roles.test_scheduler_backlog import HOUR, flood, often
from roles.test_scheduler_catch_up import Time, fire_all_allowed, run_count, time

__all__ = ["often", "time"]

STEP = timedelta(milliseconds=100)
PARTITIONS = 5
EACH = 2
CAPACITY = PARTITIONS * EACH
"""Attempts that workers start in a step."""


@pytest.fixture
async def fast(database_url: str, time: Time) -> AsyncIterator[Scheduler]:
    """Its rate of catch-up is far beyond what workers do."""
    async with scheduler(database_url, clock=time.clock, catch_up_factor=2, normal_rate=10_000) as opened:
        yield opened


async def work(connection: asyncpg.Connection, job: Job, each: int = EACH) -> int:
    """Lease up to so many attempts of each lane, as workers do."""
    ranges = await lanes.lease(
        connection,
        [job.queue_id],
        "worker",
        lanes=64,
        most_per_lane=each,
        rotation=0,
        lease_time=LEASE,
        tenant_id=None,
    )
    return len(await lanes.read(connection, ranges))


async def waiting(connection: asyncpg.Connection, time: Time) -> tuple[int, int]:
    """How many attempts wait in lanes: of the catch-up, and others."""
    row = await connection.fetchrow(
        "SELECT count(*) FILTER (WHERE due_at < $1) AS left, count(*) FILTER (WHERE due_at >= $1) AS others"
        " FROM attempts JOIN lanes USING (lane_id) WHERE seq > head",
        time.now_at - HOUR / 2,
    )
    assert row is not None
    return row["left"], row["others"]


async def step(node: Scheduler, time: Time) -> None:
    await time.move(STEP)
    await node.backpressure.step()
    await fire_all_allowed(node)


@pytest.mark.usefixtures("often")
async def test_no_more_of_a_catch_up_waits_in_lanes_than_workers_soon_take(
    connection: asyncpg.Connection, fast: Scheduler, time: Time
) -> None:
    await flood(connection, 200, fire_at=time.now_at - HOUR, partitions=PARTITIONS)
    await fast.join()
    on_time: list[Job] = []
    steps = 0
    while await connection.fetchval("SELECT count(*) FROM timers") or not on_time:
        steps += 1
        assert steps < 200
        on_time.append(await add_job(connection, "now", fire_at=time.now_at, partition=7 + steps % PARTITIONS))
        await step(fast, time)
        left, others = await waiting(connection, time)
        assert left <= 2 * CAPACITY
        assert others <= 2  # it came in the last step
        await work(connection, on_time[0])
    assert await run_count(connection) == 200 + steps


@pytest.mark.usefixtures("often")
async def test_a_queue_without_workers_gets_next_to_nothing_of_a_catch_up_and_other_queues_get_theirs(
    connection: asyncpg.Connection, fast: Scheduler, time: Time
) -> None:
    await flood(connection, 50, fire_at=time.now_at - HOUR, partitions=PARTITIONS)
    idle = await add_job(connection, "now", fire_at=time.now_at - HOUR / 2, queue="idle")
    others = [await add_job(connection, "now", fire_at=time.now_at - HOUR, queue="other") for _ in range(10)]
    await fast.join()
    for _ in range(20):
        on_time = await add_job(connection, "now", fire_at=time.now_at)
        await step(fast, time)
        await work(connection, others[0], 100)
        assert len(await runs_of(connection, on_time)) == 1
    assert (await waiting(connection, time))[0] <= 2
    assert len(await runs_of(connection, idle)) == 1
    assert [len(await runs_of(connection, job)) for job in others] == [1] * 10


@pytest.mark.usefixtures("often")
async def test_the_room_of_a_full_queue_is_for_what_is_on_time_before_an_older_catch_up(
    connection: asyncpg.Connection, fast: Scheduler, time: Time
) -> None:
    await flood(connection, 5, fire_at=time.now_at - HOUR)
    first = await add_job(connection, "now", fire_at=time.now_at)
    await connection.execute("UPDATE queues SET max_ready = 1")
    await fast.join()
    await step(fast, time)
    assert len(await runs_of(connection, first)) == await run_count(connection) == 1
    second = await add_job(connection, "now", fire_at=time.now_at)
    await step(fast, time)
    assert await run_count(connection) == 1
    assert await work(connection, first) == 1
    await step(fast, time)
    assert len(await runs_of(connection, second)) == 1
    assert await run_count(connection) == 2
