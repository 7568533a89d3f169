"""Partitions with more due timers than fit into memory: every tenant gets its turn, from the table."""

import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from engine import MINUTE, add_job, add_timer, runs_of
from evertick.domain.ids import partition_of
from evertick.domain.policies import ConcurrentPolicy
from evertick.domain.rule import Policies
from evertick.roles.scheduler import Scheduler, backlog, loading
from evertick.roles.scheduler.batch_size import SHARED_BATCH
from evertick.store.engine import timers
from evertick.store.engine.timers import Stream, Stretch
from hooked_pool import Run, hooked

SECOND = timedelta(seconds=1)
HOUR = 60 * MINUTE
FLOOD = 20_000
START = Stream(7, 2**63 - 1, 0, 0)

_COPY_TIMER = """
WITH copied AS (
    INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, queue_id, spec_version, kind, partition, priority)
    SELECT nextval('job_numbers') << 8 | $5 + n % $6, fire_at, due_at + n * interval '1 ms', $3, rule_id, queue_id,
           spec_version, kind, $5 + n % $6, $4
      FROM timers, generate_series(1, $2) AS n
     WHERE job_id = $1
    RETURNING queue_id, partition, priority)
INSERT INTO lanes (lane_id, queue_id, partition, priority)
SELECT DISTINCT lane_id_of(queue_id, partition, priority), queue_id, partition, priority FROM copied
    ON CONFLICT DO NOTHING
"""


