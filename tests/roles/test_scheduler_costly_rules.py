"""Rules that are costly to plan delay nobody but their tenant: neither its neighbours, nor the heartbeat."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from engine import AT, MINUTE, PATIENCE_SECONDS, Job, add_job, plan_firing, runs_of, scheduler, timers_of, until
from evertick.domain.fairness import QUANTUM
from evertick.domain.ids import job_id_of
from evertick.domain.misfire import plan, wait_us
from evertick.domain.rule import Policies, Rule, rule_of
from evertick.domain.schedule.budget import PLAN_STEPS, at_most
from evertick.domain.schedule.instants import to_us
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.schedule import Schedule
from evertick.roles.scheduler import Scheduler, background_planning, firing
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.roles.scheduler.planning import LOOP_STEPS, PreparedPlan
from evertick.runtime import background, loop
from evertick.runtime.clock import DatabaseClock
from evertick.store.engine.timers import Timer
from roles.costly import add_costly_jobs, costly_rules, fired, held_thread, loop_work, slow_rules

MANY = 400
SHORT = 1.0
"""Processor seconds: a batch takes some of them. Planning so many costly rules at once takes seconds."""
COUNTED = "FREQ=HOURLY;INTERVAL=7;BYHOUR=9;COUNT=100000"
LONG_AGO = -60_000_000_000
"""Around the year 68: a COUNT that begins there has too many years to count, and is never accepted."""


@pytest.fixture
async def node(database_url: str) -> AsyncIterator[Scheduler]:
    async with scheduler(database_url) as opened:
        await opened.join()
        yield opened
        await opened.firing.background.stop()


def test_the_rules_of_these_tests_are_costly() -> None:
    for rule in costly_rules(200)[::60]:
        with at_most(PLAN_STEPS) as work:
            plan(rule, to_us(AT), to_us(AT + 60 * 24 * MINUTE))
        assert work.spent > 4 * LOOP_STEPS


async def test_a_costly_rule_fires_in_a_later_batch_and_its_neighbours_at_once(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    [costly] = await add_costly_jobs(connection, 1)
    cheap = await add_job(connection, "now")
    await node.loading.step()
    assert await node.firing.fire_batch() == 2
    assert (await fired(connection, [cheap]), await fired(connection, [costly])) == (1, 0)
    await node.firing.background.finish()
    assert await node.firing.fire_batch() == 1
    assert await fired(connection, [costly]) == 1
    assert await timers_of(connection, costly) == []


async def test_hundreds_of_costly_rules_do_not_hold_up_the_loop_nor_another_tenant(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    costly = await add_costly_jobs(connection, MANY)
    neighbour = await add_job(connection, "* * * * * *", tenant_id=2, fire_at=AT)
    async with loop_work() as work:
        await node.loading.step()
        while not await fired(connection, [neighbour]):
            assert await node.firing.fire_batch()
        assert await fired(connection, costly) == 0
        while (await node.firing.fire_batch()) or await node.firing.background.finish():
            pass
    assert await fired(connection, costly) == MANY
    assert work.longest_seconds < SHORT


async def test_each_tenant_has_its_turn_in_the_background(connection: asyncpg.Connection, node: Scheduler) -> None:
    """Judged by what the thread has done: how much fires meanwhile depends on the database."""
    await add_costly_jobs(connection, MANY)
    planning = node.firing.background
    async with held_thread():
        await node.loading.step()
        while await node.firing.fire_batch():
            pass
        [latest] = await add_costly_jobs(connection, 1, tenant_id=2, fire_at=AT + MINUTE)
        node.loading.woken(frozenset({latest.job_id}))
        await node.loading.step()
        while await node.firing.fire_batch():
            pass
        assert planning.made == 0

    async def is_planned() -> bool:
        return any(rule_id == latest.rule_id for rule_id, *_ in planning.prepared)

    await until(is_planned)
    assert planning.made < MANY - 100
    while not await fired(connection, [latest]):
        await node.firing.fire_batch()


async def test_a_timer_that_changes_while_it_is_planned_fires_as_it_is_then(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    changed, moved_on, gone = await add_costly_jobs(connection, 3)
    await node.loading.step()
    await node.firing.fire_batch()
    now_at = await connection.fetchval("SELECT clock_at()")
    later_at = AT + MINUTE
    await connection.execute("UPDATE timers SET fire_at = $2, due_at = $2 WHERE job_id = $1", changed.job_id, later_at)
    await connection.execute(
        "UPDATE timers SET fire_at = $2, due_at = $2 WHERE job_id = $1", moved_on.job_id, now_at + 2 * MINUTE
    )
    await connection.execute("DELETE FROM timers WHERE job_id = $1", gone.job_id)
    node.loading.woken(frozenset(job.job_id for job in (changed, moved_on)))
    await node.loading.step()
    while (await node.firing.fire_batch()) or await node.firing.background.finish():
        pass
    assert await fired(connection, [changed]) == 1
    assert await fired(connection, [moved_on, gone]) == 0
    assert [at for _, at in await timers_of(connection, moved_on)] == [now_at + 2 * MINUTE]


async def test_timers_of_a_lost_partition_are_not_planned_on_and_fire_once_when_it_is_back(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    jobs = await add_costly_jobs(connection, 100, partitions=1)
    await node.loading.step()
    await node.firing.fire_batch()
    node.state.pending.keep_only(())
    await node.firing.background.finish()
    assert node.firing.background.made < 10
    assert len(node.state.pending) == 0
    assert await node.firing.fire_batch() == 0
    await node.fire_due()
    assert [len(await runs_of(connection, job)) for job in jobs] == [1] * 100


class StandingClock(DatabaseClock):
    """Holds up the background thread after so many plans."""

    def __init__(self, plans: int) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self._plans = plans

    def now_us(self) -> int:
        if threading.current_thread() is not threading.main_thread():
            self._plans -= 1
            if self._plans < 0:
                self.may_go_on.wait(PATIENCE_SECONDS)
        return super().now_us()


async def test_a_scheduler_stops_in_the_middle_of_planning_and_the_next_one_goes_on(
    connection: asyncpg.Connection, database_url: str
) -> None:
    jobs = await add_costly_jobs(connection, MANY)
    clock = StandingClock(MANY // 4)
    first = Scheduler(database_url, "first", clock=clock)
    await first.start()
    await until(lambda: fired(connection, jobs))
    await first.stop()
    clock.may_go_on.set()
    assert 0 < await fired(connection, jobs) <= MANY // 4
    async with scheduler(database_url, "second") as second:
        await second.join()
        await second.fire_due()
    assert await fired(connection, jobs) == MANY


async def test_a_rule_over_its_budget_is_planned_once_and_its_jobs_are_paused_with_the_reason(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    rule = rule_of(Schedule(f"DTSTART:20260101T000000\nRRULE:{COUNTED}"), Policies())
    assert isinstance(rule.spec, RRule)
    too_costly = dataclasses.replace(rule, spec=dataclasses.replace(rule.spec, base=LONG_AGO, first=LONG_AGO))
    broken = [await add_job(connection, rule=too_costly) for _ in range(20)]
    neighbour = await add_job(connection, rule=rule)
    await node.fire_due()
    assert node.firing.background.made <= 2
    assert await fired(connection, broken) == 0
    assert await fired(connection, [neighbour]) == 1
    reasons = await connection.fetch(
        "SELECT DISTINCT pause_reason FROM jobs WHERE job_id = ANY($1)", [job.job_id for job in broken]
    )
    assert len(reasons) == 1
    assert "takes too long to compute" in reasons[0][0]


async def test_what_a_batch_has_no_time_to_plan_fires_in_the_next_ones(
    connection: asyncpg.Connection, node: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "PLANNING_SECONDS", -1.0)
    jobs = [await add_job(connection, f"every {60 + number}s", partition=number % 256) for number in range(2000)]
    await node.loading.step()
    batches = 0
    while await node.firing.fire_batch():
        batches += 1
    assert await fired(connection, jobs) >= 2000
    assert {len(await runs_of(connection, job)) for job in jobs[::100]} <= {1, 2}
    assert batches > 4


async def test_tenants_whose_rules_fill_every_batch_do_not_keep_another_waiting(
    connection: asyncpg.Connection, node: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch has time for one plan, so that timers that fire are turns that are had."""
    monkeypatch.setattr(firing, "PLANNING_SECONDS", -1.0)
    monkeypatch.setattr(loop, "SLICE_SECONDS", -1.0)
    tenants = 4
    rules = slow_rules(100)
    assert _steps(rules[0]) <= LOOP_STEPS
    crowd = [
        await add_job(connection, rule=rule, tenant_id=2 + number % tenants, partition=number)
        for number, rule in enumerate(rules)
    ]
    await node.loading.step()
    for _ in range(3):
        await node.firing.fire_batch()
    before = await fired(connection, crowd)
    late = await add_job(connection, tenant_id=99, fire_at=AT)
    node.loading.woken(frozenset({late.job_id}))
    await node.loading.step()
    while not await fired(connection, [late]):
        assert await node.firing.fire_batch()
    most = tenants * QUANTUM + tenants  # a turn of each, and one timer of each that had its turn for nothing
    assert await fired(connection, crowd) - before <= most


