"""Heads of idle lanes move on, and a look for work costs the same after months as on the first day."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from engine import Job, add_job, lease, runs_of, scheduler
from evertick.domain.schedule.instants import to_us
from evertick.roles.scheduler import Scheduler, maintenance as maintenance_module
from evertick.store.database import connect
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


async def head_of(connection: asyncpg.Connection, job: Job) -> int:
    head: int = await connection.fetchval("SELECT head FROM lanes WHERE lane_id = $1", job.lane_id)
    return head


async def blocks_of_a_look(connection: asyncpg.Connection, queue_ids: list[int]) -> int:
    """How many pages of the attempts' indexes a look for work reads that finds nothing."""
    count = (
        "SELECT sum(idx_blks_hit + idx_blks_read)::bigint FROM pg_statio_all_indexes WHERE relname LIKE 'attempts_%'"
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
    late = await blocks_of_a_look(connection, queue_ids)
    assert late > 10 * fresh, "the look searches all days since the heads"
    assert await node.maintenance.advance_heads() >= QUEUES * 256
    flat = await blocks_of_a_look(connection, queue_ids)
    assert flat < 1.5 * fresh
    assert await node.maintenance.advance_heads() == 0, "heads that are nearly there stay"


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


async def test_a_head_never_passes_an_attempt_that_waits(
    connection: asyncpg.Connection, node: Scheduler, dial: Dial
) -> None:
    now_at = await dial.now()
    waiting = await add_job(connection, "now", fire_at=now_at)
    idle = await add_job(connection, "2099-01-01T00:00:00Z", fire_at=now_at + 9999 * DAY, partition=9)
    await node.fire_due()
    [seq] = [row["seq"] for row in await connection.fetch("SELECT seq FROM attempts")]
    await dial.move(30 * DAY)
    await connection.execute("UPDATE clock_marks SET marked_at = clock_at(), trusted_at = clock_at()")
    assert await node.maintenance.advance_heads() == 1
    assert await head_of(connection, waiting) < seq
    assert await head_of(connection, idle) == pytest.approx(to_us(await dial.now() - DAY), abs=60_000_000)
    assert [leased.seq for leased in await lease(connection, waiting)] == [seq]


@pytest.mark.parametrize("back", [2 * DAY, 40 * DAY], ids=["two days", "forty days"])
async def test_what_is_fired_after_the_clock_was_set_back_is_found_beyond_the_head(
    connection: asyncpg.Connection, node: Scheduler, dial: Dial, back: timedelta
) -> None:
    await dial.move(30 * DAY)
    await connection.execute("UPDATE clock_marks SET marked_at = clock_at(), trusted_at = clock_at()")
    await connection.execute("SELECT add_day((clock_at() - interval '1 day')::date)")
    job = await add_job(connection, "now", fire_at=await dial.now() - 50 * DAY)
    assert await node.maintenance.advance_heads() == 1
    await dial.move(-back)
    await node.join()
    await node.fire_due()
    assert len(await runs_of(connection, job)) == 1
    assert len(await lease(connection, job)) == 1


async def test_who_takes_over_goes_on_after_the_heads(
    connection: asyncpg.Connection, node: Scheduler, dial: Dial, database_url: str
) -> None:
    job = await add_job(connection, "now", fire_at=await dial.now() - 50 * DAY)
    await connection.execute("SELECT add_day((clock_at() - interval '1 day')::date)")
    await node.maintenance.advance_heads()
    await node.membership.leave()
    await dial.move(-9 * DAY)
    async with scheduler(database_url, "other") as other:
        await other.join()
        await other.fire_due()
    assert len(await lease(connection, job)) == 1


async def test_only_the_holder_moves_heads(connection: asyncpg.Connection, node: Scheduler, dial: Dial) -> None:
    job = await add_job(connection, "2099-01-01T00:00:00Z", fire_at=await dial.now() + 9999 * DAY)
    await connection.execute("UPDATE partitions SET epoch = epoch + 1 WHERE partition = $1", job.partition)
    assert await node.maintenance.advance_heads() == 0
    assert await head_of(connection, job) == 0


async def test_a_lane_that_someone_leases_from_is_left_for_later(
    connection: asyncpg.Connection, node: Scheduler, dial: Dial, database_url: str
) -> None:
    job = await add_job(connection, "2099-01-01T00:00:00Z", fire_at=await dial.now() + 9999 * DAY)
    worker = await connect(database_url)
    async with worker.transaction():
        await worker.execute("SELECT FROM lanes WHERE lane_id = $1 FOR UPDATE", job.lane_id)
        assert await node.maintenance.advance_heads() == 0
    await worker.close()
    assert await node.maintenance.advance_heads() == 1


async def test_nothing_moves_while_the_end_of_a_firing_is_unknown(
    connection: asyncpg.Connection, node: Scheduler, dial: Dial
) -> None:
    await add_job(connection, "2099-01-01T00:00:00Z", fire_at=await dial.now() + 9999 * DAY)
    node.state.ownership.in_doubt = True
    assert await node.maintenance.advance_heads() == 0


async def test_many_lanes_are_moved_in_batches(
    connection: asyncpg.Connection, node: Scheduler, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance_module, "LANES", 2)
    for number in range(5):
        await add_job(connection, "2099-01-01T00:00:00Z", fire_at=await dial.now() + 9999 * DAY, partition=number)
    assert await node.maintenance.advance_heads() == 5


async def test_each_round_marks_the_clock(connection: asyncpg.Connection, node: Scheduler, dial: Dial) -> None:
    await dial.move(-DAY)
    await node.maintenance.step()
    marks = await clock.marks(connection)
    assert marks.replan_from == 0
    assert marks.furthest_at > marks.marked_at