async def flood(
    connection: asyncpg.Connection,
    count: int,
    *,
    fire_at: datetime,
    tenant_id: int = 1,
    priority: int = 1,
    partitions: int = 1,
) -> None:
    """So many one-offs of a tenant in partition 7 and following ones, a millisecond apart; without the rows of jobs,
    which firing does not read.
    """
    job = await add_job(connection, "now", fire_at=fire_at, priority=priority)
    await connection.execute(_COPY_TIMER, job.job_id, count - 1, tenant_id, priority, 7, partitions)
    await connection.execute("UPDATE timers SET tenant_id = $2 WHERE job_id = $1", job.job_id, tenant_id)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for new streams, and poll, in each step."""
    monkeypatch.setattr(backlog, "LOOK_SECONDS", 0)
    monkeypatch.setattr(backlog, "LOOK_PAUSE", 0)
    monkeypatch.setattr(loading, "POLL_SECONDS", 0)


def keep(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let so many timers be in memory: of a partition that is read by due time, and of all backlogs."""
    monkeypatch.setattr(loading, "MAX_PER_PARTITION", count)
    monkeypatch.setattr(loading, "REFILL", count // 2)
    monkeypatch.setattr(loading, "FULL", 2 * count)
    monkeypatch.setattr(backlog, "CAPACITY", count)


async def left_by(connection: asyncpg.Connection, column: str) -> dict[int, int]:
    """How many timers have not fired."""
    rows = await connection.fetch(f"SELECT {column} AS value, count(*) AS count FROM timers GROUP BY {column}")
    return {row["value"]: row["count"] for row in rows}


async def batches_until_fired(connection: asyncpg.Connection, node: Scheduler, job_id: int) -> int:
    """How many batches it takes for a job to have a run, while the loops take turns."""
    for batches in range(1, 100):
        await node.loading.step()
        await node.firing.fire_batch()
        if await connection.fetchval("SELECT count(*) FROM attempts WHERE job_id = $1", job_id):
            return batches
    raise AssertionError("it did not fire")


async def fire_all(connection: asyncpg.Connection, node: Scheduler, steps: int = 200) -> int:
    """Let the loops take turns until nothing is left; returns the most timers that were in memory."""
    most = 0
    for _ in range(steps):
        await node.loading.step()
        most = max(most, len(node.state.pending))
        await node.firing.fire_batch()
        if not await connection.fetchval("SELECT count(*) FROM timers WHERE due_at < 'infinity'"):
            return most
    raise AssertionError("not all fired")


async def assert_each_fired_once(connection: asyncpg.Connection, count: int) -> None:
    rows = await connection.fetch("SELECT count(*) AS runs FROM attempts GROUP BY job_id")
    assert (len(rows), {row["runs"] for row in rows}) == (count, {1})


@pytest.mark.parametrize("late", [SECOND, 4 * MINUTE], ids=["on time", "late"])
async def test_one_timer_behind_twenty_thousand_of_another_tenant_fires_in_the_first_batches(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, late: timedelta
) -> None:
    await flood(connection, FLOOD, fire_at=now_at - HOUR)
    one = await add_job(connection, "now", fire_at=now_at - late, tenant_id=2)
    assert await batches_until_fired(connection, node, one.job_id) <= 2


async def test_a_timer_on_time_fires_before_twenty_thousand_late_ones_of_its_own_tenant(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    await flood(connection, FLOOD, fire_at=now_at - HOUR)
    one = await add_job(connection, "now", fire_at=now_at - SECOND)
    assert await batches_until_fired(connection, node, one.job_id) <= 2


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("tenant_id", [1, 2], ids=["same tenant", "other tenant"])
async def test_a_timer_that_comes_beside_a_backlog_and_that_no_wake_up_names_is_found_at_once(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, tenant_id: int
) -> None:
    await flood(connection, FLOOD, fire_at=now_at - HOUR)
    await node.loading.step()
    assert await node.firing.fire_batch() > 0
    one = await add_job(connection, "now", fire_at=now_at, tenant_id=tenant_id)
    assert await batches_until_fired(connection, node, one.job_id) == 1


@pytest.mark.usefixtures("often")
async def test_a_late_timer_of_a_new_tenant_that_no_wake_up_names_is_found_behind_a_backlog(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    await flood(connection, FLOOD, fire_at=now_at - HOUR)
    await node.loading.step()
    one = await add_job(connection, "now", fire_at=now_at - HOUR / 2, tenant_id=2)
    assert await batches_until_fired(connection, node, one.job_id) <= 2


@pytest.mark.usefixtures("often")
async def test_a_timer_that_no_wake_up_names_is_found_behind_timers_that_are_in_memory_and_do_not_fire(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    for number in range(2 * loading.POLL_LIMIT):
        await add_job(connection, "now", fire_at=now_at - (40 + number) * SECOND)
    await node.loading.step()
    await add_job(connection, "now", fire_at=now_at - 20 * SECOND, tenant_id=2)
    await node.loading.step()
    assert len(node.state.pending) == 2 * loading.POLL_LIMIT + 1


@pytest.mark.usefixtures("often")
async def test_a_backlog_fires_whole_and_once_and_then_the_partition_is_read_by_due_time(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 40)
    for tenant_id, priority in ((1, 0), (1, 2), (2, 1), (3, 1)):
        await flood(connection, 100, tenant_id=tenant_id, priority=priority, fire_at=now_at - HOUR)
    await node.loading.step()
    assert node.loading.is_behind
    assert await fire_all(connection, node) <= 2 * 40
    await assert_each_fired_once(connection, 400)
    await node.loading.step()
    assert not node.loading.is_behind
    later = await add_job(connection, "now", fire_at=now_at - 10 * MINUTE)
    node.loading.woken(frozenset({later.job_id}))
    assert await batches_until_fired(connection, node, later.job_id) == 1


@pytest.mark.usefixtures("often")
async def test_more_due_on_time_than_fits_into_memory_is_read_by_streams_and_leaves_later_work_readable(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 20)
    await flood(connection, 200, fire_at=now_at - 30 * SECOND)
    await add_job(connection, "now", fire_at=now_at, tenant_id=2)
    assert await fire_all(connection, node) <= 4 * 20
    await assert_each_fired_once(connection, 201)


@pytest.mark.usefixtures("often")
async def test_a_partition_whose_memory_is_full_is_read_by_streams(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However its timers came there: here by wake-ups."""
    keep(monkeypatch, 20)
    await node.loading.step()
    named = [await add_job(connection, "now", fire_at=now_at + 2 * SECOND) for _ in range(45)]
    node.loading.woken(frozenset(job.job_id for job in named))
    # All of it is due: polls bring 16 at a time of what is not, which is much beside a memory of 20.
    await flood(connection, 100, fire_at=now_at - SECOND)
    await add_job(connection, "now", fire_at=now_at, tenant_id=2)
    await node.loading.step()
    assert node.loading.is_behind
    assert len(node.state.pending) <= 45 + 20
    assert await fire_all(connection, node, 2_000) <= 4 * 20
    await assert_each_fired_once(connection, 146)


@pytest.mark.usefixtures("often")
async def test_memory_is_bounded_however_many_partitions_have_a_backlog(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 140)
    for tenant_id in (1, 2, 3):
        await flood(connection, 1_000, tenant_id=tenant_id, fire_at=now_at - HOUR, partitions=70)
    assert await fire_all(connection, node) <= 140
    await assert_each_fired_once(connection, 3_000)


@pytest.mark.usefixtures("often")
async def test_streams_that_do_not_fit_into_memory_together_take_turns(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 4)
    monkeypatch.setattr(backlog, "MAX_STREAMS", 3)
    for tenant_id in range(1, 11):
        await flood(connection, 20, tenant_id=tenant_id, fire_at=now_at - HOUR - tenant_id * MINUTE)
    for _ in range(8):
        await node.loading.step()
        await node.firing.fire_batch()
        assert len(node.state.pending) <= 4
    left = await left_by(connection, "tenant_id")
    assert min(left.values()) >= 20 - 6
    assert sum(count < 20 for count in left.values()) >= 8
    await fire_all(connection, node)
    await assert_each_fired_once(connection, 200)


async def test_more_at_one_instant_than_a_share_are_read_as_the_first_fire(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 16)
    await flood(connection, 120, fire_at=now_at - HOUR)
    await connection.execute("UPDATE timers SET due_at = $1", now_at - HOUR)
    for fired in (16, 32, 48):
        await node.loading.step()
        await node.firing.fire_batch()
        assert await connection.fetchval("SELECT count(*) FROM attempts") == fired


@pytest.mark.usefixtures("often")
async def test_paused_jobs_and_queued_runs_that_wait_their_turn_do_not_disturb_a_backlog(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 20)
    await flood(connection, 100, fire_at=now_at - HOUR)
    for tenant_id in (1, 2):
        paused = await add_job(connection, fire_at=now_at - HOUR, tenant_id=tenant_id)
        await connection.execute("UPDATE timers SET due_at = 'infinity' WHERE job_id = $1", paused.job_id)
    allowed = Policies(concurrent_policy=ConcurrentPolicy.ALLOW, max_concurrent=10)
    queued = await add_job(connection, policies=allowed, fire_at=now_at + 2 * HOUR)
    for number in range(30):
        await add_timer(connection, queued, "queued", now_at - HOUR + number * SECOND, "tick")
    await node.loading.step()
    for _ in range(20):
        await node.firing.fire_batch()
        await node.loading.step()
    left = {row["kind"] for row in await connection.fetch("SELECT kind::text FROM timers WHERE due_at < $1", now_at)}
    assert left <= {"queued"}
    assert await connection.fetchval("SELECT count(*) FROM attempts WHERE job_id <> $1", queued.job_id) == 100


async def test_a_job_that_fires_again_and_again_does_not_keep_its_streams_other_timers_out(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 16)
    early = now_at - 4 * MINUTE
    again = [await add_job(connection, "every 1s", fire_at=early + n * SECOND / 100) for n in range(16)]
    behind = [await add_job(connection, "now", fire_at=early + SECOND + n * SECOND / 100) for n in range(30)]
    for _ in range(12):
        await node.loading.step()
        await node.firing.fire_batch()
    assert [len(await runs_of(connection, job)) for job in behind] == [1] * len(behind)
    assert all([await runs_of(connection, job) for job in again])


async def test_a_partition_that_is_lost_while_its_backlog_is_read_is_forgotten(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 16)
    await flood(connection, 100, fire_at=now_at - HOUR)

    async def lost_meanwhile(read: Run, _: Mapping[str, Any]) -> object:
        answer = await read()
        node.state.ownership.drop({7})
        node.loading.lost([7])
        return answer

    node.state.pool = hooked(node.state.pool, "timers.load_streams", lost_meanwhile)
    await node.loading.step()
    assert not node.loading.is_behind
    assert node.state.pending.count(7) == 0


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_all_that_is_due_fires_once_and_memory_is_bounded(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Timers come early and late, with and without a wake-up; partitions are lost and taken again."""
    keep(monkeypatch, 30)
    choose = random.Random(seed)
    jobs = 0
    for _ in range(60):
        match choose.choice(("flood", "one", "one", "load", "load", "fire", "fire", "lose")):
            case "flood":
                count = choose.randrange(2, 60)
                late = choose.choice((HOUR, 30 * SECOND, SECOND))
                tenant_id, priority = choose.randrange(1, 6), choose.randrange(3)
                await flood(
                    connection, count, tenant_id=tenant_id, priority=priority, fire_at=now_at - late, partitions=3
                )
                jobs += count
            case "one":
                late = choose.choice((2 * HOUR, HOUR, 40 * SECOND, SECOND))
                job = await add_job(
                    connection, "now", fire_at=now_at - late, tenant_id=choose.randrange(1, 9), partition=8
                )
                if choose.random() < 0.5:
                    node.loading.woken(frozenset({job.job_id}))
                jobs += 1
            case "load":
                await node.loading.step()
            case "fire":
                await node.firing.fire_batch()
            case _:
                lost = {choose.randrange(7, 10)}
                epochs = {each: node.state.ownership.epochs[each] for each in lost}
                node.state.ownership.drop(lost)
                node.state.pending.keep_only(node.state.ownership.epochs)
                node.loading.lost(lost)
                outages = dict.fromkeys(choose.sample(sorted(lost), choose.randrange(2)), now_at - MINUTE)
                node.state.ownership.gain(epochs, 0, outages, node.clock.now_us())
        assert all(node.state.pending.count(partition) <= 4 * 30 for partition in range(256))
    if jobs:
        await fire_all(connection, node)
        await assert_each_fired_once(connection, jobs)


async def test_a_walk_meets_streams_in_their_order_some_at_a_time(
    connection: asyncpg.Connection, now_at: datetime
) -> None:
    for tenant_id, priority in ((3, 1), (1, 2), (1, 0), (2, 1)):
        await flood(connection, 5, tenant_id=tenant_id, priority=priority, fire_at=now_at)
    await flood(connection, 5, tenant_id=4, fire_at=now_at + HOUR)
    queue_id = (await add_job(connection, partition=8)).queue_id
    other_id = (await add_job(connection, fire_at=now_at, queue="other", priority=2)).queue_id
    stretch = Stretch(now_at, now_at + MINUTE)
    walked = await timers.walk_streams(connection, [(START, stretch, 3)])
    assert [(each.stream, each.due_at, each.is_cut) for each in walked] == [
        (Stream(7, 3, 1, queue_id), now_at, False),
        (Stream(7, 2, 1, queue_id), now_at, True),
    ]
    rest = await timers.walk_streams(
        connection, [(walked[-1].stream, stretch, 3), (START._replace(partition=8), stretch, 1)]
    )
    assert [(each.stream, each.number, each.is_cut) for each in rest] == [
        (Stream(7, 1, 2, max(queue_id, other_id)), 1, False),
        (Stream(7, 1, 2, min(queue_id, other_id)), 2, False),
        (Stream(7, 1, 0, queue_id), 3, True),
        (Stream(8, 1, 1, queue_id), 1, True),
    ]
    ahead = await timers.walk_streams(connection, [(START, Stretch(now_at - HOUR, now_at), 9)])
    assert [(each.stream, each.due_at, each.number) for each in ahead] == [(Stream(7, 1, 0, queue_id), None, 6)]


async def test_a_stream_is_read_in_its_own_stretch_and_no_further_than_asked(
    connection: asyncpg.Connection, now_at: datetime
) -> None:
    await flood(connection, 10, tenant_id=1, fire_at=now_at)
    await flood(connection, 10, tenant_id=2, fire_at=now_at)
    step = timedelta(milliseconds=1)
    before_at = now_at + 8 * step
    queue_id = await connection.fetchval("SELECT queue_id FROM queues WHERE name = 'default'")
    wanted = [
        (Stream(7, 1, 1, queue_id), Stretch(now_at + 2 * step, before_at), 3),
        (Stream(7, 2, 1, queue_id), Stretch(now_at, before_at), 100),
    ]
    found = await timers.load_streams(connection, wanted)
    due_ats = {
        tenant_id: [(timer.due_at - now_at) // step for timer in found if timer.tenant_id == tenant_id]
        for tenant_id in (1, 2)
    }
    assert due_ats == {1: [2, 3, 4], 2: list(range(8))}
    assert {partition_of(timer.job_id) for timer in found} == {7}


async def test_tenants_fire_by_their_weights_while_more_is_due_than_fires(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    """Though the timers of the lightest come first by due time."""
    weights = {11: 1, 12: 2, 13: 4}
    for number, (tenant_id, weight) in enumerate(weights.items()):
        await connection.execute(
            "INSERT INTO tenants (tenant_id, name, weight) VALUES ($1, $2, $3)", tenant_id, f"t{tenant_id}", weight
        )
        await flood(connection, FLOOD, tenant_id=tenant_id, fire_at=now_at - (60 - 10 * number) * MINUTE)
    left = []
    for _ in range(8):
        await node.loading.step()
        await node.firing.fire_batch()
        left.append(await left_by(connection, "tenant_id"))
    # The first batch does not wait until all that was read has left the wheel.
    fired = {tenant_id: left[0][tenant_id] - left[-1][tenant_id] for tenant_id in weights}
    # On a busy machine a batch is small: then a turn more or less is more than its part.
    turn = SHARED_BATCH / 7
    for tenant_id, weight in weights.items():
        assert fired[tenant_id] == pytest.approx(sum(fired.values()) * weight / 7, rel=0.05, abs=turn * weight)


async def test_low_goes_on_firing_beside_a_flood_of_high(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    await flood(connection, FLOOD, priority=0, fire_at=now_at - HOUR)
    await flood(connection, FLOOD, priority=2, fire_at=now_at - HOUR / 2)
    before = left = {0: FLOOD, 2: FLOOD}
    for _ in range(6):
        before = left
        await node.loading.step()
        await node.firing.fire_batch()
        left = await left_by(connection, "priority")
    fired = {priority: before[priority] - left[priority] for priority in left}
    # On a busy machine a batch is small: then one more or less is more than its part.
    assert fired[2] == pytest.approx(sum(fired.values()) / 17, rel=0.05, abs=1)
