"""How many attempts of a queue and of a tenant run at once: never more than their caps, whoever leases."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from engine import LEASE, Holder, Job, Planned, add_job, ending_of
from evertick.domain.attempt import Token
from evertick.store.database import Pool, Session
from evertick.store.engine import lanes, outcomes
from evertick.store.engine.lanes import Leased, PutBack
from evertick.store.statements import Connection

MANY = 1000
QUEUES = ("one", "two")


async def cap_queue(connection: Connection, job: Job, cap: int) -> None:
    await connection.execute("UPDATE queues SET max_running = $2 WHERE queue_id = $1", job.queue_id, cap)


async def cap_tenant(connection: Connection, cap: int) -> None:
    await connection.execute("UPDATE tenants SET running_quota = $1 WHERE tenant_id = 1", cap)


async def lease_capped(session: Session, rooms: dict[int, int], worker: str = "w", width: int = 8) -> list[Leased]:
    async with session.transaction():
        left, _ = await lanes.lock_rooms(session, rooms, None)
        if not left:
            return []
        free = await lanes.lease_free(
            *(session, list(left), None, worker), most=MANY, lease_time=LEASE, tenant_id=None, rooms=list(left.values())
        )
        for each in free:
            left[lanes.queue_of(each.lane_id)] -= 1
        left = {queue_id: room for queue_id, room in left.items() if room}
        ranges = await lanes.lease_by_queue(
            *(session, left, worker), lanes=width, most=MANY, most_per_lane=MANY, rotation=0, lease_time=LEASE
        )
    return await lanes.read(session, [*free, *ranges])


@pytest.fixture
async def sessions(pool: Pool) -> AsyncIterator[tuple[Session, Session]]:
    async with pool.acquire() as first, pool.acquire() as second:
        yield first, second


async def ready(holder: Holder, queue: str = "one", *, lanes_of_queue: int = 3, count: int = 10) -> list[Job]:
    jobs = [await add_job(holder.connection, queue=queue, partition=each) for each in range(lanes_of_queue)]
    for job in jobs:
        await holder.fire_ticks(Planned(job, policy="ALLOW", limit=MANY), count)
    return jobs


@pytest.mark.parametrize("cap", [1, 4, 7, 30])
async def test_no_more_is_leased_than_a_queue_may_run(
    holder: Holder, sessions: tuple[Session, Session], cap: int
) -> None:
    job, *_ = await ready(holder)
    await cap_queue(holder.connection, job, cap)
    first = await lease_capped(sessions[0], {job.queue_id: MANY})
    assert len(first) == cap
    assert await lease_capped(sessions[1], {job.queue_id: MANY}) == []
    await outcomes.record(sessions[0], "w", [ending_of(first[0])], [])
    assert len(await lease_capped(sessions[1], {job.queue_id: MANY}, "other")) == min(1, 30 - cap)


async def test_a_tenants_cap_holds_for_all_of_its_queues_together(
    holder: Holder, sessions: tuple[Session, Session]
) -> None:
    (one, *_), (two, *_) = [await ready(holder, queue) for queue in QUEUES]
    await cap_tenant(holder.connection, 5)
    await cap_queue(holder.connection, two, 3)
    both = {two.queue_id: MANY, one.queue_id: MANY}
    leased = await lease_capped(sessions[0], both)
    assert [len([each for each in leased if lanes.queue_of(each.lane_id) == queue]) for queue in both] == [3, 2]
    assert await lease_capped(sessions[1], both) == []


async def test_what_was_put_back_makes_room_and_needs_it(holder: Holder, sessions: tuple[Session, Session]) -> None:
    job, *_ = await ready(holder, lanes_of_queue=1)
    await cap_queue(holder.connection, job, 2)
    leased = await lease_capped(sessions[0], {job.queue_id: MANY})
    await lanes.put_back(sessions[0], "w", [PutBack(each.lane_id, each.seq, "handle") for each in leased])
    again = await lease_capped(sessions[0], {job.queue_id: MANY})
    assert {each.token for each in again} == {each.token for each in leased}, "what was put back comes first"
    assert await lease_capped(sessions[1], {job.queue_id: MANY}) == []


async def test_a_cap_that_another_session_has_locked_is_not_waited_for(
    holder: Holder, sessions: tuple[Session, Session]
) -> None:
    job, *_ = await ready(holder)
    free, *_ = await ready(holder, "two")
    await cap_queue(holder.connection, job, 5)
    first, second = sessions
    async with first.transaction():
        await lanes.lock_rooms(first, {job.queue_id: 1}, None)
        async with second.transaction():
            assert await lanes.lock_rooms(second, {job.queue_id: 1, free.queue_id: 1}, None) == (
                {free.queue_id: 1},
                True,
            )
    async with second.transaction():
        assert await lanes.lock_rooms(second, {job.queue_id: 9}, None) == ({job.queue_id: 5}, False)


async def test_another_tenants_queue_is_left_out(holder: Holder, sessions: tuple[Session, Session]) -> None:
    job, *_ = await ready(holder)
    async with sessions[0].transaction():
        assert (await lanes.lock_rooms(sessions[0], {job.queue_id: 9}, 12345)).rooms == {}


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_workers_do_at_once_the_caps_hold_and_all_attempts_run(
    holder: Holder, pool: Pool, seed: int
) -> None:
    """Against the simplest model: who has an attempt, from the moment its lease is answered until it is let go of."""
    (one, *_), (two, *_) = [await ready(holder, queue, count=8) for queue in QUEUES]
    caps = {one.queue_id: 3, two.queue_id: 4}
    for job in (one, two):
        await cap_queue(holder.connection, job, caps[job.queue_id])
    await cap_tenant(holder.connection, 5)
    running: dict[Token, str] = {}
    ended: set[Token] = set()
    total = 2 * 3 * 8

    async def work(worker: str, random: Random) -> None:
        async with pool.acquire() as session:
            while len(ended) < total:
                rooms = {queue: random.randint(1, 4) for queue in random.sample(list(caps), random.randint(1, 2))}
                leased = await lease_capped(session, rooms, worker, random.randint(1, 4))
                for each in leased:
                    assert each.token not in running
                    running[each.token] = worker
                counts = {queue: sum(lanes.queue_of(lane) == queue for lane, _ in running) for queue in caps}
                assert all(counts[queue] <= cap for queue, cap in caps.items())
                assert len(running) <= 5
                for each in leased:
                    await asyncio.sleep(0)
                    del running[each.token]
                    if random.random() < 0.3:
                        await lanes.put_back(session, worker, [PutBack(each.lane_id, each.seq, "handle")])
                    else:
                        await outcomes.record(session, worker, [ending_of(each)], [])
                        ended.add(each.token)

    await asyncio.gather(*(work(f"w{number}", Random(10 * seed + number)) for number in range(3)))
    assert len(ended) == total
