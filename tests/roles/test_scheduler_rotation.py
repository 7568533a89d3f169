"""How backlogs are looked up: in rotation, in portions that fit, and whatever happens meanwhile."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from engine import LIFETIME, add_job, add_timer, until
from evertick.roles.scheduler import Scheduler, backlog, batch_size, loading
from evertick.store.engine import timers
from hooked_pool import Run, hooked
from roles.test_scheduler_backlog import HOUR, SECOND, assert_each_fired_once, flood, keep, often

__all__ = ["often"]


class Looks:
    """The looks that follow: for each the streams that may be passed, by partition. They fail while `error` is set."""

    def __init__(self, node: Scheduler) -> None:
        self.mosts: list[dict[int, int]] = []
        self.error: Exception | None = None
        node.state.pool = hooked(node.state.pool, "timers.walk_streams", self._note)

    async def _note(self, read: Run, values: Mapping[str, Any]) -> object:
        self.mosts.append(dict(zip(values["partitions"], values["mosts"], strict=True)))
        if self.error is not None:
            raise self.error
        return await read()


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do nothing only because time has passed."""
    monkeypatch.setattr(backlog, "LOOK_SECONDS", 3_600)
    monkeypatch.setattr(loading, "POLL_SECONDS", 3_600)


async def load_all(node: Scheduler) -> None:
    await node.loading.step()
    while node.loading.is_urgent:
        await node.loading.step()


@pytest.mark.usefixtures("often")
async def test_a_boundary_that_rises_again_and_again_does_not_keep_the_rotation_from_its_last_streams(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 8)
    monkeypatch.setattr(batch_size, "BATCH", 8)
    for tenant_id in range(1, 31):
        await flood(connection, 40, fire_at=now_at - 30 * SECOND, tenant_id=tenant_id)
    for _ in range(40):  # every second batch has timers that are on time alone
        on_time_at = await connection.fetchval("SELECT clock_at()")
        await flood(connection, 20, fire_at=on_time_at, tenant_id=99)
        await node.loading.step()
        await node.firing.fire_batch()
    rows = await connection.fetch("SELECT tenant_id, count(*) AS left FROM timers WHERE tenant_id < 99 GROUP BY 1")
    assert [row["tenant_id"] for row in rows if row["left"] == 40] == []


@pytest.mark.usefixtures("seldom")
async def test_the_first_rotation_goes_on_until_all_streams_were_looked_up(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "MAX_STREAMS", 3)
    for tenant_id in range(1, 11):
        await flood(connection, 2, fire_at=now_at - HOUR, tenant_id=tenant_id)
    await load_all(node)
    assert len(node.state.pending) == 20


@pytest.mark.usefixtures("seldom")
async def test_a_look_passes_no_more_streams_than_there_is_room_for(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 10)
    monkeypatch.setattr(backlog, "MIN_STREAMS", 2)
    for tenant_id in range(1, 41):
        await flood(connection, 2, fire_at=now_at - HOUR, tenant_id=tenant_id)
    looks = Looks(node)
    await load_all(node)
    assert len(node.state.pending) == 10
    await node.firing.fire_batch()
    await load_all(node)
    assert [look[7] for look in looks.mosts] == [backlog.MAX_STREAMS, 10]


@pytest.mark.usefixtures("often")
async def test_looks_are_sized_by_the_streams_that_they_pass_though_few_of_them_have_a_backlog(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "LOOK_ROWS", 20)
    await flood(connection, 8, fire_at=now_at - HOUR, partitions=8)
    for tenant_id in range(2, 11):
        await flood(connection, 8, fire_at=now_at + HOUR, tenant_id=tenant_id, partitions=8)
    await load_all(node)
    looks = Looks(node)
    await node.loading.step()
    assert [len(look) for look in looks.mosts] == [2]


