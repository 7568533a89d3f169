"""After an outage: what it left fires at a limited rate, and behind what is on time."""

import logging
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from engine import LIFETIME, MINUTE, add_job, runs_of, scheduler
from evertick.domain import backpressure as domain_backpressure
from evertick.domain.ids import MAX_ID
from evertick.domain.policies import MissedWindow
from evertick.domain.rule import Policies
from evertick.metrics.catalog import CAUGHT_UP
from evertick.roles.scheduler import Scheduler, backlog, firing, loading
from evertick.runtime import loop
from evertick.runtime.clock import VirtualClock
from evertick.store.tenants import audit
from hooked_pool import Run, hooked
from roles.test_scheduler_backlog import HOUR, SECOND, flood, keep, often

__all__ = ["often"]

STEP = timedelta(milliseconds=200)
FACTOR, NORMAL_RATE = 2.0, 100.0


class Time:
    """A clock of database and scheduler that stands still until it is moved."""

    def __init__(self, connection: asyncpg.Connection, clock: VirtualClock) -> None:
        self._connection = connection
        self.clock = clock

    @property
    def now_at(self) -> datetime:
        return self.clock.now_at

    async def move(self, span: timedelta) -> None:
        self.clock.now_at += span
        await self._connection.execute("UPDATE virtual_time SET now_at = $1", self.clock.now_at)


@pytest.fixture
async def time(connection: asyncpg.Connection, now_at: datetime) -> Time:
    await connection.execute("CREATE TABLE virtual_time AS SELECT clock_at() AS now_at")
    await connection.execute(
        "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE"
        " AS 'SELECT now_at FROM virtual_time'"
    )
    made = Time(connection, VirtualClock(now_at))
    await made.move(timedelta(0))
    return made


