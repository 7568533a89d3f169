"""A running scheduler whose database's clock is set: it notices, tells the others, and goes on by the new time."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import asyncpg
import pytest

from engine import LEASE, LIFETIME, MINUTE, Job, add_job, finish, runs_of, timers_of, until
from evertick.roles.janitor import Janitor
from evertick.roles.scheduler import Scheduler
from evertick.store.database import Pool
from evertick.store.engine import clock
from roles.stepping import Dial

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
async def dial(connection: asyncpg.Connection) -> Dial:
    return await Dial.on(connection)


@pytest.fixture
async def node(database_url: str, dial: Dial) -> AsyncIterator[Scheduler]:
    """At work, with a heartbeat that is quick enough for a test."""
    started = Scheduler(database_url, "node", lifetime=LIFETIME, lease_time=LEASE, heartbeat=timedelta(seconds=0.05))
    await started.start()
    yield started
    await started.stop()


async def minutely(connection: asyncpg.Connection, dial: Dial) -> tuple[Job, datetime]:
    """A job that is due at the next full hour, and that hour."""
    tick_at = (await dial.now()).replace(minute=0, second=0, microsecond=0) + HOUR
    return await add_job(connection, "0 * * * *", fire_at=tick_at), tick_at


async def test_a_step_ahead_fires_what_is_due_by_then_and_is_marked(
    connection: asyncpg.Connection, node: Scheduler, dial: Dial
) -> None:
    job, tick_at = await minutely(connection, dial)
    await until(lambda: _is_idle(node))
    await dial.move(tick_at - await dial.now() + MINUTE)
    await until(lambda: runs_of(connection, job))
    assert [(fire_at, reason) for fire_at, reason, _ in await runs_of(connection, job)] == [(tick_at, "late")]
    await until(lambda: _is_marked(connection, dial))
    assert node.clock.steps == 1


async def test_what_is_due_before_a_step_back_is_early_after_it_and_fires_once(
    connection: asyncpg.Connection, node: Scheduler, dial: Dial
) -> None:
    await until(lambda: _is_idle(node))
    soon = await add_job(connection, "2099-01-01T00:00:00Z", fire_at=await dial.now() + HOUR)
    await dial.move(-HOUR)
    await until(lambda: _stepped(node, 1))
    assert await runs_of(connection, soon) == []
    await dial.move(2 * HOUR)
    await until(lambda: runs_of(connection, soon))
    await until(lambda: _stepped(node, 2))
    assert len(await runs_of(connection, soon)) == 1


async def test_a_hundred_days_ahead_between_two_rounds_of_the_janitor_are_corrected_all_the_same(
    connection: asyncpg.Connection, node: Scheduler, dial: Dial, pool: Pool
) -> None:
    job, tick_at = await minutely(connection, dial)
    for ahead in range(99, 103):
        await connection.execute("SELECT add_day($1)", (tick_at + ahead * DAY).date())
    await dial.move(100 * DAY)
    await until(lambda: runs_of(connection, job))
    await until(lambda: _is_marked(connection, dial))
    await finish(connection, job)
    await dial.move(-100 * DAY)
    await until(lambda: _wants_a_plan(connection))
    assert (await Janitor(pool).maintain()).timers_replanned == 1
    assert await timers_of(connection, job) == [("tick", tick_at)]
    await dial.move(tick_at - await dial.now())
    await until(lambda: _ran(connection, job, tick_at))


async def _is_idle(node: Scheduler) -> bool:
    await asyncio.sleep(0)
    return len(node.state.ownership.epochs) == 256


async def _stepped(node: Scheduler, times: int) -> bool:
    await asyncio.sleep(0)
    return node.clock.steps >= times


async def _is_marked(connection: asyncpg.Connection, dial: Dial) -> bool:
    return await dial.now() - (await clock.marks(connection)).before_at < MINUTE


async def _wants_a_plan(connection: asyncpg.Connection) -> bool:
    return (await clock.marks(connection)).replan_from is not None


async def _ran(connection: asyncpg.Connection, job: Job, tick_at: datetime) -> bool:
    return tick_at in {fire_at for fire_at, _, _ in await runs_of(connection, job)}
