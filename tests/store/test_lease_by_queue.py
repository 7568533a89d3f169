"""Leases for many tenants at once: each queue gives as much as it has room for, and none waits behind another."""

from collections import Counter

from engine import LEASE, Holder, Job, Planned, add_job
from evertick.store.engine import lanes
from evertick.store.engine.lanes import Leased, PutBack, queue_of
from evertick.store.statements import Connection

HIGH, NORMAL = 0, 1


async def lease(
    connection: Connection,
    rooms: dict[int, int],
    width: int = 32,
    most: int = 100,
    depth: int = 100,
    *,
    first_priority: int = HIGH,
) -> list[Leased]:
    ranges = await lanes.lease_by_queue(
        connection,
        rooms,
        "w",
        lanes=width,
        most=most,
        most_per_lane=depth,
        rotation=0,
        lease_time=LEASE,
        first_priority=first_priority,
    )
    return await lanes.read(connection, ranges)


def counted(leased: list[Leased]) -> dict[int, int]:
    return dict(Counter(queue_of(each.lane_id) for each in leased))


async def ready(holder: Holder, tenant_id: int, count: int, *, partition: int = 7, priority: int = NORMAL) -> Job:
    job = await add_job(holder.connection, tenant_id=tenant_id, queue="http", partition=partition, priority=priority)
    await holder.fire_ticks(Planned(job, policy="ALLOW", limit=1000), count)
    return job


async def test_a_queue_gives_as_much_as_it_has_room_for_and_one_without_is_not_asked(holder: Holder) -> None:
    many, few, none = [await ready(holder, tenant_id, 20) for tenant_id in (11, 12, 13)]
    leased = await lease(holder.connection, {many.queue_id: 15, few.queue_id: 2})
    assert counted(leased) == {many.queue_id: 15, few.queue_id: 2}
    assert none.queue_id not in counted(leased)


async def test_lanes_of_one_tenant_share_its_room(holder: Holder) -> None:
    jobs = [await ready(holder, 11, 10, partition=partition) for partition in range(4)]
    leased = await lease(holder.connection, {jobs[0].queue_id: 8})
    assert sorted(Counter(each.job_id for each in leased).values()) == [2, 2, 2, 2]


async def test_many_lanes_of_high_priority_leave_room_for_the_one_lane_of_another_tenant(holder: Holder) -> None:
    flood = [await ready(holder, 11, 5, partition=partition, priority=HIGH) for partition in range(40)]
    victim = await ready(holder, 12, 3, partition=200)
    leased = await lease(holder.connection, {flood[0].queue_id: 100, victim.queue_id: 100}, width=4, most=20)
    assert counted(leased)[victim.queue_id] == 3
    assert len(leased) <= 25, "no more than asked for, and one for each lane"


async def test_within_a_tenant_high_priority_comes_first(holder: Holder) -> None:
    late = await ready(holder, 11, 1, partition=1)
    first = await ready(holder, 11, 1, partition=2, priority=HIGH)
    assert [each.job_id for each in await lease(holder.connection, {late.queue_id: 1})] == [first.job_id]


async def test_within_a_tenant_another_priority_comes_first_in_its_turn(holder: Holder) -> None:
    normal = await ready(holder, 11, 1, partition=1)
    await ready(holder, 11, 1, partition=2, priority=HIGH)
    leased = await lease(holder.connection, {normal.queue_id: 1}, first_priority=NORMAL)
    assert [each.job_id for each in leased] == [normal.job_id]


async def test_only_named_lanes_are_looked_at(holder: Holder) -> None:
    named, other = [await ready(holder, 11, 1, partition=partition) for partition in (1, 2)]
    ranges = await lanes.lease_by_queue(
        holder.connection,
        {named.queue_id: 9},
        "w",
        lanes=9,
        most=9,
        most_per_lane=9,
        rotation=0,
        lease_time=LEASE,
        only=[named.lane_id, named.lane_id],
    )
    assert [each.lane_id for each in ranges] == [named.lane_id]
    assert other.lane_id != named.lane_id


async def test_what_was_put_back_comes_by_turns_and_within_the_room(holder: Holder) -> None:
    jobs = [await ready(holder, tenant_id, 6) for tenant_id in (11, 12)]
    for job in jobs:
        leased = await lease(holder.connection, {job.queue_id: 6})
        await lanes.put_back(holder.connection, "w", [PutBack(each.lane_id, each.seq, "") for each in leased])
    first, second = (job.queue_id for job in jobs)

    async def free(rooms: list[int], most: int) -> dict[int, int]:
        ranges = await lanes.lease_free(
            holder.connection, [first, second], [""], "w", most=most, lease_time=LEASE, tenant_id=None, rooms=rooms
        )
        return dict(Counter(queue_of(each.lane_id) for each in ranges))

    assert await free([6, 1], most=4) == {first: 3, second: 1}
    assert await free([3, 6], most=4) == {first: 2, second: 2}