@pytest.fixture
def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let catch-up go on though nobody takes what it adds."""
    monkeypatch.setattr(domain_backpressure, "MIN_WINDOW", 1_000_000)


@pytest.fixture
async def limited(database_url: str, time: Time, without_workers: None) -> AsyncIterator[Scheduler]:
    async with scheduler(database_url, clock=time.clock, catch_up_factor=FACTOR, normal_rate=NORMAL_RATE) as opened:
        yield opened


@pytest.fixture
async def slow(database_url: str, time: Time, without_workers: None) -> AsyncIterator[Scheduler]:
    """Catches up at 10 timers a second."""
    async with scheduler(database_url, clock=time.clock, catch_up_factor=FACTOR, normal_rate=5) as opened:
        yield opened


async def left_since(connection: asyncpg.Connection, from_at: datetime) -> int:
    count: int = await connection.fetchval("SELECT count(*) FROM timers WHERE due_at >= $1", from_at)
    return count


async def fire_all_allowed(node: Scheduler) -> None:
    await node.loading.step()
    while await node.firing.fire_batch():
        await node.loading.step()


async def run_count(connection: asyncpg.Connection) -> int:
    count: int = await connection.fetchval("SELECT count(*) FROM attempts")
    return count


@pytest.mark.usefixtures("often")
async def test_catch_up_keeps_to_its_rate_and_what_is_on_time_does_not_wait_for_it(
    connection: asyncpg.Connection, limited: Scheduler, time: Time
) -> None:
    await flood(connection, 2_000, fire_at=time.now_at - HOUR, partitions=5)
    await limited.join()
    began_at = time.now_at
    for number in range(1, 31):
        await time.move(STEP)
        on_time = await add_job(connection, "now", fire_at=time.now_at, partition=number)
        await fire_all_allowed(limited)
        assert len(await runs_of(connection, on_time)) == 1
        seconds = (time.now_at - began_at).total_seconds()
        most = FACTOR * NORMAL_RATE * seconds
        assert most - 50 <= await run_count(connection) <= most + FACTOR * NORMAL_RATE
    assert limited.firing.counters.caught_up == await run_count(connection) - 30


@pytest.mark.usefixtures("often")
async def test_catch_up_of_a_full_queue_keeps_to_its_rate_when_there_is_room_again(
    connection: asyncpg.Connection, limited: Scheduler, time: Time
) -> None:
    await flood(connection, 2_000, fire_at=time.now_at - HOUR, partitions=5)
    await connection.execute("UPDATE queues SET max_ready = 10")
    other = await add_job(connection, "now", fire_at=time.now_at - HOUR / 2, queue="other")
    await limited.join()
    for _ in range(20):
        await time.move(STEP)
        await fire_all_allowed(limited)
    assert await run_count(connection) == 11
    assert len(await runs_of(connection, other)) == 1
    await connection.execute("UPDATE queues SET max_ready = 100000")
    began_at = time.now_at
    for _ in range(10):
        await time.move(STEP)
        await limited.backpressure.step()
        await fire_all_allowed(limited)
        most = FACTOR * NORMAL_RATE * (time.now_at - began_at).total_seconds()
        assert most - 50 <= await run_count(connection) - 11 <= most + FACTOR * NORMAL_RATE


@pytest.mark.usefixtures("often")
async def test_catch_up_fires_the_oldest_first(connection: asyncpg.Connection, limited: Scheduler, time: Time) -> None:
    await flood(connection, 300, fire_at=time.now_at - HOUR)
    await limited.join()
    for _ in range(3):
        await time.move(STEP)
        await fire_all_allowed(limited)
    fired = await connection.fetchval("SELECT max(due_at) FROM attempts")
    assert fired < await connection.fetchval("SELECT min(due_at) FROM timers")


@pytest.mark.usefixtures("often")
async def test_a_job_that_is_edited_while_it_waits_in_a_catch_up_fires_at_its_new_time(
    connection: asyncpg.Connection, limited: Scheduler, time: Time
) -> None:
    await flood(connection, 2_000, fire_at=time.now_at - HOUR)
    job = await add_job(connection, "now", fire_at=time.now_at - HOUR / 2)
    await limited.join()
    await time.move(STEP)
    await fire_all_allowed(limited)
    soon_at = time.now_at + SECOND
    await connection.execute("UPDATE timers SET due_at = $2, fire_at = $2 WHERE job_id = $1", job.job_id, soon_at)
    limited.loading.woken(frozenset({job.job_id}))
    await fire_all_allowed(limited)
    assert await runs_of(connection, job) == []
    await time.move(SECOND)
    await fire_all_allowed(limited)
    assert await runs_of(connection, job) == [(soon_at, "tick", 1)]


@pytest.mark.usefixtures("often")
async def test_what_is_late_because_much_was_due_is_not_held_back(
    connection: asyncpg.Connection, limited: Scheduler, time: Time
) -> None:
    await limited.join()
    await time.move(10 * MINUTE)
    await flood(connection, 2_000, fire_at=time.now_at - 5 * MINUTE)
    await fire_all_allowed(limited)
    assert await run_count(connection) == 2_000
    assert limited.firing.counters.caught_up == 0


@pytest.mark.usefixtures("often")
async def test_a_node_that_comes_back_after_minutes_without_a_heartbeat_catches_up(
    connection: asyncpg.Connection, limited: Scheduler, time: Time
) -> None:
    """Its process was stopped, or the database was away."""
    await limited.join()
    await flood(connection, 2_000, fire_at=time.now_at + MINUTE)
    await limited.loading.step()
    await time.move(HOUR)
    await limited.join()
    await time.move(STEP)
    await fire_all_allowed(limited)
    assert 0 < await run_count(connection) <= 2 * FACTOR * NORMAL_RATE
    assert limited.firing.counters.caught_up == await run_count(connection)


@pytest.mark.usefixtures("often")
async def test_a_catch_up_that_fills_its_memory_does_not_keep_out_what_is_on_time_of_its_own_tenant(
    connection: asyncpg.Connection, slow: Scheduler, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 20)
    monkeypatch.setattr(loading, "AHEAD_SECONDS", 0)
    monkeypatch.setattr(backlog, "CAPACITY", 200)
    await flood(connection, 500, fire_at=time.now_at - HOUR)
    await slow.join()
    await fire_all_allowed(slow)
    assert slow.state.pending.count(7) == 200
    for _ in range(4):
        await time.move(SECOND)
        await slow.membership.step()
        await flood(connection, 100, fire_at=time.now_at - SECOND / 10)
        await fire_all_allowed(slow)
        assert await left_since(connection, time.now_at - MINUTE) == 0
    assert await connection.fetchval("SELECT count(*) FROM timers") > 400


@pytest.mark.usefixtures("often")
async def test_what_is_late_does_not_share_places_with_a_catch_up(
    connection: asyncpg.Connection, slow: Scheduler, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More tenants catch up than have a place in memory, and more is due at one instant."""
    keep(monkeypatch, 40)
    for tenant_id in range(2, 52):
        await flood(connection, 10, fire_at=time.now_at - HOUR, tenant_id=tenant_id)
    await slow.join()
    await fire_all_allowed(slow)
    hot_at = time.now_at + SECOND
    await flood(connection, 300, fire_at=hot_at)
    await connection.execute("UPDATE timers SET due_at = $1 WHERE due_at > $1", hot_at)
    await time.move(2 * SECOND)
    await fire_all_allowed(slow)
    assert await left_since(connection, hot_at) == 0
    assert slow.firing.counters.caught_up < 40


