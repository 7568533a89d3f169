"""The database's clock is set wrong and corrected, with firing and housekeeping meanwhile, on a virtual clock.

What is promised: nothing fires before its time by the clock of the moment, no tick runs twice, nothing is removed.
After the correction each job fires at its next tick. Ticks after the corrected time that were declared missed while the
clock was ahead are not missed any more, and those that ran meanwhile have run: when their time comes, nothing happens.
"""

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from engine import AT, MINUTE, Job, add_job, add_timer, finish, gaps_of, runs_of, scheduler, timers_of, until
from evertick.domain.policies import ConcurrentPolicy, MissedWindow
from evertick.domain.retry import Retry
from evertick.domain.rule import Policies
from evertick.roles.janitor import Janitor, batch_size
from evertick.roles.scheduler import Scheduler
from evertick.runtime import background
from evertick.runtime.clock import VirtualClock
from evertick.store.database import Pool, connect
from evertick.store.engine import clock
from evertick.store.engine.clock import mark
from hooked_pool import Run, hooked
from roles.stepping import accounted, ticks

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
SKIP = Policies(missed_window=MissedWindow.SKIP)


class Hands:
    """Set the clock of the database, and the scheduler's with it."""

    def __init__(self, connection: asyncpg.Connection, pool: Pool) -> None:
        self.connection = connection
        self.clock = VirtualClock(AT)
        self.pool = pool

    async def set(self, now_at: datetime) -> None:
        await self.connection.execute("UPDATE virtual_clock SET now_at = $1", now_at)
        self.clock.now_at = now_at
        for day in (now_at.date(), now_at.date() + DAY):
            await self.connection.execute("SELECT add_day($1)", day)


@pytest.fixture
async def hands(connection: asyncpg.Connection, pool: Pool) -> Hands:
    await connection.execute("CREATE TABLE virtual_clock AS SELECT $1::timestamptz AS now_at", AT)
    await connection.execute(
        "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE"
        " AS 'SELECT now_at FROM virtual_clock'"
    )
    await connection.execute(
        "UPDATE clock_marks SET marked_at = $1, trusted_at = $1, steady_at = $1, furthest_at = $1", AT
    )
    hands = Hands(connection, pool)
    await hands.set(AT)
    return hands


@pytest.fixture
async def node(database_url: str, hands: Hands) -> AsyncIterator[Scheduler]:
    async with scheduler(database_url, clock=hands.clock) as opened:
        await opened.join()
        yield opened


class World:
    """One job, a scheduler, a worker that ends everything at once, and a janitor."""

    def __init__(self, hands: Hands, node: Scheduler) -> None:
        self.hands = hands
        self.node = node
        self.janitor = Janitor(hands.pool)
        self.fired: list[tuple[datetime, datetime]] = []
        """Each fire time that ran, with the time at which it did."""

    async def minutes(self, job: Job, count: int, *, sweeps: bool = True) -> None:
        """Let minutes pass, half a minute before and at each tick."""
        for _ in range(2 * count):
            await self.at(job, self.hands.clock.now_at + MINUTE / 2, sweeps=sweeps)

    async def at(self, job: Job, now_at: datetime, *, sweeps: bool = True) -> None:
        await self.hands.set(now_at)
        known = len(await runs_of(self.hands.connection, job))
        while await self.node.fire_due():
            await finish(self.hands.connection, job)
            if not await self.hands.connection.fetchval(
                "SELECT EXISTS (SELECT FROM timers WHERE due_at <= $1)", now_at
            ):
                break
        runs = (await runs_of(self.hands.connection, job))[known:]
        self.fired += [(fire_at, now_at) for fire_at, _, _ in runs]
        if sweeps:
            await self.janitor.maintain()

    async def step(self, job: Job, span: timedelta) -> None:
        await self.at(job, self.hands.clock.now_at + span)


@pytest.fixture
def world(hands: Hands, node: Scheduler) -> World:
    return World(hands, node)


