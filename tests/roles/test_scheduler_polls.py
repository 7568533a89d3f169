"""Where a poll for timers begins, so that it finds everything and reads little of what was fired before."""

import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import asyncpg
import pytest

from engine import MINUTE, add_job, scheduler
from evertick.roles.scheduler import Scheduler, loading
from evertick.runtime.clock import VirtualClock
from evertick.store import statements
from evertick.store.database import connect
from hooked_pool import Run, hooked


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(database_url)
    yield connection
    await connection.close()


def known(node: Scheduler) -> set[int]:
    return {timer.job_id for timer in node.state.pending}


async def test_a_timer_of_long_ago_that_nobody_was_told_of_is_found_by_one_of_the_next_polls(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    await node.loading.step()
    job = await add_job(connection, partition=7)
    found_by = 0
    while job.job_id not in known(node):
        await node.loading.load_due()
        found_by += 1
    assert 1 < found_by <= loading.FULL_LOOKS


async def test_a_timer_that_appears_before_the_floor_after_the_clock_was_set_back_is_found(
    connection: asyncpg.Connection, database_url: str, now_at: datetime
) -> None:
    clock = VirtualClock(now_at)
    async with scheduler(database_url, clock=clock) as node:
        await node.join()
        clock.now_at = now_at + 60 * MINUTE
        await node.loading.load_due()
        clock.now_at = now_at
        job = await add_job(connection, fire_at=now_at)
        await node.loading.load_due()
        assert known(node) == {job.job_id}


async def test_what_stays_due_is_found_however_late_it_is(connection: asyncpg.Connection, node: Scheduler) -> None:
    """Polls begin at the earliest timer that is left, not behind it."""
    job = await add_job(connection)
    for _ in range(3):
        await node.loading.load_due()
        node.state.pending.keep_only(())
    await node.loading.load_due()
    assert known(node) == {job.job_id}


async def test_a_poll_reads_no_more_while_an_old_snapshot_keeps_all_that_was_fired(
    connection: asyncpg.Connection, second: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    for _ in range(50):
        await add_job(connection, fire_at=now_at - 60 * MINUTE)
    async with second.transaction(isolation="repeatable_read"):
        await second.fetchval("SELECT count(*) FROM timers")
        await fire_often(connection)
        few = await pages(connection, node)
        await fire_often(connection)
        many = await pages(connection, node)
    assert many.whole - few.whole > 50
    assert many.polled - few.polled < 5


class Pages(NamedTuple):
    """What a poll reads, and what it would from the beginning."""

    polled: int
    whole: int


async def fire_often(connection: asyncpg.Connection) -> None:
    """Leaves dead entries at due times of an hour ago; the timers themselves are due tomorrow."""
    for _ in range(100):
        await connection.execute(
            "UPDATE timers SET due_at = clock_at() - interval '1 hour' + random() * interval '1 min'"
        )
    await connection.execute("UPDATE timers SET due_at = clock_at() + interval '1 day'")


async def pages(connection: asyncpg.Connection, node: Scheduler) -> Pages:
    asked: list[dict[str, Any]] = []

    async def noted(read: Run, values: Mapping[str, Any]) -> object:
        asked.append(dict(values))
        return await read()

    await node.loading.load_due()  # finds that nothing is left
    pool, node.state.pool = node.state.pool, hooked(node.state.pool, "timers.load", noted)
    await node.loading.load_due()
    node.state.pool = pool
    [question] = asked
    from_the_beginning = question | {"from_ats": [datetime(1, 1, 2, tzinfo=UTC)] * len(question["partitions"])}
    return Pages(await buffers(connection, question), await buffers(connection, from_the_beginning))


async def buffers(connection: asyncpg.Connection, question: dict[str, Any]) -> int:
    """How many pages it takes to answer."""
    statement = statements.load("timers")["load"]
    answer = await connection.fetchval(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement.text}",
        *statement.arguments(question),
    )
    plan = json.loads(answer)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
