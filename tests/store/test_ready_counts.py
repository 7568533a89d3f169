"""How many attempts queues have to lease, as who leases at a rate counts them."""

from engine import Holder, Job, Planned, add_job, lease
from evertick.store.engine import lanes
from evertick.store.engine.lanes import PutBack

MANY = 1000


async def ready(holder: Holder, queue: str, count: int, *partitions: int) -> Job:
    jobs = [await add_job(holder.connection, queue=queue, partition=each) for each in partitions]
    for job in jobs:
        await holder.fire_ticks(Planned(job, policy="ALLOW", limit=MANY), count)
    return jobs[0]


async def test_attempts_are_counted_over_all_lanes_up_to_a_number(holder: Holder) -> None:
    job = await ready(holder, "one", 4, 1, 2, 3)
    other = await ready(holder, "two", 5, 1)
    asked = {job.queue_id: 100, other.queue_id: 3, 77: 9}
    assert await lanes.count_ready(holder.connection, asked, None, None) == {job.queue_id: 12, other.queue_id: 3}
    assert await lanes.count_ready(holder.connection, asked, None, 99) == {}, "another tenant's"


async def test_what_is_leased_does_not_count_and_what_is_put_back_does(holder: Holder) -> None:
    job = await ready(holder, "one", 10, 1)
    leased = await lease(holder.connection, job, most=6)
    asked = {job.queue_id: 100}
    assert await lanes.count_ready(holder.connection, asked, ["handle"], 1) == {job.queue_id: 4}
    back = [
        PutBack(each.lane_id, each.seq, handler)
        for each, handler in zip(leased, ["handle"] * 2 + ["x"] * 2, strict=False)
    ]
    await lanes.put_back(holder.connection, "w", back)
    assert await lanes.count_ready(holder.connection, asked, ["handle", "other"], 1) == {job.queue_id: 6}
    assert await lanes.count_ready(holder.connection, asked, None, 1) == {job.queue_id: 8}
    await holder.connection.execute("UPDATE leases SET expires_at = clock_at() + interval '1 h' WHERE handler = 'x'")
    assert await lanes.count_ready(holder.connection, asked, None, 1) == {job.queue_id: 6}, "it is not its time yet"
