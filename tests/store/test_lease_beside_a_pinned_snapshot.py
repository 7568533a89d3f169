"""A transaction that stays open keeps each version of lanes and leases: hot statements pass them, and read few."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from engine import LEASE, Holder, Job, Planned, add_job
from evertick.store import statements
from evertick.store.engine import lanes, outcomes
from evertick.store.engine.lanes import LeasedRange
from plans import nodes, plan_of

LANES = 64
LEASES = 125
"""Of each lane, while the snapshot is pinned: 8,000 in all."""
WORKER = "w"
FACTOR = 2
_LANES = statements.load("lanes")
_OLD_LEASES = """
INSERT INTO leases (lease_id, lane_id, first_seq, last_seq, expires_at, lease_seconds, partition, worker)
SELECT -($1::bigint * 1000 + n), lane.lane_id, lane.head - 1, lane.head - 1,
       clock_at() - interval '1 hour', 30, lane.partition, $2
  FROM (SELECT *, row_number() OVER () AS n FROM lanes) AS lane
"""


async def blocks_of(connection: asyncpg.Connection, statement: statements.Statement, given: dict[str, Any]) -> int:
    """What one statement reads by its generic plan. What its CTEs change is not in the sum of the whole."""
    values = ", ".join(literal(value) for value in statement.arguments(given))
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(f"PREPARE measured AS {statement.text}")
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE measured ({values})")
    await connection.execute("DEALLOCATE measured")
    await transaction.rollback()
    plan = json.loads(text)[0]["Plan"]
    changing = [node for node in nodes(plan) if node["Node Type"] == "ModifyTable"] or [plan]
    return sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in changing)


def literal(value: object) -> str:
    if value is None:
        return "NULL"
    return f"'{{{','.join(map(str, value))}}}'" if isinstance(value, list) else f"'{value}'"


@asynccontextmanager
async def open_transaction(session: asyncpg.Connection, *, is_pinned: bool) -> AsyncIterator[None]:
    """One that pins a snapshot, or one that has none."""
    transaction = session.transaction(isolation="repeatable_read")
    await transaction.start()
    if is_pinned:
        await session.fetch("SELECT FROM lanes")
    yield
    await transaction.rollback()


@pytest.fixture
async def jobs(connection: asyncpg.Connection, holder: Holder) -> list[Job]:
    """Each has a lane of its own, and something to lease."""
    jobs = [await add_job(connection, partition=partition) for partition in range(LANES)]
    await holder.fire(*map(Planned, jobs))
    return jobs


@pytest.fixture
async def held(connection: asyncpg.Connection, jobs: list[Job]) -> list[LeasedRange]:
    """All that there was to lease."""
    queue_ids = [jobs[0].queue_id]
    return await lanes.lease(
        connection, queue_ids, WORKER, lanes=LANES, most_per_lane=9, rotation=0, lease_time=LEASE, tenant_id=None
    )


async def lease_many(connection: asyncpg.Connection) -> None:
    """What so many leases leave behind, and vacuum, which removes it unless a snapshot is pinned."""
    for number in range(LEASES):
        await connection.execute("UPDATE lanes SET head = head")
        await connection.execute(_OLD_LEASES, number, WORKER)
        await connection.execute("DELETE FROM leases WHERE lease_id < 0")
    await connection.execute("VACUUM (ANALYZE) lanes, leases")


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("name", ["lease", "lease of named lanes", "lease_by_queue"])
async def test_a_lease_after_many_others_reads_less_than_twice_as_much(
    connection: asyncpg.Connection, second: asyncpg.Connection, jobs: list[Job], name: str, *, is_pinned: bool
) -> None:
    queue_ids = [jobs[0].queue_id]
    only = [job.lane_id for job in jobs] if "named" in name else None
    given = {"queue_ids": queue_ids, "worker": WORKER, "lanes": LANES, "most_per_lane": 9, "rotation": 0}
    given |= {"first_priority": 1, "only": only, "lease_seconds": 30.0, "tenant_id": None, "first_lease_id": 1}
    given |= {"rooms": [LANES], "most_lanes": LANES + 1, "most": LANES}
    statement = _LANES[name.split(maxsplit=1)[0]]
    given = {key: given[key] for key in statement.parameters}
    before = await blocks_of(connection, statement, given)
    async with open_transaction(second, is_pinned=is_pinned):
        await lease_many(connection)
        after = await blocks_of(connection, statement, given)
    assert after < FACTOR * before


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize(
    "name", ["lanes.extend", "lanes.note_progress", "outcomes.take_over", "pulls.leases", "pulls.lost"]
)
async def test_who_holds_leases_finds_them_past_those_of_before(
    connection: asyncpg.Connection, second: asyncpg.Connection, held: list[LeasedRange], name: str, *, is_pinned: bool
) -> None:
    now_at = await lanes.clock(connection)
    tokens = {"lane_ids": [each.lane_id for each in held], "seqs": [each.first_seq for each in held]}
    given = tokens | {"worker": WORKER, "lease_ids": [each.lease_id for each in held], "lease_seconds": 30.0}
    given |= {"running_leases": [], "running_seqs": [], "started_ats": [], "texts": ["half"] * len(held)}
    given |= {"node": "n", "partitions": list(range(256)), "most": 100}
    given |= {"from_at": now_at - timedelta(minutes=1), "latest_at": now_at + timedelta(hours=1)}
    aggregate, verb = name.split(".")
    statement = statements.load(aggregate)[verb]
    given = {key: given[key] for key in statement.parameters}
    before = await blocks_of(connection, statement, given)
    async with open_transaction(second, is_pinned=is_pinned):
        await lease_many(connection)
        after = await blocks_of(connection, statement, given)
    assert after <= FACTOR * before  # an index may have got one level more


async def test_a_lease_that_ran_out_before_an_instant_is_left_to_a_look_at_all(
    connection: asyncpg.Connection, held: list[LeasedRange]
) -> None:
    now_at = await lanes.clock(connection)
    await connection.execute("UPDATE leases SET expires_at = $1", now_at - timedelta(minutes=2))
    every, from_at = list(range(256)), now_at - timedelta(minutes=1)
    recent = await outcomes.reap(connection, "n", every, lease_time=LEASE, most=LANES, from_at=from_at)
    assert recent == []
    found = await outcomes.reap(connection, "n", every, lease_time=LEASE, most=LANES)
    assert {each.lease_id for each in found} == {each.lease_id for each in held}


@pytest.mark.parametrize("name", ["extend", "note_progress", "lease_free", "mark_started"])
async def test_leases_are_looked_up_by_a_plan_from_when_there_were_none(
    connection: asyncpg.Connection, second: asyncpg.Connection, jobs: list[Job], name: str
) -> None:
    """Vacuum often comes at a moment without leases. Then the whole index looks like one row."""
    async with open_transaction(second, is_pinned=True):
        await lease_many(connection)
        plan = await plan_of(connection, _LANES[name])
    scans = [node for node in nodes(plan) if node.get("Relation Name") == "leases" and "Scan" in node["Node Type"]]
    assert jobs
    assert scans
    assert [scan for scan in scans if "Index Cond" not in scan and "Recheck Cond" not in scan] == []
