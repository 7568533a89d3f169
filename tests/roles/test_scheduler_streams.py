"""Partitions with more due timers than fit into memory: every tenant gets its turn, from the table."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from engine import MINUTE, add_job, runs_of
from evertick.roles.scheduler import Scheduler, loading, streams
from evertick.store.engine import timers
from evertick.store.engine.timers import Stream
from hooked_pool import Run, hooked

SECOND = timedelta(seconds=1)
FLOOD = 20_000
START = Stream(7, -(2**63), 0)

_COPY_TIMER = """
WITH copied AS (
    INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, queue_id, spec_version, kind, partition, priority)
    SELECT nextval('job_numbers') << 8 | partition, fire_at, due_at + n * interval '1 ms', $3, rule_id, queue_id,
           spec_version, kind, partition, $4
      FROM timers, generate_series(1, $2) AS n
     WHERE job_id = $1
    RETURNING queue_id, partition, priority)
INSERT INTO lanes (lane_id, queue_id, partition, priority)
SELECT DISTINCT lane_id_of(queue_id, partition, priority), queue_id, partition, priority FROM copied
    ON CONFLICT DO NOTHING
"""


async def flood(
    connection: asyncpg.Connection, count: int, *, tenant_id: int = 1, priority: int = 1, fire_at: datetime
) -> None:
    """So many one-offs of a tenant in partition 7, a millisecond apart; without the rows of jobs, which firing does not
    read.
    """
    job = await add_job(connection, "now", fire_at=fire_at, priority=priority)
    await connection.execute(_COPY_TIMER, job.job_id, count - 1, tenant_id, priority)
    await connection.execute("UPDATE timers SET tenant_id = $2 WHERE job_id = $1", job.job_id, tenant_id)


def keep(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let so many timers of a partition be in memory."""
    monkeypatch.setattr(loading, "MAX_PER_PARTITION", count)
    monkeypatch.setattr(loading, "REFILL", count // 2)
    monkeypatch.setattr(streams, "CAPACITY", count)
    monkeypatch.setattr(streams, "MIN_PLACE", 1)


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


@pytest.mark.parametrize("late", [SECOND, 4 * MINUTE], ids=["on time", "late"])
async def test_one_timer_behind_twenty_thousand_of_another_tenant_fires_in_the_first_batches(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, late: timedelta
) -> None:
    await flood(connection, FLOOD, fire_at=now_at - 60 * MINUTE)
    one = await add_job(connection, "now", fire_at=now_at - late, tenant_id=2)
    assert await batches_until_fired(connection, node, one.job_id) <= 2


async def test_a_tenant_that_comes_while_a_partition_is_crowded_is_found_by_the_next_look(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a wake-up, and with more due than a poll would be made for."""
    monkeypatch.setattr(loading, "BUSY", 0)
    monkeypatch.setattr(streams, "LOOK_SECONDS", 0)
    monkeypatch.setattr(streams, "LOOK_PAUSE", 0)
    await flood(connection, FLOOD, fire_at=now_at - 60 * MINUTE)
    await node.loading.step()
    assert await node.firing.fire_batch() > 0
    one = await add_job(connection, "now", fire_at=now_at, tenant_id=2)
    assert await batches_until_fired(connection, node, one.job_id) == 1


async def test_a_crowded_partition_fires_whole_and_once_and_is_then_read_by_due_time(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 40)
    monkeypatch.setattr(streams, "LOOK_SECONDS", 0)
    monkeypatch.setattr(streams, "LOOK_PAUSE", 0)
    for tenant_id, priority in ((1, 0), (1, 2), (2, 1), (3, 1)):
        await flood(connection, 100, tenant_id=tenant_id, priority=priority, fire_at=now_at - 60 * MINUTE)
    await node.loading.step()
    assert 7 in node.loading._crowded
    for _ in range(60):
        await node.firing.fire_batch()
        await node.loading.step()
    runs = await connection.fetch("SELECT job_id, count(*) AS runs FROM attempts GROUP BY job_id")
    assert (len(runs), {row["runs"] for row in runs}) == (400, {1})
    assert await connection.fetchval("SELECT count(*) FROM timers") == 0
    assert 7 not in node.loading._crowded
    assert node.state.pending.unfired == {}
    later = await add_job(connection, fire_at=now_at + MINUTE)
    node.loading.lost([7])
    await node.loading.step()
    assert node.state.pending.count(later.partition) == 1


async def test_memory_holds_a_share_of_each_stream_however_much_is_due(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 100)
    for tenant_id in range(1, 6):
        await flood(connection, 500, tenant_id=tenant_id, fire_at=now_at - 60 * MINUTE)
    for _ in range(5):
        await node.loading.step()
    held = Counter(timer.tenant_id for timer in node.state.pending._timers.values())
    # What was read by due time before it was seen that the partition is crowded, and the share of each.
    assert min(held.values()) >= 20
    assert sum(held.values()) <= 200


async def test_more_at_one_instant_than_a_share_are_read_as_the_first_fire(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 16)
    await flood(connection, 120, fire_at=now_at - 60 * MINUTE)
    await connection.execute("UPDATE timers SET due_at = $1", now_at - 60 * MINUTE)
    for fired in (16, 32, 48):
        await node.loading.step()
        await node.firing.fire_batch()
        assert await connection.fetchval("SELECT count(*) FROM attempts") == fired


async def test_a_job_that_fires_again_and_again_does_not_keep_its_streams_other_timers_out(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 16)
    early = now_at - 2 * MINUTE
    again = [await add_job(connection, "every 1s", fire_at=early + n * SECOND / 100) for n in range(16)]
    behind = [await add_job(connection, "now", fire_at=early + SECOND + n * SECOND / 100) for n in range(30)]
    for _ in range(8):
        await node.loading.step()
        await node.firing.fire_batch()
    assert [len(await runs_of(connection, job)) for job in behind] == [1] * len(behind)
    assert all([await runs_of(connection, job) for job in again])


async def test_a_crowded_partition_that_is_lost_while_it_is_read_is_forgotten(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 16)
    await flood(connection, 100, fire_at=now_at - 60 * MINUTE)

    async def lost_meanwhile(read: Run, _: Mapping[str, Any]) -> object:
        answer = await read()
        node.membership._drop({7})
        return answer

    node.state.pool = hooked(node.state.pool, "timers.load_streams", lost_meanwhile)
    await node.loading.step()
    assert 7 not in node.loading._crowded
    assert (node.state.pending.count(7), node.state.pending.unfired) == (0, {})


async def test_streams_are_looked_up_in_their_order_some_at_a_time(
    connection: asyncpg.Connection, now_at: datetime
) -> None:
    for tenant_id, priority in ((3, 1), (1, 2), (1, 0), (2, 1)):
        await flood(connection, 5, tenant_id=tenant_id, priority=priority, fire_at=now_at)
    await add_job(connection, partition=8)
    first = await timers.first_of_streams(connection, [START], 3)
    assert [(timer.stream, timer.due_at) for timer in first] == [
        (Stream(7, 1, 0), now_at),
        (Stream(7, 1, 2), now_at),
        (Stream(7, 2, 1), now_at),
    ]
    rest = await timers.first_of_streams(connection, [first[-1].stream, Stream(8, -1, 0)], 3)
    assert [timer.stream for timer in rest] == [Stream(7, 3, 1), Stream(8, 1, 1)]


async def test_a_stream_is_read_from_its_own_instant_on_and_no_further_than_asked(
    connection: asyncpg.Connection, now_at: datetime
) -> None:
    await flood(connection, 10, tenant_id=1, fire_at=now_at)
    await flood(connection, 10, tenant_id=2, fire_at=now_at)
    step = timedelta(milliseconds=1)
    wanted = {Stream(7, 1, 1): (now_at + 2 * step, 3), Stream(7, 2, 1): (now_at, 100)}
    found = await timers.load_streams(connection, wanted, now_at + 8 * step)
    due_ats = {
        tenant_id: [(timer.due_at - now_at) // step for timer in found if timer.tenant_id == tenant_id]
        for tenant_id in (1, 2)
    }
    assert due_ats == {1: [2, 3, 4], 2: list(range(8))}


async def test_very_many_streams_are_read_in_rotation(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LOOK_SECONDS": 0, "LOOK_PAUSE": 0, "MAX_STREAMS": 3, "MIN_SHARE": 2}.items():
        monkeypatch.setattr(streams, name, value)
    keep(monkeypatch, 10)
    for tenant_id in range(1, 11):
        await flood(connection, 100, tenant_id=tenant_id, fire_at=now_at - (60 - tenant_id) * MINUTE)
    seen: set[int] = set()
    for _ in range(5):
        await node.loading.step()
        seen |= {timer.tenant_id for timer in node.state.pending._timers.values()}
        await node.firing.fire_batch()
    assert seen == set(range(1, 11))


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
    for _ in range(8):
        await node.loading.step()
        await node.firing.fire_batch()
    left = await left_by(connection, "tenant_id")
    fired = {tenant_id: FLOOD - left[tenant_id] for tenant_id in weights}
    for tenant_id, weight in weights.items():
        assert fired[tenant_id] / sum(fired.values()) == pytest.approx(weight / 7, rel=0.05)


async def test_low_goes_on_firing_beside_a_flood_of_high(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    await flood(connection, FLOOD, priority=0, fire_at=now_at - 60 * MINUTE)
    await flood(connection, FLOOD, priority=2, fire_at=now_at - 30 * MINUTE)
    before = left = {0: FLOOD, 2: FLOOD}
    for _ in range(6):
        before = left
        await node.loading.step()
        await node.firing.fire_batch()
        left = await left_by(connection, "priority")
    fired = {priority: before[priority] - left[priority] for priority in left}
    assert fired[2] / sum(fired.values()) == pytest.approx(1 / 17, rel=0.05)
