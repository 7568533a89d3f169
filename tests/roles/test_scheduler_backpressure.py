"""Full queues: their timers wait in the table, those of other queues fire, and nothing is lost or overtakes."""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta

import asyncpg
import pytest

from engine import AT, LEASE, Job, add_job, add_timer, runs_of, scheduler
from evertick.roles.scheduler import Scheduler, backlog, backpressure, loading
from evertick.roles.scheduler.catching_up import CatchUp
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.store.database import connect
from evertick.store.engine import lanes
from evertick.store.engine.timers import Timer
from hooked_pool import hooked
from roles.test_scheduler_catch_up import Time, time

__all__ = ["time"]

SECOND = timedelta(seconds=1)


async def limit(connection: asyncpg.Connection, job: Job, max_ready: int) -> None:
    await connection.execute("UPDATE queues SET max_ready = $2 WHERE queue_id = $1", job.queue_id, max_ready)


async def depth(connection: asyncpg.Connection, queue_id: int) -> int:
    """How many attempts of a queue wait, counted one by one."""
    count: int = await connection.fetchval(
        "SELECT count(*) FROM attempts JOIN lanes USING (lane_id) WHERE queue_id = $1 AND seq > head", queue_id
    )
    return count


async def lease(connection: asyncpg.Connection, queue_id: int, most: int) -> int:
    """Lease up to so many attempts, as a worker does."""
    ranges = await lanes.lease(
        connection,
        [queue_id],
        "worker",
        lanes=most,
        most_per_lane=1,
        rotation=0,
        lease_time=LEASE,
        tenant_id=None,
    )
    return len(await lanes.read(connection, ranges))


async def fire_all(node: Scheduler) -> None:
    while await node.firing.fire_batch():
        pass


async def fired(connection: asyncpg.Connection, jobs: Sequence[Job]) -> list[bool]:
    return [bool(await runs_of(connection, job)) for job in jobs]