@pytest.mark.usefixtures("often")
async def test_more_than_fits_into_an_answer_is_due_at_the_instant_at_which_the_clock_stands_still(
    connection: asyncpg.Connection, limited: Scheduler, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 20)
    await limited.join()
    await time.move(SECOND)
    await flood(connection, 50, fire_at=time.now_at)
    await connection.execute("UPDATE timers SET due_at = $1", time.now_at)
    reads = 0

    async def count(read: Run, _: Mapping[str, Any]) -> object:
        nonlocal reads
        reads += 1
        assert reads < 100
        return await read()

    limited.state.pool = hooked(limited.state.pool, "timers.load", count)
    assert await limited.fire_due() == 50


@pytest.mark.usefixtures("often")
async def test_what_a_node_takes_from_another_that_is_behind_is_not_held_back(
    connection: asyncpg.Connection, database_url: str, limited: Scheduler, time: Time
) -> None:
    """Nor is it by a node that takes over from one that has just died."""
    await limited.join()
    await flood(connection, 2_000, fire_at=time.now_at, partitions=200)
    for _ in range(4):
        await time.move(MINUTE / 2)
        await limited.membership.step()
    async with scheduler(database_url, "b", time.clock, catch_up_factor=FACTOR, normal_rate=NORMAL_RATE) as other:
        for node in (other, limited, other):
            await node.join()
        moved = len(other.state.ownership.epochs)
        await time.move(LIFETIME)
        await other.join()
        assert 0 < moved < len(other.state.ownership.epochs) == 256
        await fire_all_allowed(other)
        assert other.firing.counters.caught_up == 0
    assert await run_count(connection) == 2_000


@pytest.mark.usefixtures("often")
async def test_a_catch_up_that_goes_on_at_another_node_is_still_one(
    connection: asyncpg.Connection, database_url: str, limited: Scheduler, time: Time
) -> None:
    await flood(connection, 1_000, fire_at=time.now_at - HOUR)
    await limited.join()
    await limited.membership.leave()
    async with scheduler(database_url, "b", time.clock, catch_up_factor=FACTOR, normal_rate=NORMAL_RATE) as other:
        await other.join()
        await time.move(STEP)
        await fire_all_allowed(other)
        assert other.firing.counters.caught_up == await run_count(connection) == 40


@pytest.mark.usefixtures("often")
async def test_a_process_that_was_restarted_under_its_name_after_an_outage_catches_up(
    connection: asyncpg.Connection, database_url: str, limited: Scheduler, time: Time
) -> None:
    """Though its first heartbeat comes before it takes partitions, and though it dies after that."""
    await limited.join()
    await flood(connection, 1_000, fire_at=time.now_at)
    await time.move(HOUR)
    async with scheduler(database_url, limited.node, time.clock) as died:
        await died.membership.step()
    async with scheduler(
        database_url, limited.node, time.clock, catch_up_factor=FACTOR, normal_rate=NORMAL_RATE
    ) as again:
        await again.join()
        await time.move(STEP)
        await fire_all_allowed(again)
        assert again.firing.counters.caught_up == await run_count(connection) == 40


@pytest.mark.usefixtures("often")
async def test_after_a_clock_that_was_ahead_nothing_that_falls_due_is_catch_up(
    connection: asyncpg.Connection, limited: Scheduler, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 30)
    await limited.join()
    right_at = time.now_at
    soon_at = right_at + 2 * MINUTE
    for tenant_id in range(2, 42):
        await flood(connection, 3, fire_at=right_at + 6 * HOUR, tenant_id=tenant_id)
    await time.move(timedelta(days=1))
    await limited.join()
    await time.move(right_at - time.now_at)
    limited.clock.listeners[0](timedelta(days=-1))
    await limited.join()
    await flood(connection, 500, fire_at=soon_at)
    for _ in range(5):
        await time.move(MINUTE / 2)
        await limited.membership.step()
        await fire_all_allowed(limited)
    assert await run_count(connection) == 500
    assert limited.firing.counters.caught_up == 0