class FailingClock(DatabaseClock):
    """Fails where plans are made in the background, for as long as it has failures."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Exception] = [MemoryError(), OSError()]

    def now_us(self) -> int:
        if self.failures and threading.current_thread() is not threading.main_thread():
            raise self.failures.pop()
        return super().now_us()


async def test_an_error_of_the_machine_while_planning_passes(
    connection: asyncpg.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_planning, "RETRY_SECONDS", 0.0)
    [job] = await add_costly_jobs(connection, 1)
    clock = FailingClock()
    async with scheduler(database_url, clock=clock) as node:
        await node.join()
        await node.fire_due()
    assert clock.failures == []
    assert await fired(connection, [job]) == 1


async def test_a_plan_that_took_seconds_is_not_made_again(
    connection: asyncpg.Connection, node: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_planning, "MAX_SECONDS", 0.0)
    [job] = await add_costly_jobs(connection, 1)
    await node.fire_due()
    assert await fired(connection, [job]) == 0
    reason = await connection.fetchval("SELECT pause_reason FROM jobs WHERE job_id = $1", job.job_id)
    assert "s to plan, more than" in reason


def test_a_plan_from_the_background_is_used_while_it_is_fresh() -> None:
    prepared = PreparedPlan(None, "", 0, to_us(AT))
    assert prepared.is_fresh(to_us(AT + timedelta(seconds=5)))
    assert not prepared.is_fresh(to_us(AT + timedelta(seconds=6)))
    assert not prepared.is_fresh(to_us(AT - timedelta(seconds=1))), "the clock was set back"


async def test_a_plan_from_the_background_is_used_though_another_of_its_rule_was_cheap(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    [job] = await add_costly_jobs(connection, 1)
    await node.loading.step()
    await node.firing.fire_batch()
    await node.firing.background.finish()
    node.state.rule_cache.note_steps(job.rule_id, 1)
    await node.firing.fire_batch()
    assert await fired(connection, [job]) == 1


async def test_a_tenant_with_as_many_computations_as_may_wait_has_its_timers_planned_all_the_same(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    [job] = await add_costly_jobs(connection, 1, tenant_id=7)
    await node.loading.step()
    release = threading.Event()
    requests = [asyncio.create_task(background.run(7, release.wait)) for _ in range(background.MAX_PENDING_PER_TENANT)]
    try:
        await asyncio.sleep(0)
        assert background.waiting(7) == background.MAX_PENDING_PER_TENANT
        await node.firing.fire_batch()
        planning = asyncio.create_task(node.firing.background.finish())
        await asyncio.sleep(0)
        assert background.waiting(("plan", 7)) == 1
    finally:
        release.set()
    await asyncio.gather(planning, *requests)
    assert await node.firing.fire_batch() == 1
    assert await fired(connection, [job]) == 1


async def test_a_scheduler_keeps_its_partitions_while_hundreds_of_costly_rules_are_due(
    connection: asyncpg.Connection, database_url: str
) -> None:
    costly = await add_costly_jobs(connection, MANY)
    node = Scheduler(database_url, "short-lived", heartbeat=timedelta(seconds=0.1), lifetime=timedelta(seconds=15))
    async with loop_work() as work:
        await node.start()
        try:
            await until(lambda: fired(connection, costly[:1]))
            first = await connection.fetch("SELECT partition, holder, epoch FROM partitions ORDER BY partition")
            await until(lambda: _is_done(connection, costly))
            last = await connection.fetch("SELECT partition, holder, epoch FROM partitions ORDER BY partition")
        finally:
            await node.stop()
    assert first == last
    assert work.longest_seconds < SHORT


def _steps(rule: Rule) -> int:
    with at_most(PLAN_STEPS) as work:
        plan(rule, to_us(AT), to_us(AT + MINUTE))
    return work.spent


async def _is_done(connection: asyncpg.Connection, jobs: list[Job]) -> bool:
    return await fired(connection, jobs) == len(jobs)


def test_a_queued_run_of_a_costly_rule_waits_for_no_search() -> None:
    [rule] = costly_rules(1)
    queued = PendingTimer(1, Timer(job_id_of(1, 7), "queued", AT, AT, 1, 1, priority=1))
    with at_most(2 * LOOP_STEPS):
        [group] = plan_firing([queued], {1: rule}, to_us(AT)).groups
    assert group.plan.wait == timedelta(microseconds=wait_us(to_us(AT), to_us(AT) + 1_000_000))
