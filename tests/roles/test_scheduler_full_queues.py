"""Full queues hide no timers of other queues, whoever owns those and however they come."""

from datetime import datetime, timedelta

import asyncpg
import pytest

from engine import AT, MINUTE, add_job, scheduler
from evertick.roles.scheduler import Scheduler, loading
from hooked_pool import hooked
from roles.test_scheduler_backpressure import SECOND, fired, keep, lease, limit, take_turns

HOUR = 60 * MINUTE


@pytest.mark.parametrize("late", [3 * SECOND, 5 * MINUTE], ids=["after a hand-over", "after an outage"])
async def test_late_timers_of_a_queue_fire_behind_any_number_of_a_full_queue_of_the_same_tenant(
    connection: asyncpg.Connection,
    database_url: str,
    now_at: datetime,
    monkeypatch: pytest.MonkeyPatch,
    late: timedelta,
) -> None:
    keep(monkeypatch, 10)
    full = [await add_job(connection, "now", queue="full", fire_at=now_at - HOUR + n * SECOND) for n in range(60)]
    await limit(connection, full[0], 2)
    other = await add_job(connection, queue="other", fire_at=now_at - late)
    if late < MINUTE:
        await connection.execute("UPDATE partitions SET released_at = clock_at()")
    async with scheduler(database_url) as node:
        await node.join()
        await take_turns(node, 5)
        assert await fired(connection, [other]) == [True]
        assert sum(await fired(connection, full)) == 2


async def test_a_timer_that_no_wake_up_names_and_that_is_committed_late_fires_beside_a_full_queue(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 1_000)
    full = [
        await add_job(connection, "now", queue="full", fire_at=now_at - 50 * SECOND + n * SECOND / 10)
        for n in range(3 * loading.POLL_LIMIT)
    ]
    await limit(connection, full[0], 1)
    await take_turns(node, 5)
    before_at = await connection.fetchval("SELECT clock_at() - interval '0.5 seconds'")
    late = await add_job(connection, "now", queue="other", fire_at=before_at)
    await take_turns(node, 5)
    assert await fired(connection, [late]) == [True]


@pytest.mark.parametrize("is_named", [True, False])
async def test_timers_of_a_full_queue_that_are_moved_to_another_queue_fire(
    connection: asyncpg.Connection,
    node: Scheduler,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_named: bool,
) -> None:
    """However full the partition's memory is, and whether wake-ups name them or not."""
    keep(monkeypatch, 10)
    jobs = [await add_job(connection, "now", queue="full", fire_at=AT + n * SECOND) for n in range(40)]
    other = await add_job(connection, "now", queue="other", partition=3)
    await limit(connection, jobs[0], 1)
    node.loading.woken(frozenset(job.job_id for job in jobs))
    await take_turns(node, 5)
    await connection.execute("UPDATE timers SET queue_id = $1", other.queue_id)
    await connection.execute(
        "INSERT INTO lanes (lane_id, queue_id, partition, priority)"
        " SELECT DISTINCT lane_id_of(queue_id, partition, priority), queue_id, partition, priority FROM timers"
        " ON CONFLICT DO NOTHING"
    )
    node.loading.woken(frozenset(job.job_id for job in jobs) if is_named else None)
    for _ in range(20):
        await take_turns(node, 1)
        await node.backpressure.step()
    assert all(await fired(connection, jobs))


async def test_a_tenant_with_very_many_full_queues_leaves_places_in_memory_to_others(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 10)
    for number in range(30):
        jobs = [await add_job(connection, "now", queue=f"full {number}", fire_at=AT + n * SECOND) for n in range(3)]
        await limit(connection, jobs[0], 1)
    await take_turns(node, 20)
    others = [
        await add_job(connection, "now", fire_at=now_at - HOUR, tenant_id=tenant_id)
        for tenant_id in (2, 3)
        for _ in range(5)
    ]
    await take_turns(node, 10)
    assert all(await fired(connection, others))
    assert len(node.state.pending) <= 2 * 10


async def test_tenants_that_take_turns_in_memory_do_not_wait_for_one_with_very_many_full_queues(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 4)
    for number in range(20):
        jobs = [await add_job(connection, "now", queue=f"full {number}", fire_at=AT + n * SECOND) for n in range(2)]
        await limit(connection, jobs[0], 1)
    await take_turns(node, 20)
    others = [
        await add_job(connection, "now", fire_at=now_at - HOUR, tenant_id=tenant_id)
        for tenant_id in range(2, 12)
        for _ in range(3)
    ]
    await take_turns(node, 20)
    assert all(await fired(connection, others))


async def test_queues_of_a_tenant_that_has_more_of_them_than_places_take_turns_in_memory(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though some of them are full and keep their places."""
    keep(monkeypatch, 10)
    full = [
        await add_job(connection, "now", queue=f"full {queue}", fire_at=AT + n * SECOND)
        for n in range(2)
        for queue in range(4)
    ]
    for job in full:
        await limit(connection, job, 1)
    queues = [
        [await add_job(connection, "now", queue=f"queue {queue}", fire_at=AT + HOUR + n * SECOND) for n in range(8)]
        for queue in range(15)
    ]
    await add_job(connection, "now", fire_at=now_at - HOUR, tenant_id=2)
    counts = [0]
    for _ in range(200):
        await take_turns(node, 1)
        counts = [sum(await fired(connection, jobs)) for jobs in queues]
        assert max(counts) <= min(counts) + 2
        if min(counts) == 8:
            break
    assert min(counts) == 8
    assert await fired(connection, full) == [True] * 4 + [False] * 4
    assert await lease(connection, full[0].queue_id, 1) == 1
    await node.backpressure.step()
    await take_turns(node, 1)
    assert await fired(connection, full) == [True] * 5 + [False] * 3


@pytest.mark.parametrize("change", ["DELETE FROM timers", "UPDATE timers SET due_at = 'infinity'"])
async def test_deleted_and_paused_jobs_of_a_full_queue_do_not_stay_in_memory(
    connection: asyncpg.Connection, node: Scheduler, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    keep(monkeypatch, 10)
    jobs = [await add_job(connection, "now", fire_at=AT + n * SECOND) for n in range(40)]
    await limit(connection, jobs[0], 1)
    node.loading.woken(frozenset(job.job_id for job in jobs))
    await take_turns(node, 5)
    assert node.backpressure.parked == len(node.state.pending) == 39  # more than wake-ups would bring
    await connection.execute(change)
    node.loading.woken(frozenset(job.job_id for job in jobs))
    await take_turns(node, 1)
    await node.backpressure.step()
    assert node.backpressure.parked == len(node.state.pending) == 0


async def test_a_tick_that_fires_while_its_job_is_read_is_not_dropped(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    job = await add_job(connection, "every 1s", fire_at=now_at)
    await node.loading.step()

    async def fired_meanwhile(*_: object) -> object:
        await node.firing.fire_batch()
        return []  # as it was before the tick had moved to within the horizon

    node.state.pool = hooked(node.state.pool, "timers.load_jobs", fired_meanwhile)
    node.loading.woken(frozenset([job.job_id]))
    await node.loading.step()
    assert await fired(connection, [job]) == [True]
    assert len(node.state.pending) == 1