@pytest.mark.parametrize("missed", MissedWindow)
@pytest.mark.parametrize("ahead", [HOUR, 100 * DAY], ids=["an hour", "100 days"])
async def test_after_a_step_ahead_and_its_correction_a_job_fires_at_its_next_tick(
    connection: asyncpg.Connection, world: World, ahead: timedelta, missed: MissedWindow
) -> None:
    job = await add_job(connection, "* * * * *", Policies(missed_window=missed, max_missed=3), fire_at=AT + MINUTE)
    await world.minutes(job, 5)
    await world.step(job, ahead)
    await world.minutes(job, 3)
    assert [each for each in world.fired if each[0] > each[1]] == [], "none early"
    await world.step(job, -ahead)
    back_at = world.hands.clock.now_at
    assert back_at == AT + 8 * MINUTE
    assert await timers_of(connection, job) == [("tick", back_at + MINUTE)]
    world.fired.clear()
    await world.minutes(job, 5)
    assert world.fired == [(tick_at, tick_at) for tick_at in ticks(back_at + MINUTE, back_at + 5 * MINUTE)]
    placed = await accounted(connection, job)
    assert Counter(placed).most_common(1)[0][1] == 1, "a tick is in one place"
    assert placed[: len(ticks(AT + MINUTE, back_at + 5 * MINUTE))] == ticks(AT + MINUTE, back_at + 5 * MINUTE)


async def test_ticks_that_ran_while_the_clock_was_ahead_do_not_run_again(
    connection: asyncpg.Connection, world: World
) -> None:
    job = await add_job(connection, "* * * * *", fire_at=AT + MINUTE)
    await world.minutes(job, 2)
    await world.step(job, 20 * MINUTE)
    await world.minutes(job, 3)
    ahead_at = world.hands.clock.now_at
    await world.step(job, -20 * MINUTE)
    await world.minutes(job, 30, sweeps=False)
    runs = Counter(fire_at for fire_at, _, _ in await runs_of(connection, job))
    assert set(runs.values()) == {1}
    assert sorted(set(await accounted(connection, job))) == ticks(AT + MINUTE, AT + 35 * MINUTE)
    assert len(await accounted(connection, job)) == 35
    assert ahead_at in runs


async def test_a_clock_that_is_only_set_back_repeats_nothing(connection: asyncpg.Connection, world: World) -> None:
    job = await add_job(connection, "* * * * *", fire_at=AT + MINUTE)
    await world.minutes(job, 20, sweeps=False)
    await mark(world.hands.pool)
    await connection.execute("UPDATE clock_marks SET steady_at = marked_at")
    for back in (10 * MINUTE, 5 * DAY):
        await world.step(job, -back)
        assert await timers_of(connection, job) == [("tick", AT + 21 * MINUTE)], "where it stood"
        await world.step(job, back)
    await world.minutes(job, 5)
    assert await accounted(connection, job) == ticks(AT + MINUTE, AT + 25 * MINUTE)
    assert {reason for _, reason, _ in await runs_of(connection, job)} == {"tick"}


async def test_after_an_outage_a_step_back_may_return_to_ticks_that_ran_but_repeats_none(
    connection: asyncpg.Connection, world: World
) -> None:
    job = await add_job(connection, "* * * * *", fire_at=AT + MINUTE)
    await world.minutes(job, 20, sweeps=False)
    await mark(world.hands.pool)  # after twenty minutes without a mark: the steady time does not count them
    await world.step(job, -10 * MINUTE)
    assert await timers_of(connection, job) == [("tick", AT + 11 * MINUTE)]
    await world.minutes(job, 15, sweeps=False)
    assert await accounted(connection, job) == ticks(AT + MINUTE, AT + 25 * MINUTE)
    assert {reason for _, reason, _ in await runs_of(connection, job)} == {"tick"}


async def test_gaps_of_the_time_ahead_end_where_the_clock_is(connection: asyncpg.Connection, world: World) -> None:
    job = await add_job(connection, "* * * * *", SKIP, fire_at=AT + MINUTE)
    await world.minutes(job, 1)
    await world.step(job, 100 * DAY)
    assert (await gaps_of(connection, job))[0][2] > 100_000
    await world.hands.set(AT + 4 * MINUTE)
    await world.janitor.maintain()
    missed = (AT + 2 * MINUTE, AT + 4 * MINUTE, 3, "missed")
    assert await gaps_of(connection, job) == [missed]