@pytest.mark.usefixtures("often")
async def test_looks_that_take_too_long_shrink_and_do_not_keep_polls_from_finding_what_is_on_time(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    await flood(connection, 64, fire_at=now_at - HOUR, partitions=32)
    await load_all(node)
    looks = Looks(node)
    looks.error = TimeoutError()
    for _ in range(9):
        await add_job(connection, "now", fire_at=now_at)
        known = len(node.state.pending)
        with pytest.raises(TimeoutError):
            await node.loading.step()
        assert len(node.state.pending) == known + 1
    sizes = [(len(look), max(look.values())) for look in looks.mosts]
    assert sizes[0] == (32, 1_000)
    assert sizes[-1] == (backlog.LOOK_ROWS // backlog.SLOWEST, backlog.LOOK_ROWS // backlog.SLOWEST)
    looks.error = None
    for _ in range(9):
        await node.loading.step()
    assert (len(looks.mosts[-1]), max(looks.mosts[-1].values())) == sizes[0]


@pytest.mark.usefixtures("seldom")
async def test_what_runs_low_is_read_though_the_reading_failed_before(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 10)
    await flood(connection, 30, fire_at=now_at - HOUR)
    await load_all(node)
    await node.firing.fire_batch()
    pool = node.state.pool

    async def failing(_: Run, __: Mapping[str, Any]) -> object:
        raise TimeoutError

    node.state.pool = hooked(pool, "timers.load_streams", failing)
    with pytest.raises(TimeoutError):
        await node.loading.step()
    node.state.pool = pool
    assert node.loading.is_urgent
    await load_all(node)
    assert len(node.state.pending) == 10


@pytest.mark.usefixtures("often")
async def test_a_timer_that_was_committed_late_is_found_in_a_backlog(
    connection: asyncpg.Connection, node: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its due time lies before the first one that a look found."""
    keep(monkeypatch, 8)
    recent_at = await connection.fetchval("SELECT clock_at()")
    await flood(connection, 30, fire_at=recent_at - SECOND / 10)
    for _ in range(3):
        await node.loading.step()
    assert node.loading.is_behind
    late = await add_job(connection, "now", fire_at=recent_at - 2 * SECOND, tenant_id=5)
    await node.loading.step()
    assert late.job_id in {timer.job_id for timer in node.state.pending}


@pytest.mark.usefixtures("seldom")
async def test_firing_has_more_read_as_soon_as_there_is_room(
    connection: asyncpg.Connection, database_url: str, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No poll and no look comes to its help."""
    keep(monkeypatch, 20)
    await flood(connection, 100, fire_at=now_at - HOUR)
    for tenant_id in range(2, 42):
        await flood(connection, 2, fire_at=now_at - HOUR, tenant_id=tenant_id, partitions=2)
    node = Scheduler(database_url, "started", lifetime=LIFETIME)  # what was lost and taken again needs a look
    await node.start()
    try:
        await until(lambda: connection.fetchval("SELECT count(*) = 180 FROM attempts"))
    finally:
        await node.stop()
    await assert_each_fired_once(connection, 180)


@pytest.mark.usefixtures("seldom")
async def test_the_last_stream_of_many_is_read_on_when_the_others_have_had_their_turns(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each step all is read that is urgent, before anything fires: as if firing were slow."""
    keep(monkeypatch, 20)
    await flood(connection, 100, fire_at=now_at - HOUR)
    for tenant_id in range(2, 42):
        await flood(connection, 2, fire_at=now_at - HOUR, tenant_id=tenant_id, partitions=2)
    await load_all(node)
    while await node.firing.fire_batch():
        await load_all(node)
    await assert_each_fired_once(connection, 180)


async def test_queued_runs_that_wait_their_turn_do_not_count_as_left(
    connection: asyncpg.Connection, now_at: datetime
) -> None:
    job = await add_job(connection, fire_at=now_at + HOUR)
    await add_timer(connection, job, "queued", now_at - HOUR, "tick")
    for number in range(1, 4):
        await add_timer(connection, job, "queued", now_at - HOUR + number * SECOND, "tick")
    await flood(connection, 2, fire_at=now_at - HOUR)
    assert await timers.count_due(connection, {7: now_at}, 100) == {7: 3}
