"""Alerts open, close and are told: on a clock that stands still, by janitors and schedulers that act when told to."""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from engine import until
from evertick.contract.alerts import Alert, AlertTargetRequest
from evertick.contract.job import Job
from evertick.domain.alerts import MANY_DUE, Condition
from evertick.domain.ids import Prefix, format_id, parse_id
from evertick.domain.retry import GiveUp, GiveUpReason, NextStep, Retry
from evertick.roles.janitor.alerting import JOBS_PER_PAGE, NOTICES_UNDER_WAY, Alerting
from evertick.store.database import Pool, Timeouts, open_pool
from evertick.store.engine.lanes import Leased
from evertick.store.tenants import alerts as store
from evertick.store.tenants.alerts import Look, NewAlert
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import AlertTargetNotFound, NameTaken
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.edit import edit
from evertick.usecases.jobs.lifecycle import delete, pause, resume
from evertick.usecases.jobs.reading import get
from evertick.usecases.tenants import alerts
from usecases.world import WORKER, World, at, key_of

URL = "https://hooks.example.invalid/alerts"
DEAD = GiveUp(1, GiveUpReason.EXHAUSTED)


class Watch:
    """Looks for alerts, and delivers notices to a receiver that keeps them."""

    def __init__(self, world: World, tenant: TenantContext, pool: Pool) -> None:
        self.world = world
        self.tenant = tenant
        self.alerting = Alerting(pool)

    async def look(self) -> list[tuple[str, str]]:
        """One round of looking, due or not; the open alerts."""
        await self.world.connection.execute("UPDATE alert_looks SET next_at = '-infinity'")
        await self.alerting.step()
        return await self.open()

    async def open(self) -> list[tuple[str, str]]:
        return sorted((alert.condition, alert.subject) for alert in await self.all() if alert.status == "open")

    async def all(self) -> Sequence[Alert]:
        return (await alerts.list_alerts(self.tenant)).items

    async def deliver(self, result: str = "success", then: NextStep = None) -> list[dict[str, Any]]:
        """Fire the notices that are due, and answer them all; what they said."""
        target = await alerts.get_target(self.tenant)
        while await self.world.fire():
            pass
        leased = await self.world.lease("http")
        assert all(json.loads(each.spec or "")["target"]["url"] == target.url for each in leased)
        await self.world.record(leased, result, then)
        return [json.loads(each.payload or "") for each in leased]

    async def told(self) -> list[tuple[str, str]]:
        """Deliver what is to tell: type and condition of each."""
        return [(notice["type"], notice["condition"]) for notice in await self.deliver()]


@pytest.fixture
async def watch(world: World, tenant: TenantContext, pool: Pool) -> Watch:
    conditions = tuple(condition for condition in Condition if condition is not Condition.DEAD_LETTERS)
    await alerts.put_target(tenant, AlertTargetRequest(url=URL, conditions=conditions))
    return Watch(world, tenant, pool)


async def run_tick(world: World, minute: int, result: str = "success", second: int = 0) -> list[Leased]:
    """The tick of a minute runs, at its time or later, and ends so."""
    await world.set_clock(at(minute, second))
    await world.fire()
    leased = await world.lease("mail")
    await world.record(leased, result, None if result == "success" else DEAD)
    return leased


async def test_a_job_that_does_not_succeed_in_time_opens_one_alert_and_recovers(world: World, watch: Watch) -> None:
    job = await world.minutely(must_succeed_within="3m")
    await run_tick(world, 1)
    await world.set_clock(at(4))
    assert await watch.look() == []
    await world.set_clock(at(4, 1))
    assert await watch.look() == await watch.look() == [("no_success", job.job_id)]
    assert await watch.told() == [("alert.opened", "no_success")]
    assert (await watch.look(), await watch.told()) == ([("no_success", job.job_id)], [])
    await run_tick(world, 5)
    assert (await watch.look(), await watch.told()) == ([], [("alert.closed", "no_success")])
    (alert,) = await watch.all()
    assert (alert.status, alert.close_reason, alert.openings) == ("closed", "recovered", 1)
    assert (alert.opened_at, alert.closed_at) == (at(4, 1), at(5))
    assert (alert.job_name, alert.notice_status) == (job.name, "delivered")


