"""What people ask for by hand: triggers, replays, cancellations."""

import json
from datetime import timedelta

import pytest

from evertick.contract.job import Job
from evertick.domain.errors import InvalidFields
from evertick.domain.ids import parse_run_id
from evertick.domain.retry import GiveUp, GiveUpReason, Retry
from evertick.store.tenants import broker_connections
from evertick.store.tenants.broker_connections import ConnectionKey, Content
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import JobNotFound, RunFinished, RunNotFound, RunUnfinished, TriggerRefused
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.edit import edit
from evertick.usecases.jobs.lifecycle import delete, pause
from evertick.usecases.runs.reading import get_run, job_runs
from evertick.usecases.runs.requests import cancel, replay, trigger
from roles.dispatching import SEAL
from usecases.world import WORKER, World, at, key_of


async def test_a_triggered_run_is_one_of_its_own_and_consumes_no_tick(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(payload={"from": "job"})
    world.woken.clear()
    run_id = await trigger(tenant, job.job_id)
    assert world.woken == [key_of(job)]
    assert (await get_run(tenant, run_id)).run.status == "pending"
    await world.fire()
    (leased,) = await world.lease()
    assert (leased.reason, leased.attempt, leased.payload) == ("manual", 1, '{"from":"job"}')
    await world.set_clock(at(1))
    await world.record([leased])
    assert [(each.fire_at, each.reason) for each in await world.run_all()] == [(at(1), "tick")]


@pytest.mark.parametrize("payload", [{"a": [1]}, None, False])
async def test_a_trigger_may_bring_its_own_payload(world: World, tenant: TenantContext, payload: object) -> None:
    job = await world.minutely(payload={"from": "job"})
    await trigger(tenant, job.job_id, payload)  # type: ignore[arg-type]
    (leased,) = await world.run_all()
    assert (None if leased.payload is None else json.loads(leased.payload)) == payload


async def test_a_trigger_whose_payload_makes_no_address_for_its_broker_is_refused(
    tenant: TenantContext,
) -> None:
    settings = Content("nats", '{"servers": ["nats.example.invalid"]}', {})
    await broker_connections.add(tenant.pool, ConnectionKey(tenant.tenant_id, "orders"), settings, SEAL)
    target = {"type": "nats", "connection": "orders", "subject": "orders.{{payload.account}}"}
    manual = await create(tenant, {"schedule": "manual", "target": target})
    with pytest.raises(InvalidFields, match="has no field 'account', which subject names"):
        await trigger(tenant, manual.job_id)
    with pytest.raises(InvalidFields, match=r"makes the subject 'orders\.a b', which must be words"):
        await trigger(tenant, manual.job_id, {"account": "a b"})
    await trigger(tenant, manual.job_id, {"account": "a"}, force=True)
    daily = await create(tenant, {"schedule": "@daily", "target": target, "payload": {"account": "a"}})
    await trigger(tenant, daily.job_id)
    with pytest.raises(InvalidFields, match="has no field 'account'"):
        await trigger(tenant, daily.job_id, None, force=True)


async def test_paused_and_manual_jobs_can_be_triggered(world: World, tenant: TenantContext) -> None:
    paused = await world.minutely()
    await pause(tenant, paused.job_id)
    manual = await create(tenant, {"schedule": "manual", "target": WORKER, "priority": "low"})
    for job in (paused, manual):
        await trigger(tenant, job.job_id)
    assert {leased.job_id: leased.lane_id & 3 for leased in await world.run_all()} == {
        key_of(paused): 1,
        key_of(manual): 2,
    }


async def test_two_triggers_at_one_instant_are_two_runs_and_neither_is_the_tick(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely(concurrent_policy="ALLOW", max_concurrent=9)
    await world.set_clock(at(1))
    run_ids = [await trigger(tenant, job.job_id) for _ in range(2)]
    await world.run_all()
    run_ids.append(await trigger(tenant, job.job_id))
    await world.run_all()
    history = await job_runs(tenant, job.job_id)
    assert len({entry.run_id for entry in history.items}) == 4
    assert {entry.status for entry in history.items} == {"success"}
    assert at(1) not in {at(0) + timedelta(0) + _fire_time(run_id) for run_id in run_ids}


def _fire_time(run_id: str) -> timedelta:
    return timedelta(microseconds=parse_run_id(run_id).fire_at_us) - timedelta(seconds=at(0).timestamp())


async def test_triggers_are_refused(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    with pytest.raises(InvalidFields, match="/payload"):
        await trigger(tenant, job.job_id, "x" * 70_000)
    with pytest.raises(JobNotFound):
        await trigger(world.tenant(2), job.job_id)
    await delete(tenant, job.job_id)
    with pytest.raises(JobNotFound):
        await trigger(tenant, job.job_id)
    assert await world.count("timers", "requested_runs") == [0, 0]


async def test_a_replay_has_the_runs_payload_and_the_jobs_current_version(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(payload="first")
    await world.set_clock(at(1))
    (ran,) = await world.run_all()
    own = await trigger(tenant, job.job_id, "own")
    await world.run_all()
    await edit(tenant, job.job_id, {"payload": "edited"})
    (tick,) = [entry for entry in (await job_runs(tenant, job.job_id)).items if entry.reason == "tick"]
    for run_id, payload in ((tick.run_id, "first"), (own, "own")):
        new = await replay(tenant, str(run_id))
        (leased,) = await world.run_all()
        assert (leased.reason, leased.spec_version, leased.payload) == ("replay", 2, json.dumps(payload))
        again = await replay(tenant, new)
        (leased,) = await world.run_all()
        assert (leased.payload, again != new) == (json.dumps(payload), True)
    assert ran.fire_at == at(1)


async def test_a_replay_of_a_dead_run_settles_its_letter(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.fire()
    await world.record(await world.lease(), "failed", GiveUp(1, GiveUpReason.EXHAUSTED))
    (dead,) = (await job_runs(tenant, job.job_id)).items
    assert dead.status == "dead"
    await replay(tenant, str(dead.run_id))
    assert await world.count("dead_letters") == [0]
    (leased,) = await world.run_all()
    assert leased.replays_at == at(1)


async def test_an_unfinished_or_unknown_run_is_not_replayed(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    run_id = await trigger(tenant, job.job_id)
    with pytest.raises(RunUnfinished, match="pending"):
        await replay(tenant, run_id)
    for unknown in (run_id[:-1] + "7", "run_1"):
        with pytest.raises(RunNotFound):
            await replay(tenant, unknown)
    with pytest.raises(JobNotFound):
        await replay(world.tenant(2), run_id)


async def test_an_open_attempt_is_cancelled_and_its_worker_comes_too_late(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.fire()
    leased = await world.lease()
    (running,) = (await job_runs(tenant, job.job_id)).items
    assert (running.status, running.worker_id) == ("running", "worker-1")  # type: ignore[union-attr]
    await cancel(tenant, str(running.run_id))
    assert await world.record(leased) == 0
    detail = await get_run(tenant, str(running.run_id))
    assert (detail.run.status, detail.run.error) == ("cancelled", "cancelled by request")
    with pytest.raises(RunFinished, match="cancelled"):
        await cancel(tenant, str(running.run_id))
    await world.set_clock(at(2))
    assert await world.fire() == 1


async def test_a_cancelled_retry_never_comes(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.fire()
    await world.record(await world.lease(), "failed", Retry(2, timedelta(seconds=30)))
    (retrying,) = (await job_runs(tenant, job.job_id)).items
    assert retrying.status == "retrying"
    await cancel(tenant, str(retrying.run_id))
    assert (await get_run(tenant, str(retrying.run_id))).run.status == "cancelled"
    assert await world.count("open_runs", "withdrawals") == [0, 1]
    assert await world.timers_of(job) == [("tick", at(2), True)]
    await world.set_clock(at(2))
    assert await world.fire() == 1


async def test_a_run_that_only_waits_can_be_cancelled(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    run_id = await trigger(tenant, job.job_id)
    await cancel(tenant, run_id)
    assert await world.fire() == 0
    detail = await get_run(tenant, run_id)
    assert (detail.run.status, detail.run.attempt, detail.attempts) == ("cancelled", 0, ())


async def test_a_cancelled_attempt_that_nobody_leased_is_not_run(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(concurrent_policy="QUEUE")
    await world.set_clock(at(1))
    await world.fire()
    (pending,) = (await job_runs(tenant, job.job_id)).items
    assert pending.status == "pending"
    await cancel(tenant, str(pending.run_id))
    (leased,) = await world.lease()
    assert leased.is_over
    assert await world.count("open_runs") == [0]


async def test_others_runs_and_unknown_ones_cannot_be_cancelled(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    run_id = await trigger(tenant, job.job_id)
    for who, unknown in ((world.tenant(2), run_id), (tenant, run_id[:-1] + "7"), (tenant, "nonsense")):
        with pytest.raises(RunNotFound):
            await cancel(who, unknown)
    await world.run_all()
    with pytest.raises(RunFinished, match="success"):
        await cancel(tenant, run_id)


async def _open_run(world: World, policy: str, **fields: object) -> tuple[Job, str]:
    """A job with a run that is open."""
    job = await world.minutely(concurrent_policy=policy, **fields)
    await world.set_clock(at(1))
    await world.fire()
    return job, (await job_runs(world.tenant(), job.job_id)).items[0].run_id or ""


async def test_a_trigger_beside_an_open_run_is_refused_under_skip_unless_forced(
    world: World, tenant: TenantContext
) -> None:
    job, open_run = await _open_run(world, "SKIP")
    with pytest.raises(TriggerRefused, match=f"{open_run} .* SKIP") as refused:
        await trigger(tenant, job.job_id)
    assert refused.value.run_id == open_run
    await trigger(tenant, job.job_id, force=True)
    await world.record(await world.lease())
    with pytest.raises(TriggerRefused):
        await trigger(tenant, job.job_id)
    await world.fire()
    await world.record(await world.lease())
    assert (await get_run(tenant, await trigger(tenant, job.job_id))).status == "pending"


async def test_a_trigger_counts_up_to_the_limit_of_allow(world: World, tenant: TenantContext) -> None:
    job, open_run = await _open_run(world, "ALLOW", max_concurrent=2)
    await trigger(tenant, job.job_id)
    with pytest.raises(TriggerRefused, match=f"{open_run} .* as many are open as its max_concurrent allows"):
        await trigger(tenant, job.job_id)


async def test_a_trigger_waits_behind_an_open_run_under_queue(world: World, tenant: TenantContext) -> None:
    job, open_run = await _open_run(world, "QUEUE")
    waiting = await trigger(tenant, job.job_id, {"own": 1})
    assert (await get_run(tenant, waiting)).waiting == f"queued behind {open_run}"
    with pytest.raises(TriggerRefused, match=f"{open_run} .* another waits behind it already"):
        await trigger(tenant, job.job_id)
    await world.set_clock(at(1, 30))
    assert await world.fire() == 0
    (leased,) = await world.lease()
    await world.record([leased])
    await world.set_clock(at(1, 59))
    assert await world.fire() == 1
    (leased,) = await world.lease()
    assert (leased.reason, leased.payload) == ("manual", '{"own":1}')


async def test_a_trigger_replaces_an_open_run_under_replace(world: World, tenant: TenantContext) -> None:
    job, open_run = await _open_run(world, "REPLACE")
    leased = await world.lease()
    new = await trigger(tenant, job.job_id)
    replaced = await get_run(tenant, open_run)
    assert (replaced.status, replaced.error) == ("cancelled", "replaced by a manual run")
    assert replaced.attempts[0].worker_id == "worker-1"
    assert await world.record(leased) == 0, "its worker comes too late"
    assert (await get_run(tenant, new)).status == "pending"


@pytest.mark.parametrize(
    "fields", [{"schedule": "manual"}, {"max_running": 1}, {"concurrency_key": "k"}, {"ordering_key": "k"}]
)
@pytest.mark.parametrize("policy", ["SKIP", "ALLOW", "QUEUE"])
async def test_triggers_of_a_job_without_ticks_or_with_a_gate_are_never_refused(
    world: World, tenant: TenantContext, policy: str, fields: dict[str, object]
) -> None:
    job = await world.minutely(concurrent_policy=policy, **fields)
    assert len({await trigger(tenant, job.job_id) for _ in range(3)}) == 3


async def test_triggers_of_a_manual_job_wait_for_each_other_under_queue(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(schedule="manual", concurrent_policy="QUEUE")
    for number in range(3):
        await trigger(tenant, job.job_id, number)
    for number in range(3):
        await world.set_clock(at(number + 1))
        assert await world.fire() == 1
        (leased,) = await world.lease()
        assert leased.payload == str(number)
        await world.record([leased])
