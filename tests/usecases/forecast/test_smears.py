"""The smear advisor, its application to many jobs, and the way back."""

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from engine import until
from evertick.contract.forecast import ApplyAdviceRequest, ForecastAdvice, Smear
from evertick.domain.ids import Prefix, parse_id
from evertick.domain.stable_hash import jitter_offset
from evertick.roles.janitor.smearer import Smearer
from evertick.runtime import smearing
from evertick.runtime.smearing import smear_batch
from evertick.store.database import is_transient
from evertick.usecases.context import TenantContext, job_key
from evertick.usecases.errors import NothingToSmear, SmearFinished, SmearNotFound
from evertick.usecases.forecast import advising
from evertick.usecases.forecast.reading import ForecastWish, advise, forecast
from evertick.usecases.forecast.smears import apply, get, list_smears, undo
from evertick.usecases.jobs import edit, lifecycle, reading
from evertick.usecases.jobs.create_many import create_many
from usecases.world import LOOK, NOON, WORKER, World

CROWD = 120


async def crowd(tenant: TenantContext, count: int = CROWD, **fields: object) -> list[str]:
    """Jobs that all fire at three."""
    given = {"schedule": "0 15 * * *", "target": WORKER, **fields}
    lines = await create_many(tenant, [given] * count)
    return [line.job_id for line in lines if line.job_id is not None]


async def advised(tenant: TenantContext) -> ForecastAdvice:
    return await advise(tenant, {}, None)


def request(advice: ForecastAdvice) -> ApplyAdviceRequest:
    rules = [rule.rule_id for rule in advice.rules if rule.rule_id is not None]
    return ApplyAdviceRequest(rules=rules, jitter_seconds=advice.jitter_seconds or 0)


async def finished(world: World, tenant: TenantContext, smear: Smear) -> Smear:
    while (now := await get(tenant, smear.smear_id)).finished_at is None:
        await world.connection.execute("UPDATE smears SET next_batch_at = clock_at()")
        await smear_batch(world.pool)
    return now


async def peak(tenant: TenantContext) -> int:
    return (await forecast(tenant, ForecastWish())).peak


async def test_the_advice_says_exactly_what_the_forecast_shows_after_it_was_applied(
    world: World, tenant: TenantContext
) -> None:
    await crowd(tenant)
    advice = await advised(tenant)
    assert (advice.jobs, advice.peak_before, advice.is_estimate) == (CROWD, CROWD, False)
    assert advice.peak_after < CROWD / 2
    done = await finished(world, tenant, await apply(tenant, request(advice), "key_x"))
    assert (done.status, done.changed, done.skipped, done.waiting) == ("done", CROWD, 0, 0)
    assert await peak(tenant) == advice.peak_after
    assert (await advised(tenant)).left_alone.keys() <= {"has_jitter"}


async def test_each_job_has_a_new_version_and_an_entry_in_the_audit_log(world: World, tenant: TenantContext) -> None:
    job_ids = await crowd(tenant, 3, payload={"a": 1}, labels={"team": "x"})
    before = await reading.get(tenant, job_ids[0])
    smear = await apply(tenant, request(await advised(tenant)), "key_x")
    await finished(world, tenant, smear)
    after = await reading.get(tenant, job_ids[0])
    assert (after.spec_version, after.jitter_seconds) == (2, smear.jitter_seconds)
    assert (after.payload, after.labels, after.next_run_at) == (before.payload, before.labels, before.next_run_at)
    entries = await world.connection.fetch("SELECT actor, action, subject FROM audit_log ORDER BY subject")
    assert [tuple(entry) for entry in entries] == [("key_x", "smear_job", job_id) for job_id in sorted(job_ids)]


