"""How full queues are, as schedulers read it: the numbers in SQL are those of the domain."""

import asyncpg

from engine import add_job
from evertick.domain.backpressure import DEFAULT_MAX_READY, DEFAULT_READY_QUOTA, QUEUE_FACTOR, REPORTED_FROM
from evertick.store.engine import ready
from evertick.store.jobs import references


async def wait(connection: asyncpg.Connection, queue_id: int, attempts: int) -> None:
    await connection.execute("DELETE FROM ready_batches")
    await connection.execute(
        "INSERT INTO ready_batches VALUES (lane_id_of($1, 1, 1), 1, 1, clock_at(), $2, false)", queue_id, attempts
    )


async def test_queues_with_less_than_the_default_limits_are_always_read_and_others_from_a_part_of_them_on(
    connection: asyncpg.Connection,
) -> None:
    queue_id = (await add_job(connection)).queue_id
    least = -(-DEFAULT_MAX_READY // REPORTED_FROM)
    for attempts, is_read in ((0, False), (least - 1, False), (least, True)):
        await wait(connection, queue_id, attempts)
        assert [depth.queue_id for depth in await ready.depths(connection)] == [queue_id] * is_read
    await wait(connection, queue_id, 0)
    for table, column, default in (
        ("queues", "max_ready", DEFAULT_MAX_READY),
        ("tenants", "ready_quota", DEFAULT_READY_QUOTA),
    ):
        for limit, is_read in ((default - 1, True), (default, False)):
            await connection.execute(f"UPDATE {table} SET {column} = $1", limit)
            assert [depth.queue_id for depth in await ready.depths(connection)] == [queue_id] * is_read


async def test_a_queue_is_shown_as_full_from_its_part_of_the_quota_on(connection: asyncpg.Connection) -> None:
    queue_id = (await add_job(connection)).queue_id
    await connection.execute("UPDATE tenants SET ready_quota = $1", 10 * (QUEUE_FACTOR + 1))
    for attempts, is_full in ((10 * QUEUE_FACTOR - 1, False), (10 * QUEUE_FACTOR, True)):
        await wait(connection, queue_id, attempts)
        shown = await references.queue_page(connection, 1)
        assert [queue.is_full for queue in shown] == [is_full]