@pytest.mark.usefixtures("often")
async def test_the_log_says_when_a_large_catch_up_begins_and_ends(
    connection: asyncpg.Connection, limited: Scheduler, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "evertick.scheduler")
    before = CAUGHT_UP.value()
    await flood(connection, 1_500, fire_at=time.now_at - HOUR, partitions=3)
    await limited.join()
    for _ in range(20):
        await fire_all_allowed(limited)
        await time.move(SECOND)
    told = [record.getMessage() for record in caplog.records if record.message.startswith("catch-up")]
    end_at = (time.now_at - 12.5 * SECOND).isoformat(timespec="seconds")
    began = (
        "at least 1500 timers were left from an outage; up to 200 fire each second, so that it takes"
        f" until about {end_at}"
    )
    ended = "1500 timers fired in 0:00:08"
    assert told == [f"catch-up begins: {began}", f"catch-up ended: {ended}"]
    changes = await audit.page(connection, 1, before=MAX_ID, most=9)
    assert [(each.actor, each.action, each.subject) for each in changes] == [
        ("scheduler", "end_catch_up", f"{limited.node}: {ended}"),
        ("scheduler", "begin_catch_up", f"{limited.node}: {began}"),
    ]
    assert CAUGHT_UP.value() - before == 1_500


@pytest.mark.usefixtures("often")
async def test_a_catch_up_that_is_found_again_is_counted_once(
    connection: asyncpg.Connection, limited: Scheduler, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    await flood(connection, 700, fire_at=time.now_at - HOUR)
    await limited.join()
    for _ in range(3):
        await limited.loading.step()
        limited.loading.lost([7])  # what a firing without an answer did is read anew
    assert "catch-up" not in caplog.text


@pytest.mark.usefixtures("often")
async def test_an_entry_of_the_audit_log_that_could_not_be_written_is_written_later(
    connection: asyncpg.Connection, limited: Scheduler, time: Time
) -> None:
    await flood(connection, 1_500, fire_at=time.now_at - HOUR, partitions=3)
    await limited.join()

    async def fail(_: Run, __: Mapping[str, Any]) -> object:
        raise TimeoutError

    pool = limited.state.pool
    limited.state.pool = hooked(pool, "audit.record_all", fail)
    with pytest.raises(TimeoutError):
        await limited.loading.step()
    limited.state.pool = pool
    await limited.loading.step()
    (began,) = await audit.page(connection, 1, before=MAX_ID, most=9)
    assert began.action == "begin_catch_up"


@pytest.mark.usefixtures("often")
async def test_timers_that_are_put_off_while_a_batch_is_planned_do_not_use_up_the_rate(
    connection: asyncpg.Connection, limited: Scheduler, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "PLANNING_SECONDS", -1)
    monkeypatch.setattr(loop, "SLICE_SECONDS", -1)
    await flood(connection, 100, fire_at=time.now_at - HOUR)
    await limited.join()
    await time.move(STEP)
    await fire_all_allowed(limited)
    assert limited.firing.counters.caught_up == await run_count(connection) == 40


@pytest.mark.usefixtures("often")
async def test_ticks_that_wait_for_an_open_run_do_not_use_up_the_rate(
    connection: asyncpg.Connection, limited: Scheduler, time: Time
) -> None:
    """They are tried again each second, and there are more of them than may fire in a second."""
    policies = Policies(missed_window=MissedWindow.RUN_ALL)
    for _ in range(250):
        await add_job(connection, "*/5 * * * *", policies, fire_at=time.now_at - 2 * HOUR)
    await flood(connection, 500, fire_at=time.now_at - HOUR)
    await limited.join()
    for _ in range(8):
        await time.move(SECOND)
        await fire_all_allowed(limited)
    assert await run_count(connection) == 750
    assert limited.firing.counters.caught_up == 750
    assert limited.firing.counters.waited > 500


@pytest.mark.usefixtures("often")
async def test_a_small_catch_up_is_not_logged(
    connection: asyncpg.Connection, limited: Scheduler, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        await flood(connection, 400, fire_at=time.now_at - HOUR)
        await limited.join()
        limited.loading.lost([7])
        for _ in range(4):
            await fire_all_allowed(limited)
            await time.move(SECOND)
    assert await run_count(connection) == 1_200
    assert "catch-up" not in caplog.text