async def test_an_undo_restores_all_jobs_but_those_that_were_edited_since(world: World, tenant: TenantContext) -> None:
    job_ids = await crowd(tenant, 5)
    smear = await apply(tenant, request(await advised(tenant)), "key_x")
    await finished(world, tenant, smear)
    await edit.edit(tenant, job_ids[0], {"max_retries": 7})
    await lifecycle.delete(tenant, job_ids[1])
    undone = await finished(world, tenant, await undo(tenant, smear.smear_id))
    assert (undone.status, undone.undone, undone.kept, undone.changed) == ("undone", 3, 2, 0)
    assert (await reading.get(tenant, job_ids[0])).jitter_seconds == smear.jitter_seconds
    restored = await reading.get(tenant, job_ids[2])
    assert (restored.jitter_seconds, restored.spec_version) == (0, 3)
    assert await peak(tenant) == 3
    with pytest.raises(SmearFinished):
        await undo(tenant, smear.smear_id)


async def test_what_was_edited_before_its_turn_is_left_alone(world: World, tenant: TenantContext) -> None:
    job_ids = await crowd(tenant, 5)
    smear = await apply(tenant, request(await advised(tenant)), "key_x")
    await edit.edit(tenant, job_ids[0], {"jitter_seconds": 7})
    await edit.edit(tenant, job_ids[1], {"labels": {"smear": "never"}})
    await edit.edit(tenant, job_ids[2], {"schedule": "* * * * * *"})
    await edit.edit(tenant, job_ids[3], {"max_retries": 7})
    done = await finished(world, tenant, smear)
    assert (done.changed, done.skipped) == (1, 4)
    assert (await reading.get(tenant, job_ids[3])).jitter_seconds == 0
    assert (await reading.get(tenant, job_ids[0])).jitter_seconds == 7


async def test_a_job_that_somebody_has_locked_is_changed_later(world: World, tenant: TenantContext) -> None:
    job_ids = await crowd(tenant, 5)
    smear = await apply(tenant, request(await advised(tenant)), "key_x")
    async with world.pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM jobs ORDER BY job_id LIMIT 1 FOR UPDATE")
        await smear_batch(world.pool)
        now = await get(tenant, smear.smear_id)
        assert (now.changed, now.waiting, now.status) == (len(job_ids) - 1, 1, "running")
    assert (await finished(world, tenant, smear)).changed == len(job_ids)


async def test_jitter_is_not_taken_back_while_it_delays_a_tick(world: World, tenant: TenantContext) -> None:
    job_ids = await crowd(tenant, 5)
    smear = await apply(tenant, request(await advised(tenant)), "key_x")
    await finished(world, tenant, smear)
    times = "UPDATE timers SET fire_at = fire_at + $2, due_at = due_at + $2 WHERE job_id = $1"
    due_at = await world.connection.fetchval("SELECT due_at FROM timers WHERE job_id = $1", job_key(job_ids[0]))
    await world.connection.execute(times, job_key(job_ids[0]), NOON + timedelta(seconds=30) - due_at + LOOK)
    await undo(tenant, smear.smear_id)
    await smear_batch(world.pool)
    now = await get(tenant, smear.smear_id)
    assert (now.status, now.undone, now.changed) == ("undoing", len(job_ids) - 1, 1)
    await world.connection.execute(times, job_key(job_ids[0]), timedelta(days=1))  # it fired
    assert (await finished(world, tenant, smear)).undone == len(job_ids)


async def test_a_smear_that_fails_keeps_no_other_from_ending(world: World, tenant: TenantContext) -> None:
    await world.connection.execute("INSERT INTO tenants (tenant_id, name) VALUES (2, 'other')")
    owners = tenant, world.tenant(2)
    for owner in owners:
        await crowd(owner, 5)
    broken, sound = [await apply(owner, request(await advised(owner)), "key_x") for owner in owners]
    broken_id = parse_id(Prefix.SMEAR, broken.smear_id)
    await world.connection.execute(
        f"ALTER TABLE smeared_jobs ADD CHECK (smear_id <> {broken_id} OR state = 'waiting') NOT VALID"
    )
    await Smearer(world.pool).step()
    assert (await get(tenant, broken.smear_id)).status == "running"
    assert (await get(world.tenant(2), sound.smear_id)).status == "done"


