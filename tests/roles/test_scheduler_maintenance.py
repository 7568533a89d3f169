"""A look for work costs the same after months as on the first day, and steps of the clock hide nothing from it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from engine import Job, add_job, lease, runs_of, scheduler
from evertick.domain.schedule.instants import to_us
from evertick.roles.scheduler import Scheduler
from evertick.store.engine import clock
from roles.stepping import Dial

DAY = timedelta(days=1)
QUEUES = 20
DAYS = 90


@pytest.fixture
async def dial(connection: asyncpg.Connection) -> Dial:
    return await Dial.on(connection)


@pytest.fixture
async def node(database_url: str, dial: Dial) -> AsyncIterator[Scheduler]:
    async with scheduler(database_url) as opened:
        await opened.join()
        yield opened


async def blocks_of_a_look(connection: asyncpg.Connection, queue_ids: list[int]) -> int:
    """How many pages of indexes a look for work reads that finds nothing."""
    count = (
        "SELECT sum(idx_blks_hit + idx_blks_read)::bigint FROM pg_statio_all_indexes"
        " WHERE relname LIKE 'attempts_%' OR relname = 'ready_batches'"
    )

    async def counted() -> int:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        blocks: int = await connection.fetchval(count)
        return blocks

    before = await counted()
    assert await lease(connection, *(Job(0, 0, queue_id, 1) for queue_id in queue_ids)) == []
    return await counted() - before


async def test_a_look_for_work_costs_no_more_after_months_than_on_the_first_day(
    connection: asyncpg.Connection, node: Scheduler, dial: Dial
) -> None:
    queue_ids = list(range(100, 100 + QUEUES))
    await connection.execute(
        "INSERT INTO queues (queue_id, tenant_id, name) OVERRIDING SYSTEM VALUE"
        " SELECT queue_id, 1, 'queue-' || queue_id FROM unnest($1::integer[]) AS queue_id",
        queue_ids,
    )
    await connection.execute(
        "INSERT INTO lanes (lane_id, queue_id, partition, priority, head) SELECT lane_id_of(queue_id, n, 1),"
        " queue_id, n, 1, $2 FROM unnest($1::integer[]) AS queue_id, generate_series(0, 255) AS n",
        queue_ids,
        to_us(await dial.now()),
    )
    await keep_days(connection, dial)
    fresh = await blocks_of_a_look(connection, queue_ids)
    for _ in range(DAYS):
        await dial.move(DAY)
        await keep_days(connection, dial)
    await connection.execute("UPDATE clock_marks SET marked_at = clock_at(), trusted_at = clock_at()")
    assert await blocks_of_a_look(connection, queue_ids) < 1.1 * fresh


async def keep_days(connection: asyncpg.Connection, dial: Dial) -> None:
    """Today and the three days ahead, with an attempt of another queue each: an empty index costs nothing to search."""
    today = (await dial.now()).astimezone(UTC).date()
    for day in (today + ahead * DAY for ahead in range(4)):
        at = datetime.combine(day, datetime.min.time(), UTC)
        await connection.execute("SELECT add_day($1)", day)
        await connection.execute(
            "INSERT INTO attempts SELECT 1, $1, 1, $2, $2, 1, 1, 'tick', 1, false ON CONFLICT DO NOTHING",
            *(to_us(at) + 1, at),
        )


@pytest.mark.parametrize("back", [2 * DAY, 40 * DAY], ids=["two days", "forty days"])
@pytest.mark.parametrize("holder", ["same", "next"])
async def test_what_is_fired_after_the_clock_was_set_back_is_leased(
    connection: asyncpg.Connection, node: Scheduler, dial: Dial, *, database_url: str, back: timedelta, holder: str
) -> None:
    await dial.move(50 * DAY)
    await connection.execute("SELECT add_day((clock_at() AT TIME ZONE 'UTC')::date)")
    first = await add_job(connection, "now", fire_at=await dial.now() - 60 * DAY)
    await node.fire_due()
    assert len(await lease(connection, first)) == 1
    second = await add_job(connection, "now", fire_at=await dial.now() - 60 * DAY)
    await dial.move(-back)
    if holder == "next":
        await node.membership.leave()
        async with scheduler(database_url, "other") as other:
            await other.join()
            await other.fire_due()
    else:
        await node.fire_due()
    assert len(await runs_of(connection, second)) == 1
    assert len(await lease(connection, second)) == 1


async def test_each_round_marks_the_clock(connection: asyncpg.Connection, node: Scheduler, dial: Dial) -> None:
    await dial.move(-DAY)
    await node.maintenance.step()
    marks = await clock.marks(connection)
    assert marks.replan_from == 0
    assert marks.furthest_at > marks.marked_at
