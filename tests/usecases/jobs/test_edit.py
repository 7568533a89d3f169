"""Editing jobs: what becomes of their ticks, and of the runs that stand already."""

import json
from datetime import timedelta

import pytest

from evertick.contract.job import JobDocument
from evertick.domain.errors import InvalidFields
from evertick.domain.retry import Retry
from evertick.store.engine.lanes import queue_of
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import JobNotFound, NameTaken, VersionConflict
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.edit import edit, put
from evertick.usecases.jobs.lifecycle import pause
from evertick.usecases.jobs.reading import get, get_by_name
from usecases.world import WORKER, World, at, key_of


async def test_an_edit_is_a_new_version_from_now_on(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(name="a", labels={"x": "y"}, max_retries=7)
    await world.set_clock(at(0, 40))
    edited = await edit(tenant, job.job_id, {"schedule": "*/5 * * * *", "payload": 5, "max_retries": None})
    assert (edited.spec_version, edited.next_run_at, edited.payload) == (2, at(5), 5)
    assert (edited.created_at, edited.updated_at) == (at(0, 30), at(0, 40))
    assert (edited.max_retries, edited.labels) == (3, {"x": "y"})
    assert await get(tenant, job.job_id) == edited
    assert await world.timers_of(job) == [("tick", at(5), True)]
    assert await world.gaps_of(job) == []
    assert world.woken == [key_of(job)] * 2
    versions = await world.connection.fetch("SELECT spec_version, effective_at FROM job_versions ORDER BY 1")
    assert [tuple(row) for row in versions] == [(1, at(0, 30)), (2, at(0, 40))]


async def test_ticks_that_were_due_and_not_fired_are_a_gap_of_the_version_before(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely()
    await world.set_clock(at(3, 30))
    edited = await edit(tenant, job.job_id, {"schedule": "*/5 * * * *"})
    assert edited.next_run_at == at(5)
    assert await world.gaps_of(job) == [(at(1), at(3), 3, "missed")]
    assert await world.connection.fetchval("SELECT spec_version FROM gaps") == 1
    assert await world.fire() == 0


async def test_an_edit_that_leaves_the_schedule_alone_leaves_the_timer_alone(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely()
    await world.set_clock(at(3, 30))
    target = {"type": "worker", "queue": "slow", "handler": "send"}
    edited = await edit(tenant, job.job_id, {"target": target, "priority": "low", "missed_window": "SKIP"})
    assert edited.next_run_at == at(1)
    assert await world.gaps_of(job) == []
    assert await world.fire() == 1  # within its grace
    (leased,) = await world.lease()
    assert (leased.spec_version, leased.lane_id & 3) == (2, 2)
    queue = await world.connection.fetchval("SELECT name FROM queues WHERE queue_id = $1", queue_of(leased.lane_id))
    assert queue == "slow"


async def test_another_way_to_write_the_same_schedule_leaves_the_timer_alone(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely(schedule="*/2 * * * *")
    await world.set_clock(at(3))
    assert (await edit(tenant, job.job_id, {"schedule": "0-59/2 * * * *"})).next_run_at == at(2)
    assert await world.gaps_of(job) == []


async def test_a_new_jitter_moves_the_due_time_only(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    edited = await edit(tenant, job.job_id, {"jitter_seconds": 50})
    assert edited.next_run_at == at(1)
    due_at = await world.connection.fetchval("SELECT due_at FROM timers")
    assert timedelta(0) < due_at - at(1) < timedelta(seconds=50)


async def test_an_interval_keeps_the_phase_of_its_jobs_creation(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await world.set_clock(at(7))
    edited = await edit(tenant, job.job_id, {"schedule": "every 10m"})
    assert edited.next_run_at == at(10, 30)


async def test_an_equal_edit_changes_nothing(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(payload={"a": 1}, name="a")
    await world.set_clock(at(9))
    assert await edit(tenant, job.job_id, {"payload": {"a": 1.0}, "name": "a"}) == job
    assert await edit(tenant, job.job_id, {}) == job
    assert (await edit(tenant, job.job_id, {"payload": {"a": True}})).spec_version == 2


async def test_what_an_open_attempt_keeps_out_stays_out_after_an_edit(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    assert await world.fire() == 1
    await edit(tenant, job.job_id, {"schedule": "*/2 * * * *"})
    await world.set_clock(at(2))
    assert await world.fire() == 0
    assert await world.gaps_of(job) == [(at(2), at(2), 1, "overlap")]


async def test_to_manual_and_back(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    assert await world.fire() == 1
    await world.set_clock(at(2, 30))
    manual = await edit(tenant, job.job_id, {"schedule": "manual"})
    assert (manual.status, manual.next_run_at) == ("active", None)
    assert await world.timers_of(job) == []
    assert await world.gaps_of(job) == [(at(2), at(2), 1, "missed")]
    back = await edit(tenant, job.job_id, {"schedule": "* * * * *"})
    assert (back.next_run_at, back.spec_version) == (at(3), 3)
    await world.set_clock(at(3))
    assert await world.fire() == 0  # the first attempt is still open
    assert (at(3), at(3), 1, "overlap") in await world.gaps_of(job)


async def test_a_finished_one_off_can_be_edited_and_given_another_time(world: World, tenant: TenantContext) -> None:
    job = await create(tenant, {"schedule": at(1).isoformat(), "target": WORKER})
    await world.set_clock(at(1))
    await world.run_all()
    assert (await get(tenant, job.job_id)).status == "finished"
    renamed = await edit(tenant, job.job_id, {"name": "again"})
    assert (renamed.status, renamed.next_run_at) == ("finished", None)
    edited = await edit(tenant, job.job_id, {"schedule": at(5).isoformat()})
    assert (edited.status, edited.next_run_at) == ("active", at(5))
    await world.set_clock(at(5))
    assert [leased.fire_at for leased in await world.run_all()] == [at(5)]
    assert (await get(tenant, job.job_id)).status == "finished"


async def test_an_edit_never_fires_what_is_past(world: World, tenant: TenantContext) -> None:
    job = await create(tenant, {"schedule": at(1).isoformat(), "target": WORKER})
    await world.set_clock(at(1))
    await world.run_all()
    await world.set_clock(at(1, 10))
    same_instant = at(1).isoformat().replace("+00:00", "Z")
    with pytest.raises(InvalidFields, match="never retroactive"):
        await edit(tenant, job.job_id, {"schedule": same_instant})
    assert await world.timers_of(job) == []


async def test_a_one_off_that_waits_keeps_its_place_under_another_text(world: World, tenant: TenantContext) -> None:
    job = await create(tenant, {"schedule": at(1).isoformat(), "target": WORKER})
    await world.set_clock(at(1, 10))
    same_instant = at(1).isoformat().replace("+00:00", "Z")
    assert (await edit(tenant, job.job_id, {"schedule": same_instant})).next_run_at == at(1)
    assert await world.gaps_of(job) == []


async def test_a_one_off_moves(world: World, tenant: TenantContext) -> None:
    job = await create(tenant, {"schedule": at(1).isoformat(), "target": WORKER})
    assert (await edit(tenant, job.job_id, {"schedule": at(2).isoformat()})).next_run_at == at(2)
    assert await world.timers_of(job) == [("tick", at(2), True)]


async def test_a_delay_counts_from_the_edit(world: World, tenant: TenantContext) -> None:
    job = await create(tenant, {"schedule": "@yearly", "target": WORKER})
    await world.set_clock(at(600))
    edited = await edit(tenant, job.job_id, {"schedule": "in 90s"})
    assert edited.next_run_at == at(601, 30)
    await world.set_clock(at(601))
    assert (await edit(tenant, job.job_id, {"missed_window": "SKIP"})).next_run_at == at(601, 30)
    assert (await edit(tenant, job.job_id, {"schedule": "now"})).next_run_at == at(601)
    assert [leased.fire_at for leased in await world.run_all()] == [at(601)]


async def test_a_paused_job_stays_paused_and_its_swallowed_ticks_are_a_gap(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await pause(tenant, job.job_id, "holiday")
    await world.set_clock(at(3, 30))
    edited = await edit(tenant, job.job_id, {"schedule": "*/5 * * * *"})
    assert (edited.status, edited.next_run_at, edited.pause_reason) == ("paused", None, "holiday")
    assert await world.gaps_of(job) == [(at(1), at(3), 3, "paused")]
    assert await world.timers_of(job) == [("tick", at(5), False)]


async def test_a_jump_of_the_clocks_that_was_noted_ahead_goes_with_its_schedule(
    world: World, tenant: TenantContext
) -> None:
    jump = at(0).replace(year=2027, month=3, day=14, hour=7)  # 02:00 in New York
    await world.set_clock(jump - timedelta(hours=10))
    job = await world.minutely(schedule="30 2 * * *", timezone="America/New_York", dst_gap="skip")
    assert len(await world.gaps_of(job)) == 1
    await edit(tenant, job.job_id, {"schedule": "15 2 * * *"})
    assert await world.gaps_of(job) == [(jump, jump, 1, "dst")]
    assert await world.connection.fetchval("SELECT spec_version FROM gaps") == 2
    await edit(tenant, job.job_id, {"schedule": "manual"})
    assert await world.gaps_of(job) == []


async def test_a_run_keeps_the_version_that_it_began_with(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(payload="old")
    await world.set_clock(at(1))
    await world.fire()
    await world.record(await world.lease(), "failed", Retry(2, timedelta(0)))
    await edit(tenant, job.job_id, {"payload": "new", "schedule": "@daily"})
    await world.fire()
    (retried,) = await world.lease()
    assert (retried.attempt, retried.spec_version, retried.payload) == (2, 1, '"old"')


async def test_an_edit_refuses_what_a_creation_would(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(name="a")
    await world.minutely(name="b")
    with pytest.raises(InvalidFields, match="/schedule"):
        await edit(tenant, job.job_id, {"schedule": "0 0 30 2 *"})
    with pytest.raises(InvalidFields, match="must be an object"):
        await edit(tenant, job.job_id, [])
    with pytest.raises(NameTaken, match="'b'"):
        await edit(tenant, job.job_id, {"name": "b"})
    with pytest.raises(VersionConflict, match="spec_version 1, not 4"):
        await edit(tenant, job.job_id, {"name": "c"}, expected_version=4)
    for unknown in ("job_0000000000001", "nonsense"):
        with pytest.raises(JobNotFound, match=unknown):
            await edit(tenant, unknown, {})
    with pytest.raises(JobNotFound):
        await edit(world.tenant(2), job.job_id, {})
    assert await get(tenant, job.job_id) == job


async def test_a_reset_name_is_generated_again(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(name="a")
    assert (await edit(tenant, job.job_id, {"name": None})).name == f"send-{job.job_id.removeprefix('job_')}"


async def test_put_creates_then_replaces_then_does_nothing(world: World, tenant: TenantContext) -> None:
    fields = {"schedule": "* * * * *", "target": WORKER, "labels": {"x": "y"}}
    first = await put(tenant, "nightly", fields)
    assert (first.is_new, first.job.name) == (True, "nightly")
    same = await put(tenant, "nightly", {**fields, "name": "nightly"})
    assert (same.is_new, same.job) == (False, first.job)
    second = await put(tenant, "nightly", {"schedule": "*/5 * * * *", "target": WORKER}, expected_version=1)
    assert (second.is_new, second.job.spec_version, second.job.labels) == (False, 2, {})
    assert second.job == await get_by_name(tenant, "nightly")
    assert second.job.job_id == first.job.job_id


async def test_put_refuses_another_name_a_missed_edit_and_nonsense(world: World, tenant: TenantContext) -> None:
    fields = {"schedule": "* * * * *", "target": WORKER}
    with pytest.raises(InvalidFields, match="/name: must be 'a'"):
        await put(tenant, "a", {**fields, "name": "b"})
    wrong: list[object] = [[], {}, 5]
    for name in wrong:
        with pytest.raises(InvalidFields, match="/name: must be a string"):
            await put(tenant, "a", {**fields, "name": name})
    with pytest.raises(InvalidFields, match="must be an object"):
        await put(tenant, "a", None)
    with pytest.raises(JobNotFound):
        await put(tenant, "a", fields, expected_version=1)
    await put(tenant, "a", fields)
    with pytest.raises(VersionConflict):
        await put(tenant, "a", fields, expected_version=2)


async def test_a_default_that_is_written_out_is_no_change(tenant: TenantContext) -> None:
    job = await create(tenant, {"schedule": "@hourly", "target": WORKER, "name": "plain"})
    whole = {name: getattr(job, name) for name in JobDocument.__struct_fields__ if name != "misfire_grace_seconds"}
    # As texts of their own, as they come from JSON.
    written = json.loads(json.dumps(whole | {"timeout_seconds": 300, "retain_seconds": 86_400}))
    assert (await put(tenant, "plain", written)).job.spec_version == 1
    assert (await edit(tenant, job.job_id, json.loads('{"timezone": "UTC", "labels": {}}'))).spec_version == 1
    assert (await edit(tenant, job.job_id, {"timezone": None, "timeout_seconds": 301})).spec_version == 2