async def test_jobs_that_are_gone_or_cannot_be_read_are_kept_by_an_undo(world: World, tenant: TenantContext) -> None:
    job_ids = await crowd(tenant, 3)
    smear = await apply(tenant, request(await advised(tenant)), "key_x")
    await finished(world, tenant, smear)
    await world.connection.execute("SET session_replication_role = replica")
    await world.connection.execute("DELETE FROM jobs WHERE job_id = $1", job_key(job_ids[0]))
    await world.connection.execute("UPDATE rules SET canonical = '{}'")
    await undo(tenant, smear.smear_id)
    await smear_batch(world.pool)
    undone = await get(tenant, smear.smear_id)
    assert (undone.status, undone.kept) == ("undone", len(job_ids))


async def test_an_undo_of_a_running_smear_leaves_the_rest_alone(world: World, tenant: TenantContext) -> None:
    await crowd(tenant, 5)
    smear = await apply(tenant, request(await advised(tenant)), "key_x")
    undone = await finished(world, tenant, await undo(tenant, smear.smear_id))
    assert (undone.status, undone.skipped, undone.undone) == ("undone", 5, 0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"jitter_seconds": 30}, "has_jitter"),
        ({"schedule": "every 30s"}, "too_frequent"),
        ({"schedule": "*/20 * * * * *"}, "too_frequent"),
        ({"schedule": "2100-01-01T00:00:00Z"}, None),
    ],
)
async def test_jobs_that_jitter_would_be_wrong_for_are_not_advised(
    tenant: TenantContext, fields: dict[str, object], reason: str | None
) -> None:
    await crowd(tenant, 20, **fields)
    advice = await advised(tenant)
    assert (advice.jitter_seconds, advice.jobs, advice.rules) == (None, 0, ())
    assert (reason in advice.left_alone) == (reason is not None)


async def test_jobs_with_the_label_are_left_out_of_the_advice(world: World, tenant: TenantContext) -> None:
    await crowd(tenant, 20, labels={"smear": "never"})
    await crowd(tenant, 60)
    advice = await advised(tenant)
    assert (advice.jobs, advice.left_alone) == (60, {"opted_out": 20})
    assert advice.peak_after >= 20
    assert (await finished(world, tenant, await apply(tenant, request(advice), "key_x"))).changed == 60
    assert await peak(tenant) == advice.peak_after


async def test_rules_without_a_job_that_may_be_smeared_are_refused(world: World, tenant: TenantContext) -> None:
    await crowd(tenant, 4)
    advice = await advised(tenant)
    with pytest.raises(NothingToSmear):
        await apply(tenant, ApplyAdviceRequest(rules=["0" * 16], jitter_seconds=300), "key_x")
    await world.connection.execute("INSERT INTO tenants (tenant_id, name) VALUES (2, 'other')")
    with pytest.raises(NothingToSmear):
        await apply(world.tenant(2), request(advice), "key_x")
    smear = await apply(tenant, request(advice), "key_x")
    with pytest.raises(SmearNotFound):
        await undo(world.tenant(2), smear.smear_id)
    assert [each.smear_id for each in (await list_smears(tenant)).items] == [smear.smear_id]


async def test_a_janitor_works_off_all_batches_of_a_smear(
    world: World, tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smearing, "BATCH_SIZE", 4)
    await crowd(tenant, 10)
    smear = await apply(tenant, request(await advised(tenant)), "key_x")
    await Smearer(world.pool).step()
    assert ((await get(tenant, smear.smear_id)).status, await peak(tenant) < 10) == ("done", True)