async def test_a_job_that_ended_while_the_clock_was_ahead_goes_on(connection: asyncpg.Connection, world: World) -> None:
    schedule = "RRULE:FREQ=DAILY;UNTIL=20260701T000000Z"
    job = await add_job(connection, schedule, SKIP, fire_at=AT + DAY)
    await connection.execute("UPDATE job_versions SET spec = '{}' WHERE job_id = $1", job.job_id)
    await world.step(job, 100 * DAY)
    assert await timers_of(connection, job) == []
    await world.step(job, -100 * DAY)
    [(kind, fire_at)] = await timers_of(connection, job)
    assert kind == "tick"
    assert AT < fire_at <= AT + DAY
    assert await connection.fetchval("SELECT count(*) FROM finished_jobs") == 0


@pytest.mark.parametrize(("kind", "reason"), [("manual", "manual"), ("queued", "tick")])
async def test_runs_that_were_asked_for_while_the_clock_was_ahead_wait_no_longer_than_they_should(
    connection: asyncpg.Connection, world: World, kind: str, reason: str
) -> None:
    job = await add_job(connection, "* * * * *", fire_at=AT + MINUTE)
    ahead_at = AT + 100 * DAY
    await world.hands.set(ahead_at)
    await mark(world.hands.pool)
    await add_timer(connection, job, kind, ahead_at, reason)
    await world.hands.set(AT)
    await world.janitor.maintain()
    due_at = await connection.fetchval("SELECT due_at FROM timers WHERE kind = $1::text::timer_kind", kind)
    assert due_at == AT


async def test_a_retry_of_the_time_ahead_waits_for_its_delay_and_one_from_before_as_it_did(
    connection: asyncpg.Connection, world: World
) -> None:
    before, ahead = [await add_job(connection, "now", partition=number) for number in (7, 8)]
    await world.node.fire_due()
    assert await finish(connection, before, "failed", Retry(2, HOUR)) == 2
    # `finish` ends attempts at AT; the second one's ended while the clock was ahead.
    await connection.execute("UPDATE outcomes SET finished_at = $1 WHERE lane_id = $2", AT + 100 * DAY, ahead.lane_id)
    await connection.execute(
        "UPDATE timers SET due_at = $1 WHERE kind = 'retry' AND job_id = $2", AT + 100 * DAY + HOUR, ahead.job_id
    )
    await world.hands.set(AT + 100 * DAY)
    await mark(world.hands.pool)
    await world.hands.set(AT + MINUTE)
    await world.janitor.maintain()
    rows = await connection.fetch("SELECT job_id, due_at FROM timers WHERE kind = 'retry'")
    due = {row["job_id"]: row["due_at"] for row in rows}
    assert due == {before.job_id: AT + HOUR, ahead.job_id: AT + MINUTE + HOUR}


async def test_a_paused_job_stays_paused_and_stands_at_its_next_tick(
    connection: asyncpg.Connection, world: World
) -> None:
    job = await add_job(connection, "* * * * *", fire_at=AT + MINUTE)
    await world.step(job, 100 * DAY)
    await connection.execute("UPDATE timers SET due_at = 'infinity'")
    await world.step(job, -100 * DAY)
    assert await timers_of(connection, job) == [("tick", AT + MINUTE)]
    assert await connection.fetchval("SELECT due_at = 'infinity' FROM timers")


async def test_a_timer_that_is_locked_follows_in_the_next_pass(
    connection: asyncpg.Connection, world: World, database_url: str
) -> None:
    job = await add_job(connection, "* * * * *", fire_at=AT + MINUTE)
    await world.step(job, 100 * DAY)
    editor = await connect(database_url)
    async with editor.transaction():
        await editor.execute("SELECT FROM timers WHERE job_id = $1 FOR UPDATE", job.job_id)
        await world.hands.set(AT)
        assert (await world.janitor.maintain()).timers_replanned == 0
        assert (await clock.marks(world.hands.pool)).replan_from == 0
    await editor.close()
    assert (await world.janitor.maintain()).timers_replanned == 1
    assert (await clock.marks(world.hands.pool)).replan_from is None


async def test_a_janitor_that_dies_in_between_leaves_the_rest_to_the_next(
    connection: asyncpg.Connection, world: World
) -> None:
    jobs = [await add_job(connection, "* * * * *", partition=number, fire_at=AT + MINUTE) for number in (3, 200)]
    await world.step(jobs[0], 100 * DAY)

    async def dies(page: Run, values: Mapping[str, Any]) -> object:
        if values["partition"] == 100:
            raise ConnectionResetError
        return await page()

    await world.hands.set(AT)
    with pytest.raises(ConnectionResetError):
        await Janitor(hooked(world.hands.pool, "replan.page", dies)).maintain()
    assert (await clock.marks(world.hands.pool)).replan_from == 100
    assert (await Janitor(world.hands.pool).maintain()).timers_replanned == 1
    assert [await timers_of(connection, job) for job in jobs] == [[("tick", AT + MINUTE)]] * 2