async def test_a_full_queue_waits_and_the_tenants_other_queues_go_on(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    full = [
        await add_job(connection, "now", queue="full", partition=each, fire_at=AT + each * SECOND) for each in range(5)
    ]
    other = [await add_job(connection, "now", queue="other", partition=each, fire_at=AT) for each in range(5)]
    await limit(connection, full[0], 2)
    await node.loading.step()
    await fire_all(node)
    assert await fired(connection, full) == [True, True, False, False, False]
    assert all(await fired(connection, other))
    assert node.backpressure.parked == 3
    assert await connection.fetchval("SELECT count(*) FROM timers WHERE queue_id = $1", full[0].queue_id) == 3
    assert node.state.pending.due == 0  # nothing spins
    assert await lease(connection, full[0].queue_id, 1) == 1
    await node.backpressure.step()
    await fire_all(node)
    assert await fired(connection, full) == [True, True, True, False, False]  # the oldest
    assert await lease(connection, full[0].queue_id, 5) == 2
    await node.backpressure.step()
    await fire_all(node)
    assert all(await fired(connection, full))
    assert node.backpressure.parked == 0


async def test_a_tenant_with_all_its_ready_runs_waits_and_others_go_on(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    await connection.execute("UPDATE tenants SET ready_quota = 3")
    tenant_id = await connection.fetchval("INSERT INTO tenants (name, weight) VALUES ('b', 1) RETURNING tenant_id")
    own = [await add_job(connection, "now", queue=queue) for queue in ("a", "b", "c", "d", "e")]
    other = [await add_job(connection, "now", queue=queue, tenant_id=tenant_id) for queue in ("a", "b", "c", "d", "e")]
    await node.loading.step()
    await fire_all(node)
    assert sum(await fired(connection, own)) == 3
    assert all(await fired(connection, other))
    await connection.execute("UPDATE tenants SET ready_quota = 4")
    await node.backpressure.step()
    await fire_all(node)
    assert sum(await fired(connection, own)) == 4


async def test_what_falls_due_later_does_not_overtake(connection: asyncpg.Connection, node: Scheduler) -> None:
    first, second, third = [
        await add_job(connection, "now", partition=each, fire_at=AT + each * SECOND) for each in range(3)
    ]
    await limit(connection, first, 1)
    await node.loading.step()
    await fire_all(node)
    later = await add_job(connection, "now", fire_at=AT + timedelta(hours=1))
    assert await lease(connection, first.queue_id, 1) == 1
    await node.backpressure.read()  # there is room, and what is parked has not gone on
    node.loading.woken(frozenset([later.job_id]))
    await node.loading.step()
    await fire_all(node)
    assert await fired(connection, [first, second, third, later]) == [True, True, False, False]


async def test_manual_runs_and_retries_wait_too(connection: asyncpg.Connection, node: Scheduler) -> None:
    jobs = [await add_job(connection, "now", partition=each) for each in range(3)]
    await limit(connection, jobs[0], 3)
    await node.loading.step()
    await fire_all(node)
    for job, kind in zip(jobs, ("manual", "retry", "manual"), strict=True):
        await add_timer(connection, job, kind, AT + SECOND, "manual")
    node.loading.woken(frozenset(job.job_id for job in jobs))
    await node.loading.step()
    await fire_all(node)
    assert await connection.fetchval("SELECT count(*) FROM timers") == 3
    assert await lease(connection, jobs[0].queue_id, 3) == 3
    await node.backpressure.step()
    await fire_all(node)
    assert await connection.fetchval("SELECT count(*) FROM timers") == 0


async def test_a_parked_timer_that_is_edited_fires_at_its_new_time_only(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    first, edited, moved = [await add_job(connection, "now", partition=each) for each in range(3)]
    elsewhere = await add_job(connection, "now", queue="other", partition=3)
    await limit(connection, first, 1)
    await node.loading.step()
    await fire_all(node)
    blocked = {first.job_id, edited.job_id, moved.job_id} & {
        row["job_id"] for row in await connection.fetch("SELECT job_id FROM timers WHERE due_at < clock_at()")
    }
    later, across = sorted(blocked)
    await connection.execute("UPDATE timers SET due_at = clock_at() + interval '1 hour' WHERE job_id = $1", later)
    await connection.execute("UPDATE timers SET queue_id = $2 WHERE job_id = $1", across, elsewhere.queue_id)
    node.loading.woken(frozenset(blocked))
    await node.loading.step()
    await fire_all(node)
    assert await connection.fetchval("SELECT lane_queue(lane_id) FROM attempts WHERE job_id = $1", across) == (
        elsewhere.queue_id
    )
    await lease(connection, first.queue_id, 1)
    await node.backpressure.step()
    await fire_all(node)
    assert await connection.fetchval("SELECT count(*) FROM attempts WHERE job_id = $1", later) == 0
    assert await connection.fetchval("SELECT count(*) FROM attempts WHERE job_id = $1", across) == 1


def keep(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let few timers be in memory, and look for others in each step."""
    monkeypatch.setattr(loading, "MAX_PER_PARTITION", count)
    monkeypatch.setattr(loading, "REFILL", count // 2)
    monkeypatch.setattr(loading, "FULL", 2 * count)
    monkeypatch.setattr(loading, "OVERFULL", 2 * count)
    monkeypatch.setattr(loading, "AHEAD_SECONDS", 0)
    monkeypatch.setattr(loading, "POLL_SECONDS", 0)
    monkeypatch.setattr(backlog, "CAPACITY", count)
    monkeypatch.setattr(backlog, "LOOK_SECONDS", 0)
    monkeypatch.setattr(backlog, "LOOK_PAUSE", 0)


async def take_turns(node: Scheduler, steps: int = 3) -> None:
    for _ in range(steps):
        await node.loading.step()
        await fire_all(node)


async def test_a_crowd_of_timers_of_a_full_queue_hides_no_others(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 10)
    full = [await add_job(connection, "now", queue="full", fire_at=AT + each * SECOND) for each in range(60)]
    await limit(connection, full[0], 1)
    await take_turns(node)
    assert 0 < node.backpressure.parked == len(node.state.pending) <= 10  # the others are in the table only
    assert not node.loading.is_urgent  # and nothing asks for them
    late = await add_job(connection, "now", queue="other", fire_at=now_at - timedelta(hours=1), tenant_id=2)
    on_time = await add_job(connection, "now", queue="other", fire_at=now_at)
    await take_turns(node)  # no wake-up told of these
    assert await fired(connection, [late, on_time]) == [True, True]
    for _ in range(200):
        assert await depth(connection, full[0].queue_id) <= 1
        await lease(connection, full[0].queue_id, 1)
        await node.backpressure.step()
        await take_turns(node, 1)
        assert len(node.state.pending) <= 10
        if all(await fired(connection, full)):
            break
    assert await fired(connection, full) == [True] * 60
    assert await connection.fetchval("SELECT count(*) FROM attempts") == 62


async def test_a_partition_whose_memory_is_full_of_parked_timers_fires_those_of_other_tenants(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 10)
    full = [await add_job(connection, "now", queue="full", fire_at=now_at) for _ in range(30)]
    await limit(connection, full[0], 1)
    node.loading.woken(frozenset(job.job_id for job in full))
    await take_turns(node)
    assert node.backpressure.parked == len(node.state.pending) == 29
    others = [await add_job(connection, "now", queue="other", fire_at=now_at, tenant_id=2) for _ in range(30)]
    await take_turns(node, 10)
    assert all(await fired(connection, others))
    assert node.backpressure.parked == len(node.state.pending) == 29


async def test_wake_ups_for_a_full_queue_do_not_fill_memory(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 10)
    first = await add_job(connection, "now", fire_at=now_at)
    await limit(connection, first, 1)
    await take_turns(node)
    for _ in range(100):
        job = await add_job(connection, "now", fire_at=now_at)
        node.loading.woken(frozenset([job.job_id]))
        await take_turns(node, 1)
    assert node.backpressure.parked == len(node.state.pending) <= 30
    await limit(connection, first, 1_000)
    await node.backpressure.step()
    await take_turns(node, 50)
    assert await depth(connection, first.queue_id) == 101


async def test_the_oldest_take_the_place_of_others_though_all_are_of_one_job(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    job = await add_job(connection, "now")
    await limit(connection, job, 1)
    for number in range(1, 11):
        await add_timer(connection, job, "manual", AT + number * SECOND, "manual")
    await node.loading.step()
    await fire_all(node)
    assert node.backpressure.parked == 10
    later = [await add_job(connection, "now", fire_at=AT + timedelta(hours=1)) for _ in range(5)]
    await limit(connection, job, 6)
    await node.backpressure.read()
    node.loading.woken(frozenset(each.job_id for each in later))
    await node.loading.step()
    await node.firing.fire_batch()
    assert len(await runs_of(connection, job)) == 6


async def test_what_was_parked_of_a_partition_is_dropped_with_it(
    connection: asyncpg.Connection, database_url: str, node: Scheduler
) -> None:
    jobs = [await add_job(connection, "now", partition=each) for each in range(40)]
    await limit(connection, jobs[0], 1)
    await node.loading.step()
    await fire_all(node)
    assert node.backpressure.parked == 39
    async with scheduler(database_url, "other") as other:
        await other.join()
        await node.join()
        assert node.backpressure.parked == len(node.state.pending) < 39


async def test_timers_that_are_edited_while_they_are_parked_do_not_pile_up(
    connection: asyncpg.Connection, node: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpressure, "MIN_STALE", 0)
    _, edited = [await add_job(connection, "now", partition=each, fire_at=AT + each * SECOND) for each in range(2)]
    await limit(connection, edited, 1)
    await node.loading.step()
    for number in range(20):
        await connection.execute(
            "UPDATE timers SET due_at = due_at + $2 WHERE job_id = $1", edited.job_id, number * SECOND
        )
        node.loading.woken(frozenset([edited.job_id]))
        await node.loading.step()
        await fire_all(node)
        await node.backpressure.step()
        assert 1 <= node.backpressure.parked <= 3
    await limit(connection, edited, 2)
    await node.backpressure.step()
    await fire_all(node)
    assert len(await runs_of(connection, edited)) == 1
    assert node.backpressure.parked == 0


async def test_timers_that_leave_only_gaps_use_no_room(connection: asyncpg.Connection, node: Scheduler) -> None:
    jobs = [await add_job(connection, "* * * * *", partition=each) for each in range(20)]
    await node.loading.step()
    await fire_all(node)
    assert all(await fired(connection, jobs))
    await limit(connection, jobs[0], 22)
    # Their runs are still open, so these ticks are skipped.
    await connection.execute(
        "UPDATE timers SET fire_at = fire_at - interval '1 day', due_at = due_at - interval '1 day'"
    )
    await node.backpressure.read()
    node.loading.woken(frozenset(job.job_id for job in jobs))
    await node.loading.step()
    await fire_all(node)
    assert node.backpressure.parked == 0
    assert await depth(connection, jobs[0].queue_id) == 20


async def test_another_scheduler_fires_what_was_parked_on_one_that_was_killed(
    connection: asyncpg.Connection, database_url: str, node: Scheduler
) -> None:
    jobs = [await add_job(connection, "now", partition=each) for each in range(6)]
    await limit(connection, jobs[0], 2)
    await node.loading.step()
    await fire_all(node)
    assert node.backpressure.parked == 4
    await connection.execute("UPDATE nodes SET seen_at = seen_at - interval '1 hour'")
    async with scheduler(database_url, "other") as other:
        await other.join()
        for _ in range(3):
            await lease(connection, jobs[0].queue_id, 2)
            await other.fire_due()
            await fire_all(node)  # it does not know that it is dead
            assert await depth(connection, jobs[0].queue_id) <= 2
        assert await fired(connection, jobs) == [True] * 6
        assert await connection.fetchval("SELECT count(*) FROM attempts") == 6


@pytest.mark.parametrize("seed", range(3))
async def test_two_schedulers_together_keep_the_bound_and_fire_all(
    connection: asyncpg.Connection, database_url: str, seed: int
) -> None:
    """Random due timers and leases: the depth never passes the bound by more than the schedulers' last readings."""
    chance = random.Random(seed)
    bound = chance.randint(2, 8)
    small = [
        await add_job(connection, "now", queue="small", partition=chance.randrange(256), fire_at=AT + each * SECOND)
        for each in range(60)
    ]
    large = [await add_job(connection, "now", queue="large", partition=chance.randrange(256)) for _ in range(60)]
    await limit(connection, small[0], bound)
    worker = await connect(database_url)
    async with scheduler(database_url, "a") as one, scheduler(database_url, "b") as two:
        nodes = [one, two]
        for _ in range(2):
            for node in nodes:
                await node.join()
        assert {len(node.state.ownership.epochs) for node in nodes} == {128}
        for node in nodes:
            await node.loading.step()
        for _ in range(300):
            node = chance.choice(nodes)
            await chance.choice([node.firing.fire_batch, node.backpressure.step, node.loading.step])()
            assert await depth(connection, small[0].queue_id) <= 2 * bound + 2
            if chance.random() < 0.4:
                await lease(worker, small[0].queue_id, chance.randint(1, bound))
        assert all(await fired(connection, large))
        while not all(await fired(connection, small)):
            await lease(worker, small[0].queue_id, bound)
            for node in nodes:
                await node.backpressure.step()
                await fire_all(node)
    await worker.close()
    assert await connection.fetchval("SELECT count(*) FROM attempts") == len(small) + len(large)


async def test_with_an_overfull_memory_jobs_of_other_queues_fire_when_they_are_due(
    connection: asyncpg.Connection, database_url: str, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 10)
    async with scheduler(database_url, clock=time.clock) as node:
        await node.join()
        await node.loading.step()  # all partitions are read to the horizon
        full = [await add_job(connection, "now", queue="full", fire_at=time.now_at) for _ in range(30)]
        await limit(connection, full[0], 1)
        node.loading.woken(frozenset(job.job_id for job in full))
        await take_turns(node)
        others = [(2, 1), (1, 0), (1, 1)]  # tenant and priority

        async def add(fire_at: datetime) -> list[Job]:
            return [
                await add_job(connection, "now", queue="other", fire_at=fire_at, tenant_id=tenant_id, priority=priority)
                for tenant_id, priority in others
            ]

        at_once, soon = await add(time.now_at), await add(time.now_at + 10 * SECOND)
        node.loading.woken(frozenset(job.job_id for job in at_once + soon))
        await take_turns(node)
        assert all(await fired(connection, at_once))
        assert node.backpressure.parked == len(node.state.pending) == 29  # the others are in the table only
        for _ in range(10):
            await time.move(SECOND)
            await node.join()
            await take_turns(node)
        assert all(await fired(connection, soon))


async def test_priorities_share_the_room_of_a_full_queue(connection: asyncpg.Connection, node: Scheduler) -> None:
    low = [await add_job(connection, "now", partition=n, fire_at=AT + n * SECOND, priority=2) for n in range(30)]
    await limit(connection, low[0], 1)
    await node.loading.step()
    await fire_all(node)
    later = AT + timedelta(hours=1)
    high = [await add_job(connection, "now", partition=n, fire_at=later, priority=0) for n in range(60)]
    normal = [await add_job(connection, "now", partition=n, fire_at=later, priority=1) for n in range(60)]
    node.loading.woken(frozenset(job.job_id for job in (*high, *normal)))
    await node.loading.step()
    await fire_all(node)
    for _ in range(42):
        assert await lease(connection, low[0].queue_id, 1) == 1
        await node.backpressure.step()
        await fire_all(node)
    counts = [sum(await fired(connection, jobs)) for jobs in (high, normal, low)]
    assert sum(counts) == 43
    assert counts[0] >= 28
    assert counts[1] >= 6
    assert counts[2] >= 2  # the first of all, and its share
    assert await fired(connection, low) == [True] * counts[2] + [False] * (30 - counts[2])  # the oldest


async def test_a_queue_without_workers_leaves_some_of_the_tenants_room_to_its_other_queues(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    await connection.execute("UPDATE tenants SET ready_quota = 10")
    dead = [await add_job(connection, "now", queue="dead", partition=n, fire_at=AT + n * SECOND) for n in range(40)]
    await node.loading.step()
    await fire_all(node)
    later = AT + timedelta(hours=1)
    live = [await add_job(connection, "now", queue="live", partition=n, fire_at=later + n * SECOND) for n in range(20)]
    node.loading.woken(frozenset(job.job_id for job in live))
    await node.loading.step()
    for _ in range(30):
        await node.backpressure.step()
        await fire_all(node)
        await lease(connection, live[0].queue_id, 10)
    assert all(await fired(connection, live))
    assert sum(await fired(connection, dead)) < 10


async def test_lines_that_go_on_get_equal_parts_of_what_is_released(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    tenant_id = await connection.fetchval("INSERT INTO tenants (name, weight) VALUES ('b', 1) RETURNING tenant_id")
    old = [
        await add_job(connection, "now", queue="old", partition=n, fire_at=AT + n * SECOND, tenant_id=tenant_id)
        for n in range(20)
    ]
    later = AT + timedelta(hours=1)
    new = [await add_job(connection, "now", queue="new", partition=n, fire_at=later + n * SECOND) for n in range(30)]
    for jobs in (old, new):
        await limit(connection, jobs[0], 1)
    await node.loading.step()
    await fire_all(node)
    for jobs in (old, new):
        await limit(connection, jobs[0], 100)
    await node.backpressure.read()
    node.backpressure.release(10)
    now_us = node.clock.now_us()
    node.state.pending.collect(now_us, {})
    released = node.state.pending.take(100, now_us)
    assert sum(timer.tenant_id == tenant_id for _, timer in released) == 5
    assert len(released) == 10


async def test_timers_fire_though_the_first_reading_of_the_queues_fails(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    jobs = [await add_job(connection, "now", partition=n) for n in range(5)]
    await limit(connection, jobs[0], 2)

    async def fail(*_: object) -> object:
        raise TimeoutError

    pool = node.state.pool
    node.state.pool = hooked(pool, "ready.depths", fail)
    await node.loading.step()
    await fire_all(node)
    assert all(await fired(connection, jobs))
    node.state.pool = pool
    await node.backpressure.step()
    more = [await add_job(connection, "now", partition=n) for n in range(5)]
    node.loading.woken(frozenset(job.job_id for job in more))
    await node.loading.step()
    await fire_all(node)
    assert not any(await fired(connection, more))


async def test_a_queue_that_has_no_room_left_is_read_at_once(connection: asyncpg.Connection, database_url: str) -> None:
    """Not after the second that is between two readings of a system where nothing waits."""
    first = await add_job(connection, "now", queue="small", fire_at=AT)
    await limit(connection, first, 1)
    async with scheduler(database_url) as node:
        asked: list[None] = []
        pressure = backpressure.Backpressure(
            node.state,
            freed=lambda: None,
            short=lambda: asked.append(None),
            catch_up=CatchUp(node.state, None, 500),
        )
        await node.join()
        await pressure.step()
        entries = [PendingTimer(n, Timer(n, "tick", AT, AT, 1, first.rule_id, 1, first.queue_id)) for n in range(1, 6)]
        assert pressure.admit(entries[:1]) == entries[:1]
        assert not asked
        pressure.admit(entries[1:])
        assert len(asked) == 1  # once for all
        assert await pressure.step_when_due() > 0  # and no more often than while timers wait