async def test_a_janitor_that_dies_in_a_batch_leaves_it_to_the_next_one(
    world: World, tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smearing, "BATCH_SIZE", 4)
    job_ids = await crowd(tenant, 10)
    smear = await apply(tenant, request(await advised(tenant)), "key_x")
    await smear_batch(world.pool)
    async with world.connection.transaction():
        await world.connection.execute("LOCK TABLE audit_log IN EXCLUSIVE MODE")  # which a batch writes last
        dying = asyncio.create_task(smear_batch(world.pool))
        blocked = "FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        await until(lambda: world.connection.fetchval(f"SELECT count(*) > 0 {blocked}"))
        await world.connection.execute(f"SELECT pg_terminate_backend(pid) {blocked}")
        (died,) = await asyncio.gather(dying, return_exceptions=True)
        assert isinstance(died, Exception)
        assert is_transient(died)
    now = await get(tenant, smear.smear_id)
    assert (now.status, now.changed, now.waiting) == ("running", 4, 6)
    await Smearer(world.pool).step()
    assert ((await get(tenant, smear.smear_id)).status, await peak(tenant) < 10) == ("done", True)
    versions = await world.connection.fetch("SELECT spec_version FROM jobs")
    assert [version for (version,) in versions] == [2] * len(job_ids)
    assert await world.connection.fetchval("SELECT count(*) FROM audit_log") == len(job_ids)


async def test_of_more_jobs_than_a_smear_may_have_a_part_is_advised_and_applied(
    world: World, tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advising, "MAX_SMEARED", 50)
    await crowd(tenant)
    advice = await advised(tenant)
    assert (advice.jobs, advice.is_estimate, advice.peak_before) == (50, False, CROWD)
    assert CROWD - 50 <= advice.peak_after < CROWD
    done = await finished(world, tenant, await apply(tenant, request(advice), "key_x"))
    assert (done.changed, await peak(tenant)) == (50, advice.peak_after)
    assert (await advised(tenant)).jobs == 50


async def test_an_advice_for_very_many_jobs_is_an_estimate_near_to_what_comes(
    world: World, tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advising, "MAX_EXACT", 100)
    await crowd(tenant, 600)
    await crowd(tenant, 200, labels={"smear": "never"})
    advice = await advised(tenant)
    assert advice.is_estimate
    assert 550 < advice.jobs < 650
    assert 150 < advice.left_alone["opted_out"] < 250
    await finished(world, tenant, await apply(tenant, request(advice), "key_x"))
    assert abs(await peak(tenant) - advice.peak_after) < 60


async def test_jobs_are_found_in_all_timers_as_they_are_by_index(
    tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crowd(tenant, 40)
    await crowd(tenant, 5, labels={"smear": "never"})
    by_index = await advised(tenant)
    monkeypatch.setattr(advising, "FEW_JOBS", 0)
    assert await advised(tenant) == by_index
    assert (await apply(tenant, request(by_index), "key_x")).jobs == 40


async def test_a_smeared_job_is_as_if_it_had_been_edited(world: World, tenant: TenantContext) -> None:
    smeared_id, edited_id = await crowd(tenant, 2, payload={"a": [1]}, max_retries=5, labels={"team": "x"})
    rules = [rule.rule_id for rule in (await advised(tenant)).rules if rule.rule_id is not None]
    await edit.edit(tenant, edited_id, {"jitter_seconds": 300})
    await finished(world, tenant, await apply(tenant, ApplyAdviceRequest(rules=rules, jitter_seconds=300), "key_x"))
    smeared, edited = [await reading.get(tenant, job_id) for job_id in (smeared_id, edited_id)]
    own = {"job_id": "", "name": "", "created_at": smeared.created_at, "updated_at": smeared.updated_at}
    assert replace(smeared, **own) == replace(edited, **own)
    rule_ids = await world.connection.fetch("SELECT DISTINCT rule_id FROM timers WHERE kind = 'tick'")
    assert len(rule_ids) == 1, "both are of one rule"
    due = await world.connection.fetch("SELECT job_id, due_at - fire_at AS lag FROM timers WHERE kind = 'tick'")
    assert {row["job_id"]: row["lag"] for row in due} == {
        key: jitter_offset(key, timedelta(seconds=300)) for key in map(job_key, (smeared_id, edited_id))
    }