async def test_many_timers_return_in_batches(
    connection: asyncpg.Connection, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size, "MAX_ROWS", 3)
    jobs = [await add_job(connection, "* * * * *", fire_at=AT + MINUTE) for _ in range(10)]
    await world.step(jobs[0], 100 * DAY)
    await world.hands.set(AT)
    assert (await world.janitor.maintain()).timers_replanned == 10


async def test_planning_anew_takes_more_than_one_round_if_it_is_long(
    connection: asyncpg.Connection, world: World
) -> None:
    jobs = [await add_job(connection, "* * * * *", partition=number, fire_at=AT + MINUTE) for number in (3, 200)]
    await world.step(jobs[0], 100 * DAY)
    await world.hands.set(AT)
    seconds = itertools.count()  # twenty partitions at a time
    janitor = Janitor(world.hands.pool, monotonic=seconds.__next__)
    moved = [(await janitor.maintain()).timers_replanned for _ in range(14)]
    assert moved == [1, *(0 for _ in range(8)), 1, *(0 for _ in range(4))]
    assert (await clock.marks(world.hands.pool)).replan_from is None


async def test_what_stands_where_it_should_is_left_alone(connection: asyncpg.Connection, world: World) -> None:
    minutely = await add_job(connection, "* * * * *", fire_at=AT + 2 * HOUR + MINUTE)
    yearly = await add_job(connection, "0 0 1 1 *", fire_at=datetime(2027, 1, 1, tzinfo=UTC))
    once = await add_job(connection, "2027-03-01T00:00:00Z", fire_at=datetime(2027, 3, 1, tzinfo=UTC))
    await world.hands.set(AT + 2 * HOUR)
    await mark(world.hands.pool)
    await world.hands.set(AT + HOUR)  # as if two hours ahead, and an hour had passed since
    assert (await world.janitor.maintain()).timers_replanned == 1
    assert await timers_of(connection, minutely) == [("tick", AT + HOUR + MINUTE)]
    assert await timers_of(connection, yearly) == [("tick", datetime(2027, 1, 1, tzinfo=UTC))]
    assert await timers_of(connection, once) == [("tick", datetime(2027, 3, 1, tzinfo=UTC))]


async def test_jitter_and_overlap_are_as_ever_after_a_correction(connection: asyncpg.Connection, world: World) -> None:
    policies = Policies(jitter=timedelta(seconds=20), concurrent_policy=ConcurrentPolicy.ALLOW, max_concurrent=5)
    job = await add_job(connection, "* * * * *", policies, fire_at=AT + MINUTE)
    offset = await _offset(connection, job, world)
    await world.step(job, -100 * DAY)
    row = await connection.fetchrow("SELECT fire_at, due_at FROM timers")
    assert row is not None
    assert row["fire_at"] == AT + MINUTE
    assert row["due_at"] - row["fire_at"] == offset


async def _offset(connection: asyncpg.Connection, job: Job, world: World) -> timedelta:
    await world.step(job, 100 * DAY)
    row = await connection.fetchrow("SELECT due_at - fire_at AS offset FROM timers")
    assert row is not None
    offset: timedelta = row["offset"]
    assert offset > timedelta(0)
    return offset


async def test_where_timers_belong_is_computed_beside_the_loop(connection: asyncpg.Connection, world: World) -> None:
    job = await add_job(connection, "* * * * *", SKIP, fire_at=AT + MINUTE)
    await world.step(job, 100 * DAY)
    release = threading.Event()
    holding = asyncio.create_task(background.run("another", release.wait))
    try:
        correction = asyncio.create_task(world.step(job, -100 * DAY))
        await until(is_waiting_for_the_background)
    finally:
        release.set()
    await asyncio.gather(holding, correction)
    assert await timers_of(connection, job) == [("tick", AT + MINUTE)]


async def is_waiting_for_the_background() -> bool:
    return background.waiting("janitor") == 1
