"""Letting runs into gates beside other work: what is noted, what a sweep finds, and gates that others have locked."""

import asyncpg

from engine import Holder, Planned, add_job, ending_of, lease_free, scheduler
from evertick.roles.scheduler import Scheduler
from evertick.runtime.gates import Gates
from evertick.runtime.loop import NotYet
from evertick.store.database import Pool
from evertick.store.engine import outcomes

GATE = 7
"""Of partition 7."""


async def inside(connection: asyncpg.Connection) -> int:
    count = await connection.fetchval("SELECT count(*) FROM open_runs WHERE is_inside")
    assert isinstance(count, int)
    return count


async def test_a_scheduler_lets_in_what_it_has_fired(connection: asyncpg.Connection, node: Scheduler) -> None:
    jobs = [await add_job(connection, "now", gate_id=GATE, gate_limit=2) for _ in range(3)]
    await node.fire_due()
    assert await inside(connection) == 0
    assert await node.gates.look(is_sweep=False) == 2
    assert await node.gates.look(is_sweep=False) == 0
    assert len(await lease_free(connection, *jobs)) == 2


async def test_a_sweep_lets_in_after_a_worker_that_recorded_and_died(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    jobs = [await add_job(connection, "now", gate_id=GATE, gate_limit=1) for _ in range(2)]
    await node.fire_due()
    await node.gates.step()
    (leased,) = await lease_free(connection, *jobs)
    await outcomes.record(connection, "w", [ending_of(leased)], [leased.lease_id])
    assert await inside(connection) == 0
    assert await node.gates.look(is_sweep=True) == 1


async def test_a_scheduler_sweeps_gates_of_its_partitions_only(
    connection: asyncpg.Connection, node: Scheduler, database_url: str
) -> None:
    await add_job(connection, "now", gate_id=GATE, gate_limit=1)
    await node.fire_due()
    async with scheduler(database_url, "another") as other:
        assert await other.gates.look(is_sweep=True) == 0
    assert await node.gates.look(is_sweep=True) == 1


async def test_a_gate_that_another_session_has_locked_is_tried_again(
    connection: asyncpg.Connection, pool: Pool, node: Scheduler
) -> None:
    await add_job(connection, "now", gate_id=GATE, gate_limit=1)
    await node.fire_due()
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", GATE)
        assert isinstance(await node.gates.step(), NotYet)
    await node.gates.step()
    assert await inside(connection) == 1


async def test_a_session_that_freezes_with_one_gate_holds_up_no_other(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    for gate_id in (GATE, GATE + 1, GATE + 2):
        await add_job(connection, "now", gate_id=gate_id, gate_limit=1)
    await node.fire_due()
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", GATE)
        await node.gates.step()
        assert await inside(connection) == 2


async def test_queues_that_have_more_to_lease_are_told_once(connection: asyncpg.Connection, pool: Pool) -> None:
    holder = Holder(connection)
    await holder.take(*range(256))
    jobs = [await add_job(connection, gate_id=GATE, gate_limit=2) for _ in range(2)]
    fired = await holder.fire(*[Planned(job) for job in jobs])
    told: list[int] = []
    passing = Gates(pool, told.extend)
    passing.note(fired.gate_ids)
    await passing.step()
    await passing.step()
    assert told == [jobs[0].queue_id]
