"""A transaction that stays open keeps each version of a lane: a lease passes them, and reads few blocks for that."""

import json

import asyncpg
import pytest

from engine import Holder, Planned, add_job
from evertick.store import statements
from plans import nodes

LANES = 64
LEASES = 60
STATEMENT = statements.load("lanes")["lease"]


async def blocks_of_a_lease(connection: asyncpg.Connection, queue_id: int) -> int:
    """What one statement reads. What its CTEs change is not in the sum of the whole."""
    arguments = STATEMENT.arguments(
        {
            "queue_ids": [queue_id],
            "worker": "w",
            "lanes": LANES,
            "most_per_lane": 9,
            "rotation": 0,
            "first_priority": 1,
            "only": None,
            "lease_seconds": 30.0,
            "tenant_id": None,
            "first_lease_id": 1,
        }
    )
    transaction = connection.transaction()
    await transaction.start()
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {STATEMENT.text}", *arguments)
    await transaction.rollback()
    plan = json.loads(text)[0]["Plan"]
    changing = [node for node in nodes(plan) if node["Node Type"] == "ModifyTable"]
    assert {node["Relation Name"] for node in changing} == {"leases", "lanes", "ready_batches"}
    return sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in changing)


@pytest.mark.parametrize("is_pinned", [False, True])
async def test_a_lease_after_many_others_reads_less_than_twice_as_much(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder, *, is_pinned: bool
) -> None:
    jobs = [await add_job(connection, partition=partition) for partition in range(LANES)]
    await holder.fire(*map(Planned, jobs))
    before = await blocks_of_a_lease(connection, jobs[0].queue_id)
    transaction = second.transaction(isolation="repeatable_read")
    await transaction.start()
    if is_pinned:
        await second.fetch("SELECT FROM lanes")
    for _ in range(LEASES):
        await connection.execute("UPDATE lanes SET head = head")
    after = await blocks_of_a_lease(connection, jobs[0].queue_id)
    await transaction.rollback()
    assert after < 2 * before