async def test_a_job_that_never_ran_at_all_is_missed_too(world: World, watch: Watch) -> None:
    job = await world.minutely(must_succeed_within=60)  # no scheduler fires it
    await world.set_clock(at(1, 31))
    assert await watch.look() == [("no_success", job.job_id)]
    (notice,) = await watch.deliver()
    assert notice["job_id"] == job.job_id
    assert "no run has succeeded since" in notice["detail"]


async def test_the_log_of_an_alert_names_its_job_and_tenant_as_the_api_does(
    world: World, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    job = await world.minutely(alert_after_failures=1)
    await run_tick(world, 1, "failed")
    with caplog.at_level("INFO", "evertick.janitor"):
        assert await watch.look() == [("failures", job.job_id)]
    (record,) = [each for each in caplog.records if "opened" in each.message]
    assert record.message == f"alert failures {job.job_id} opened"
    assert vars(record)["job_id"] == job.job_id
    assert vars(record)["tenant_id"] == format_id(Prefix.TENANT, watch.tenant.tenant_id)
    (notice,) = await watch.deliver()
    assert notice["detail"] == "the latest run has failed"


async def test_a_finished_one_off_that_succeeded_is_not_missed(
    world: World, tenant: TenantContext, watch: Watch
) -> None:
    await create(tenant, {"schedule": "in 30s", "target": WORKER, "must_succeed_within": "5m"})
    await run_tick(world, 1)
    await world.set_clock(at(30))
    assert await watch.look() == []


async def test_what_is_not_due_yet_is_not_missed(world: World, tenant: TenantContext, watch: Watch) -> None:
    once = await create(tenant, {"schedule": "in 30m", "target": WORKER, "must_succeed_within": "5m"})
    fields = {"schedule": "* * * * *", "target": WORKER, "must_succeed_within": "5m"}
    later = await create(tenant, {**fields, "start_at": at(40).isoformat()})
    await world.set_clock(at(30))
    assert await watch.look() == []
    await world.set_clock(at(35, 31))
    assert await watch.look() == [("no_success", once.job_id)]
    await world.set_clock(at(45, 1))
    assert ("no_success", later.job_id) in await watch.look()


async def test_a_success_counts_for_longer_than_the_history(world: World, tenant: TenantContext, watch: Watch) -> None:
    fields = {"schedule": "* * * * *", "target": WORKER, "must_succeed_within": "5m"}
    await create(tenant, {**fields, "end_at": at(1, 30).isoformat()})
    job = await create(tenant, fields)
    await run_tick(world, 1)
    assert await watch.look() == []
    await world.connection.execute("DELETE FROM outcomes; DELETE FROM attempts")
    await world.set_clock(at(6))
    assert await watch.look() == []
    await world.set_clock(at(6, 1))
    assert await watch.look() == [("no_success", job.job_id)]  # and not the one that is finished


async def test_a_success_of_a_job_that_a_user_has_locked_is_noted_later(
    world: World, tenant: TenantContext, watch: Watch
) -> None:
    job = await world.minutely(must_succeed_within="5m")
    await run_tick(world, 1)
    noted = "SELECT noted_success_at FROM jobs WHERE job_id = $1"
    async with world.connection.transaction():
        await world.connection.execute("UPDATE jobs SET labels = labels WHERE job_id = $1", key_of(job))
        assert not await watch.alerting.look_at_jobs()
        assert await world.connection.fetchval(noted, key_of(job)) is None
    await watch.look()
    assert await world.connection.fetchval(noted, key_of(job)) == at(1)


async def test_failures_in_a_row_open_an_alert_and_a_success_closes_it(world: World, watch: Watch) -> None:
    job = await world.minutely(alert_after_failures=2)
    await run_tick(world, 1, "failed")
    assert await watch.look() == []
    await run_tick(world, 2, "failed")
    assert await watch.look() == [("failures", job.job_id)]
    await run_tick(world, 3)
    assert await watch.look() == []


async def test_a_tick_that_is_not_fired_in_time_is_late(world: World, watch: Watch) -> None:
    job = await world.minutely(alert_if_late_seconds=20)
    await world.set_clock(at(1, 20))
    assert await watch.look() == []
    await world.set_clock(at(1, 21))
    assert await watch.look() == [("late", job.job_id)]


async def test_a_run_that_waits_for_a_worker_is_late_and_so_is_one_that_started_late(
    world: World, watch: Watch
) -> None:
    job = await world.minutely(alert_if_late_seconds=20)
    await world.set_clock(at(1))
    await world.fire()
    await world.set_clock(at(1, 21))
    assert await watch.look() == [("late", job.job_id)]
    await world.record(await world.lease())  # it started late, and is over
    assert await watch.look() == [("late", job.job_id)]
    await run_tick(world, 2)
    assert await watch.look() == []


async def test_a_run_that_started_late_is_late_while_it_runs(world: World, watch: Watch) -> None:
    job = await world.minutely(alert_if_late_seconds=20, schedule="0 * * * *")
    await world.set_clock(at(60))
    await world.fire()
    await world.set_clock(at(60, 21))
    assert await watch.look() == [("late", job.job_id)]
    await world.lease()
    assert await watch.look() == [("late", job.job_id)]


async def test_a_run_that_takes_long_opens_an_alert_until_it_ends(world: World, watch: Watch) -> None:
    job = await world.minutely(alert_if_running_seconds=600, schedule="0 * * * *")
    await world.set_clock(at(60))
    await world.fire()
    leased = await world.lease()
    await world.set_clock(at(70))
    assert await watch.look() == []
    await world.set_clock(at(70, 1))
    assert await watch.look() == [("running_long", job.job_id)]
    await world.record(leased)
    assert await watch.look() == []


async def test_twice_its_usual_duration_is_long(world: World, watch: Watch) -> None:
    job = await world.minutely(alert_if_running_seconds="2x")
    for minute in range(1, 6):
        await run_tick(world, minute)  # each takes 412 ms
    await world.set_clock(at(6))
    await world.fire()
    await world.lease()
    await world.set_clock(at(6, 10))
    assert await watch.look() == []
    await world.set_clock(at(6, 11))
    assert await watch.look() == [("running_long", job.job_id)]


async def test_what_is_usual_is_not_known_before_a_few_successes(world: World, watch: Watch) -> None:
    await world.minutely(alert_if_running_seconds="2x")
    await run_tick(world, 1)
    await world.set_clock(at(2))
    await world.fire()
    await world.lease()
    await world.set_clock(at(50))
    assert await watch.look() == []


@pytest.mark.parametrize("stop", ["pause", "delete", "rule"])
async def test_an_alert_ends_with_what_it_is_about(
    world: World, tenant: TenantContext, watch: Watch, stop: str
) -> None:
    job = await world.minutely(alert_after_failures=1)
    await run_tick(world, 1, "failed")
    assert await watch.look() == [("failures", job.job_id)]
    assert await watch.told() == [("alert.opened", "failures")]
    if stop == "pause":
        await pause(tenant, job.job_id)
    elif stop == "delete":
        await delete(tenant, job.job_id)
    else:
        await edit(tenant, job.job_id, {"alert_after_failures": None})
    assert await watch.look() == []
    (notice,) = await watch.deliver()
    reasons = {"pause": "paused", "delete": "deleted", "rule": "rule_removed"}
    assert (notice["type"], notice["close_reason"]) == ("alert.closed", reasons[stop])


async def test_nothing_alarms_while_a_job_is_paused_and_its_time_counts_from_the_resume(
    world: World, tenant: TenantContext, watch: Watch
) -> None:
    job = await world.minutely(must_succeed_within=120, alert_if_late_seconds=5)
    await run_tick(world, 1)
    await pause(tenant, job.job_id)
    await world.set_clock(at(40))
    assert await watch.look() == []
    await resume(tenant, job.job_id)
    assert await watch.look() == []
    await world.set_clock(at(42, 1))
    assert ("no_success", job.job_id) in await watch.look()


async def test_an_alert_that_comes_and_goes_opens_once_in_ten_minutes_and_counts(world: World, watch: Watch) -> None:
    job = await world.minutely(alert_after_failures=1)
    await run_tick(world, 1, "failed")
    assert await watch.look() == [("failures", job.job_id)]
    for minute in range(2, 10):
        await run_tick(world, minute, "success" if minute % 2 == 0 else "failed")
        assert await watch.look() == []
    await run_tick(world, 11, "failed")
    assert await watch.look() == [("failures", job.job_id)]
    (alert,) = await watch.all()
    assert (alert.openings, alert.opened_at) == (2, at(11))


async def test_two_who_look_at_once_open_an_alert_and_tell_it_once(world: World, watch: Watch, pool: Pool) -> None:
    jobs = [await world.minutely(must_succeed_within=1) for _ in range(5)]
    await world.set_clock(at(3))
    await asyncio.gather(*(Alerting(pool).step() for _ in range(4)))
    await watch.look()
    assert await watch.open() == sorted(("no_success", job.job_id) for job in jobs)
    assert len(await watch.told()) == len(jobs)
    await watch.look()
    assert await watch.told() == []


@pytest.mark.parametrize("look", list(Look))
async def test_what_one_janitor_looks_after_no_other_does(world: World, watch: Watch, pool: Pool, look: Look) -> None:
    await world.minutely(must_succeed_within=1)
    await store.open_all(world.connection, [NewAlert(1, None, 1, Condition.FUSE, "x", "y")])
    await world.set_clock(at(3))
    acts = {
        Look.JOBS: watch.alerting.look_at_jobs,
        Look.TENANTS: watch.alerting.look_at_tenants,
        Look.NOTICES: watch.alerting.send_notices,
    }
    async with world.connection.transaction():
        assert await store.take_look(world.connection, look) is not None
        assert not await acts[look]()
        assert await watch.open() == [("fuse", "x")]
        assert await world.count("requested_runs") == [0]
    await watch.look()
    assert len(await watch.open()) == 2
    assert await world.count("requested_runs") == [2]


async def test_a_notice_waits_while_the_one_before_has_not_even_fired(
    world: World, tenant: TenantContext, watch: Watch
) -> None:
    job = await world.minutely(must_succeed_within=1)
    await world.set_clock(at(3))
    await watch.look()
    await pause(tenant, job.job_id)
    await watch.look()
    assert await world.count("requested_runs") == [1]
    assert [notice["type"] for notice in await watch.deliver()] == ["alert.opened"]
    await watch.look()
    assert [notice["type"] for notice in await watch.deliver()] == ["alert.closed"]


async def test_a_crash_between_an_alert_and_its_notice_loses_nothing(world: World, watch: Watch) -> None:
    await world.minutely(must_succeed_within=1)
    await world.set_clock(at(3))
    assert not await watch.alerting.look_at_jobs()  # the walk is over, and the janitor with it
    assert await watch.told() == []
    await watch.look()
    assert await watch.told() == [("alert.opened", "no_success")]


async def test_notices_of_an_alert_come_one_after_the_other(world: World, watch: Watch) -> None:
    await world.minutely(alert_after_failures=1)
    await run_tick(world, 1, "failed")
    await watch.look()
    assert len(await watch.deliver("failed", Retry(2, timedelta(minutes=5)))) == 1
    await run_tick(world, 2)
    assert await watch.look() == []
    assert await watch.told() == []
    assert (await watch.all())[0].notice_status == "under_way"
    await world.set_clock(at(7))
    assert [notice["type"] for notice in await watch.deliver()] == ["alert.opened"]
    await watch.look()
    assert [notice["type"] for notice in await watch.deliver()] == ["alert.closed"]


async def test_a_notice_that_cannot_be_delivered_is_listed_and_counted_and_is_no_alert_itself(
    world: World, tenant: TenantContext, watch: Watch, pool: Pool
) -> None:
    await alerts.put_target(tenant, AlertTargetRequest(url=URL))
    await world.minutely(alert_after_failures=1)
    await run_tick(world, 1, "failed")
    await world.connection.execute("DELETE FROM dead_letters")
    await watch.look()
    await watch.deliver("failed", DEAD)
    assert [(alert.condition, alert.notice_status) for alert in await watch.all()] == [("failures", "failed")]
    assert await store.count(pool) == (1, 1)
    assert [condition for condition, _ in await watch.look()] == ["failures"]


async def test_an_alert_that_opened_before_there_was_a_target_is_told_to_it(
    world: World, tenant: TenantContext, pool: Pool
) -> None:
    watch = Watch(world, tenant, pool)
    await world.minutely(must_succeed_within=1)
    await world.set_clock(at(3))
    assert len(await watch.look()) == 1
    await alerts.put_target(tenant, AlertTargetRequest(url=URL))
    await watch.look()
    assert await watch.told() == [("alert.opened", "no_success")]


async def test_another_target_is_told_what_is_open(world: World, tenant: TenantContext, watch: Watch) -> None:
    await world.minutely(must_succeed_within=1)
    await world.set_clock(at(3))
    await watch.look()
    first = await watch.deliver("failed", Retry(2, timedelta(hours=1)))  # its URL was wrong
    await alerts.put_target(tenant, AlertTargetRequest(url=URL + "/2"))
    await watch.look()
    assert await watch.deliver() == first
    await alerts.remove_target(tenant)
    await alerts.put_target(tenant, AlertTargetRequest(url=URL))
    await watch.look()
    assert await watch.deliver() == first
    await alerts.put_target(tenant, AlertTargetRequest(url=URL))
    await watch.look()
    assert await watch.deliver() == []


async def test_a_target_that_was_deleted_meanwhile_is_not_locked(
    world: World, tenant: TenantContext, watch: Watch
) -> None:
    job_id = parse_id(Prefix.JOB, (await alerts.get_target(tenant)).job_id)
    async with world.connection.transaction():
        assert await store.lock_targets(world.connection, [job_id]) == [job_id]
    await alerts.remove_target(tenant)
    async with world.connection.transaction():
        assert await store.lock_targets(world.connection, [job_id]) == []


NEARLY_FULL = (Condition.QUOTA, "jobs")


async def test_an_alert_about_a_tenant_does_not_stay_open_when_its_target_is_removed_at_that_moment(
    world: World, tenant: TenantContext, watch: Watch
) -> None:
    async with world.connection.transaction():  # of a janitor
        await store.open_all(world.connection, [NewAlert(tenant.tenant_id, None, 1, *NEARLY_FULL, "")])
        removing = asyncio.create_task(alerts.remove_target(tenant))
        await until(lambda: world.pool.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))
    await removing
    assert [(alert.condition, alert.status) for alert in await watch.all()] == [("quota", "closed")]


