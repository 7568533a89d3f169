"""The fuse pauses a job that fires more often than its schedule allows, and no other."""

from datetime import datetime

import asyncpg
import pytest

from engine import MINUTE, Job, add_job, add_timer, finish, runs_of
from evertick.domain.ids import Prefix, format_id, parse_id
from evertick.domain.policies import ConcurrentPolicy, MissedWindow
from evertick.domain.retry import Retry
from evertick.domain.rule import Policies
from evertick.metrics.catalog import RUNAWAYS
from evertick.roles.scheduler import Scheduler
from evertick.roles.scheduler.fuse import MOST_FREQUENT
from evertick.store.database import Pool
from evertick.store.tenants import alerts
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.lifecycle import resume

ALL = Policies(
    missed_window=MissedWindow.RUN_ALL, max_missed=5, concurrent_policy=ConcurrentPolicy.ALLOW, max_concurrent=100
)


async def set_back(connection: asyncpg.Connection, job_id: int, ticks: int) -> None:
    """As a fault in planning would: the timer stands at a tick that has fired."""
    await connection.execute(
        "UPDATE timers SET fire_at = fire_at - $2::interval, due_at = due_at - $2::interval"
        " WHERE job_id = $1 AND kind = 'tick'",
        job_id,
        ticks * MINUTE,
    )


async def status_of(connection: asyncpg.Connection, job: Job) -> tuple[str, str | None]:
    row = await connection.fetchrow("SELECT status::text, pause_reason FROM jobs WHERE job_id = $1", job.job_id)
    assert row is not None
    return row["status"], row["pause_reason"]


async def test_a_job_that_fires_a_tick_again_is_paused_with_the_evidence(
    connection: asyncpg.Connection, node: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    job, other = [await add_job(connection, "* * * * *", ALL, partition=partition) for partition in (7, 8)]
    before = RUNAWAYS.value()
    assert await node.fire_due() > 0
    assert await node.fuse.check() == 0
    await set_back(connection, job.job_id, 3)
    await node.fire_due()
    ticks = [fire_at for fire_at, _, _ in await runs_of(connection, job)]
    assert len(ticks) > len(set(ticks))
    assert await node.fuse.check() == 1
    status, reason = await status_of(connection, job)
    assert status == "paused"
    repeated = len(ticks) - len(set(ticks))
    assert f"it fired {len(ticks)} runs, {repeated} of them for a tick that had its run" in (reason or "")
    assert f"the number of ticks is {len(set(ticks))}" in (reason or "")
    assert await status_of(connection, other) == ("active", None)
    entry = await connection.fetchrow("SELECT tenant_id, actor, action, subject FROM audit_log")
    assert entry is not None
    assert tuple(entry) == (1, "scheduler", "pause_job", format_id(Prefix.JOB, job.job_id))
    (alert,) = await alerts.of_jobs(connection, [job.job_id])
    assert (alert.key, alert.is_open) == ((1, "fuse", format_id(Prefix.JOB, job.job_id)), True)
    assert RUNAWAYS.value() == before + 1
    assert f"paused job {format_id(Prefix.JOB, job.job_id)}: {reason}" in caplog.text
    await node.fire_due()
    assert len(await runs_of(connection, job)) == len(ticks)


async def test_nothing_is_judged_by_what_fired_while_the_clock_was_ahead(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    job = await add_job(connection, "* * * * *", ALL)
    await node.fire_due()
    await set_back(connection, job.job_id, 3)
    await node.fire_due()
    await connection.execute("UPDATE clock_marks SET ran_from_at = $1, ran_until_at = $2", now_at - MINUTE, now_at)
    assert await node.fuse.check() == 0
    assert await status_of(connection, job) == ("active", None)


async def test_a_job_that_was_resumed_is_judged_by_what_it_fires_from_then_on(
    connection: asyncpg.Connection, pool: Pool, node: Scheduler
) -> None:
    tenant = TenantContext(pool, 1)
    fields = {"schedule": "* * * * *", "missed_window": "RUN_ALL", "concurrent_policy": "ALLOW", "max_concurrent": 100}
    created = await create(tenant, {**fields, "target": {"type": "worker", "handler": "h"}})
    job_id = parse_id(Prefix.JOB, created.job_id)
    for _ in range(2):
        await set_back(connection, job_id, 3)
        await node.fire_due()
    assert await node.fuse.check() == 1
    await resume(tenant, created.job_id)
    await set_back(connection, job_id, 3)
    await node.fire_due()
    assert await node.fuse.check() == 0
    await set_back(connection, job_id, 3)
    await node.fire_due()
    assert await node.fuse.check() == 1


async def test_retries_deferred_attempts_and_requested_runs_do_not_count(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    job = await add_job(connection, "* * * * *", ALL)
    await node.fire_due()
    for result, attempt in (("deferred", 1), ("failed", 2)):
        assert await finish(connection, job, result, Retry(attempt, 0 * MINUTE)) >= 5
        await node.fire_due()
    now_at = await connection.fetchval("SELECT clock_at()")
    for kind in ("manual", "replay"):
        await add_timer(connection, job, kind, now_at, kind)
    for _ in range(3):
        await node.fire_due()
    runs = await runs_of(connection, job)
    assert {attempt for _, _, attempt in runs} == {1, 2}
    assert {reason for _, reason, _ in runs} >= {"catch_up", "manual", "replay"}
    node.state.fired_jobs.add([job.job_id] * 9)
    assert await node.fuse.check() == 0


async def test_a_runaway_behind_many_jobs_that_fire_more_often_is_found(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    healthy = [await add_job(connection, "* * * * *", ALL, partition=number) for number in range(2 * MOST_FREQUENT)]
    job = await add_job(connection, "* * * * *", ALL, partition=200)
    await node.fire_due()
    await set_back(connection, job.job_id, 3)
    await node.fire_due()
    node.state.fired_jobs.take(0)
    paused = 0
    for _ in range(3):
        node.state.fired_jobs.add([each.job_id for each in healthy for _ in range(9)] + [job.job_id] * 2)
        paused += await node.fuse.check()
    assert paused == 1
    assert (await status_of(connection, job))[0] == "paused"


async def test_a_job_that_a_user_has_locked_is_left_alone(connection: asyncpg.Connection, node: Scheduler) -> None:
    job = await add_job(connection, "* * * * *", ALL)
    await node.fire_due()
    await set_back(connection, job.job_id, 3)
    await node.fire_due()
    async with connection.transaction():
        await connection.execute("SELECT FROM jobs WHERE job_id = $1 FOR UPDATE", job.job_id)
        assert await node.fuse.check() == 0
    node.state.fired_jobs.add([job.job_id])
    assert await node.fuse.check() == 1


async def test_one_offs_and_jobs_that_are_new_are_left_alone(connection: asyncpg.Connection, node: Scheduler) -> None:
    jobs = [await add_job(connection, text) for text in ("now", "*/5 * * * *", "every 90s")]
    await node.fire_due()
    node.state.fired_jobs.add([job.job_id for job in jobs] * 2)
    assert await node.fuse.check() == 0
    assert await node.fuse.check() == 0  # with nothing to look at
