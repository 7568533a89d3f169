"""Where there is work to lease: batches are noted by firing and removed by the lease that passes them."""

import asyncio
from collections import Counter

from engine import LEASE, Holder, Job, Planned, add_job, lease
from evertick.store.database import Pool
from evertick.store.engine import lanes
from evertick.store.engine.lanes import PutBack
from evertick.store.statements import Connection

MANY = 1000


async def fired(holder: Holder, job: Job, count: int) -> None:
    await holder.fire_ticks(Planned(job, policy="ALLOW", limit=MANY), count)


async def tenant(connection: Connection, name: str) -> int:
    tenant_id: int = await connection.fetchval("INSERT INTO tenants (name) VALUES ($1) RETURNING tenant_id", name)
    return tenant_id


async def waiting(connection: Connection) -> int:
    """How many attempts the batches tell of."""
    count: int = await connection.fetchval("SELECT coalesce(sum(attempts), 0)::bigint FROM ready_batches")
    return count


async def with_work(connection: Connection, after: int = 0, most: int = 100) -> list[int]:
    return [queue.queue_id for queue in await lanes.dispatched_queues(connection, after=after, most=most)]


async def webhooks(holder: Holder, *, partition: int = 7) -> Job:
    tenant_id = await tenant(
        holder.connection, f"tenant {await holder.connection.fetchval('SELECT gen_random_uuid()')}"
    )
    return await add_job(holder.connection, tenant_id=tenant_id, queue="http", partition=partition)


async def test_a_batch_stays_until_a_lease_has_passed_it(holder: Holder) -> None:
    jobs = [await add_job(holder.connection) for _ in range(3)]
    await holder.fire(*map(Planned, jobs))
    assert await waiting(holder.connection) == 3
    for left in (3, 3, 0):
        assert len(await lease(holder.connection, jobs[0], most=1)) == 1
        assert await waiting(holder.connection) == left
    assert await lease(holder.connection, jobs[0]) == []


async def test_leases_at_the_same_time_leave_no_batch_and_hide_none(holder: Holder, pool: Pool) -> None:
    jobs = [await add_job(holder.connection, partition=partition) for partition in range(4)]
    taken: Counter[tuple[int, int]] = Counter()

    async def lease_some(worker: str, most: int) -> int:
        async with pool.acquire() as session:
            leased = await lease(session, jobs[0], worker=worker, most=most)
        taken.update(each.token for each in leased)
        return len(leased)

    async def lease_often(worker: str) -> None:
        for _ in range(30):
            await lease_some(worker, 1)

    async def fire_all() -> None:
        for job in jobs:
            await fired(holder, job, 10)

    await asyncio.gather(fire_all(), *(lease_often(worker) for worker in "ab"))
    while await lease_some("last", MANY):
        pass
    assert (len(taken), max(taken.values())) == (40, 1)
    assert await waiting(holder.connection) == 0


async def test_a_dispatcher_finds_the_queues_that_have_work(holder: Holder) -> None:
    first, second, idle = [await webhooks(holder) for _ in range(3)]
    worker = await add_job(holder.connection, queue="default")
    for job in (first, second, worker):
        await fired(holder, job, 2)
    assert await with_work(holder.connection) == sorted([first.queue_id, second.queue_id])
    leased = await lease(holder.connection, first)
    assert await with_work(holder.connection) == [second.queue_id]
    await lanes.put_back(holder.connection, "w", [PutBack(each.lane_id, each.seq, "") for each in leased])
    assert await with_work(holder.connection) == sorted([first.queue_id, second.queue_id])
    assert idle.queue_id not in await with_work(holder.connection)


async def test_what_was_put_back_for_later_is_no_work_yet(holder: Holder) -> None:
    job = await webhooks(holder)
    await fired(holder, job, 1)
    (leased,) = await lease(holder.connection, job)
    await lanes.put_back(holder.connection, "w", [PutBack(leased.lane_id, leased.seq, "", LEASE)])
    assert await with_work(holder.connection) == []


async def test_many_attempts_of_one_tenant_hide_no_other_tenants(holder: Holder) -> None:
    jobs = [await webhooks(holder) for _ in range(5)]
    flooding = min(jobs, key=lambda job: job.queue_id)
    for job in jobs:
        await fired(holder, job, 100 if job is flooding else 1)
    expected = sorted(job.queue_id for job in jobs)
    assert await with_work(holder.connection, most=3) == expected[:3]
    assert await with_work(holder.connection, after=expected[2], most=3) == expected[3:]


async def test_a_look_for_work_brings_limits_and_secrets_along(holder: Holder) -> None:
    job = await webhooks(holder)
    await fired(holder, job, 1)
    (queue,) = await lanes.dispatched_queues(holder.connection, after=0, most=9)
    assert queue.sealed is None
    await holder.connection.execute("UPDATE tenants SET weight = 9 WHERE tenant_id = $1", queue.tenant_id)
    await holder.connection.execute(
        "INSERT INTO webhook_secrets (tenant_id, current) VALUES ($1, 'sealed')", queue.tenant_id
    )
    (queue,) = await lanes.dispatched_queues(holder.connection, after=0, most=9)
    assert (queue.limits.weight, queue.sealed and queue.sealed.current) == (9, b"sealed")
    assert "sealed" not in repr(queue)