async def test_an_alert_about_a_tenant_does_not_open_after_its_target_was_removed(
    world: World, tenant: TenantContext, watch: Watch
) -> None:
    await alerts.remove_target(tenant)
    await store.open_all(world.connection, [NewAlert(tenant.tenant_id, None, 1, *NEARLY_FULL, "")])
    assert await watch.all() == ()


SLOW_OPENING = """
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.4); RETURN NEW; END $$;
CREATE TRIGGER wait BEFORE INSERT ON alerts FOR EACH ROW EXECUTE FUNCTION wait();
"""


async def test_a_page_that_takes_too_long_is_tried_again_with_fewer_jobs_and_so_is_the_next_walk(
    world: World, tenant: TenantContext, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [await world.minutely(must_succeed_within=1) for _ in range(3)]
    await world.connection.execute(SLOW_OPENING)
    await world.set_clock(at(3))
    async with await open_pool(database_url, timeouts=Timeouts(10, 1, 1)) as pool:
        watch = Watch(world, tenant, pool)
        late = sorted(("no_success", job.job_id) for job in jobs)
        assert await watch.look() == late
        for _ in range(5):
            await watch.alerting.step()  # which is not due, and quick
        await world.connection.execute("DELETE FROM alerts")
        assert await watch.look() == late
    assert caplog.text.count(f"a batch of {JOBS_PER_PAGE} rows took too long") == 1


async def test_a_notice_that_history_has_no_more_is_not_called_failed(world: World, watch: Watch) -> None:
    await world.minutely(must_succeed_within=1)
    await world.set_clock(at(3))
    await watch.look()
    await watch.deliver()
    await world.connection.execute("DELETE FROM outcomes; DELETE FROM attempts")
    assert [alert.notice_status for alert in await watch.all()] == [None]


async def test_rules_of_the_job_of_notices_do_not_alert_on_alerts(
    world: World, tenant: TenantContext, watch: Watch
) -> None:
    await edit(tenant, (await alerts.get_target(tenant)).job_id, {"must_succeed_within": 1})
    await world.set_clock(at(30))
    assert await watch.look() == []


async def test_only_the_conditions_that_a_target_names_are_told(
    world: World, tenant: TenantContext, watch: Watch
) -> None:
    await alerts.put_target(tenant, AlertTargetRequest(url=URL, conditions=(Condition.FAILURES,)))
    await world.minutely(must_succeed_within=1, alert_after_failures=1)
    await run_tick(world, 1, "failed")
    assert {condition for condition, _ in await watch.look()} == {"failures", "no_success"}
    assert await watch.told() == [("alert.opened", "failures")]


async def test_dead_letters_alarm_until_none_is_new(world: World, tenant: TenantContext, watch: Watch) -> None:
    await alerts.put_target(tenant, AlertTargetRequest(url=URL))
    await world.minutely()
    await run_tick(world, 1, "failed")
    assert await watch.look() == [("dead_letters", "")]
    await run_tick(world, 16, second=30)
    assert await watch.look() == []


async def test_many_overdue_timers_are_a_large_catch_up(world: World, tenant: TenantContext, watch: Watch) -> None:
    job = await world.minutely()
    await world.connection.execute(
        "INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, queue_id, spec_version, kind, reason,"
        " partition, priority)"
        " SELECT job_id, due_at + n * interval '1 us', due_at, tenant_id, rule_id, queue_id, 1, 'queued', 'late',"
        " partition, 2 FROM timers, generate_series(1, $1) AS n WHERE job_id = $2",
        MANY_DUE,
        key_of(job),
    )
    await world.set_clock(at(2))
    assert await watch.look() == []
    await world.set_clock(at(2, 1))
    assert await watch.look() == [("catch_up", "")]
    await world.connection.execute("DELETE FROM timers WHERE kind = 'queued'")
    assert await watch.look() == []


async def open_circuits(world: World, tenant_id: int, *hosts: str) -> None:
    await world.connection.execute(
        "INSERT INTO target_hosts (tenant_id, host, state, changed_at, window_at, reported_at, watched_until, calls,"
        " failures, calls_before, failures_before, openings, last_error)"
        " SELECT $1, host, 'open', now_at, now_at, now_at, 'infinity', 9, 9, 0, 0, 1, 'HTTP 503'"
        " FROM clock_at() AS now_at, unnest($2::text[]) AS host",
        tenant_id,
        hosts,
    )


async def test_failing_hosts_of_one_tenant_do_not_hide_those_of_another(world: World, watch: Watch) -> None:
    tenant_id = await world.connection.fetchval("INSERT INTO tenants (name) VALUES ('other') RETURNING tenant_id")
    other = world.tenant(tenant_id)
    await alerts.put_target(other, AlertTargetRequest(url=URL))
    await open_circuits(world, 1, *(f"{n}.example.com" for n in range(1000)))
    await open_circuits(world, tenant_id, "api.example.com")
    await watch.look()
    assert [alert.subject for alert in (await alerts.list_alerts(other)).items] == ["api.example.com"]


async def test_a_host_whose_circuit_is_open_alarms_until_it_closes(world: World, watch: Watch) -> None:
    await open_circuits(world, 1, "api.example.com")
    assert await watch.look() == [("breaker_open", "api.example.com")]
    (notice,) = await watch.deliver()
    assert "HTTP 503" in notice["detail"]
    await world.connection.execute("UPDATE target_hosts SET state = 'closed'")
    assert await watch.look() == []


async def test_a_quota_that_is_nearly_used_up_alarms(world: World, watch: Watch) -> None:
    for _ in range(8):
        await world.minutely()
    await world.connection.execute("UPDATE tenants SET jobs_quota = 10 WHERE tenant_id = 1")
    assert await watch.look() == [("quota", "jobs")]  # with the job of the notices
    await world.connection.execute("UPDATE tenants SET jobs_quota = 11, storage_quota_bytes = 1 WHERE tenant_id = 1")
    assert await watch.look() == [("quota", "storage_bytes")]


async def test_what_the_fuse_paused_alarms_until_it_is_resumed(
    world: World, tenant: TenantContext, watch: Watch
) -> None:
    job = await world.minutely()
    new = NewAlert(1, key_of(job), 1, Condition.FUSE, job.job_id, "more runs than ticks")
    await store.open_all(world.connection, [new])
    await pause(tenant, job.job_id)
    assert await watch.look() == [("fuse", job.job_id)]
    assert await watch.told() == [("alert.opened", "fuse")]
    await resume(tenant, job.job_id)
    assert (await watch.look(), await watch.told()) == ([], [("alert.closed", "fuse")])


async def test_a_target_is_set_changed_and_removed(world: World, tenant: TenantContext, watch: Watch) -> None:
    first = await alerts.put_target(tenant, AlertTargetRequest(url=URL))
    assert (first.url, first.conditions) == (URL, tuple(sorted(Condition)))
    second = await alerts.put_target(tenant, AlertTargetRequest(url=URL + "/2", headers={"X-Team": "a"}))
    assert (second.url, second.headers) == (URL + "/2", {"X-Team": "a"})
    assert second.job_id != first.job_id
    assert await alerts.put_target(tenant, AlertTargetRequest(url=URL + "/2", headers={"X-Team": "a"})) == second
    assert await alerts.get_target(tenant) == second
    job = await get(tenant, second.job_id)
    assert (job.name, job.schedule, job.target["circuit_breaker"]) == ("alert:notices", "manual", False)
    await world.minutely()
    await run_tick(world, 1, "failed")
    assert await watch.look() == [("dead_letters", "")]
    await alerts.remove_target(tenant)
    assert await watch.open() == []
    with pytest.raises(AlertTargetNotFound):
        await alerts.get_target(tenant)
    assert (await alerts.put_target(tenant, AlertTargetRequest(url=URL))).job_id != first.job_id


async def test_a_job_of_the_notices_name_is_not_replaced(world: World, tenant: TenantContext) -> None:
    await create(tenant, {"name": "alert:notices", "schedule": "manual", "target": WORKER})
    with pytest.raises(NameTaken):
        await alerts.put_target(tenant, AlertTargetRequest(url=URL))


async def test_a_test_notice_is_a_run(tenant: TenantContext, watch: Watch) -> None:
    await alerts.send_test_notice(tenant, "test:1")
    (notice,) = await watch.deliver()
    assert (notice["type"], notice["notice_id"]) == ("alert.test", "test:1")


async def test_a_walk_through_many_jobs_goes_page_by_page(
    world: World, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evertick.roles.janitor.alerting.JOBS_PER_PAGE", 2)
    jobs = [await world.minutely(must_succeed_within=1) for _ in range(5)]
    await world.set_clock(at(3))
    assert await watch.look() == sorted(("no_success", job.job_id) for job in jobs)
    await world.set_clock(at(3, 5))
    assert not await watch.alerting.look_at_jobs()  # not due


async def test_alerts_of_one_tenant_are_not_another_ones(world: World, watch: Watch) -> None:
    tenant_id = await world.connection.fetchval("INSERT INTO tenants (name) VALUES ('other') RETURNING tenant_id")
    other = world.tenant(tenant_id)
    job: Job = await create(other, {"schedule": "* * * * *", "target": WORKER, "must_succeed_within": 1})
    await world.set_clock(at(3))
    assert await watch.look() == []
    assert [alert.subject for alert in (await alerts.list_alerts(other)).items] == [job.job_id]
    assert await watch.told() == []


async def test_a_receiver_that_takes_nothing_gets_no_more_than_a_few_notices_at_a_time(
    world: World, tenant: TenantContext, watch: Watch
) -> None:
    new = [NewAlert(1, None, 1, Condition.BREAKER_OPEN, f"host-{n}", "it fails") for n in range(3 * NOTICES_UNDER_WAY)]
    await store.open_all(world.connection, new)
    for _ in range(3):
        while await watch.alerting.send_notices():
            pass
    assert await world.count("requested_runs") == [NOTICES_UNDER_WAY]
    await watch.deliver()
    assert await watch.alerting.send_notices()
