"""Rules and queues that nothing refers to go after an hour; whoever refers to one at that moment wins."""

import asyncio
from datetime import datetime, timedelta

import asyncpg
import pytest

from engine import until
from evertick.store.database import connect
from evertick.store.jobs import references
from evertick.store.maintenance import retention
from evertick.usecases import references as job_references
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import QuotaReached
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.edit import edit
from evertick.usecases.jobs.lifecycle import delete
from evertick.usecases.runs.requests import trigger
from usecases.world import WORKER, World, at, key_of

HOUR = timedelta(hours=1)
HALF = {"schedule": "*/30 * * * *", "target": WORKER}


async def sweep(world: World, now_at: datetime) -> int:
    """How many rules are removed."""
    return (await retention.sweep_rules(world.pool, now_at, -1, 1000)).removed


async def forget_versions(world: World, *, of: str) -> None:
    """As if the history of jobs were over."""
    await world.connection.execute("DELETE FROM job_versions WHERE job_id = $1", int(of))


async def unused_rule(world: World, tenant: TenantContext) -> None:
    """Leaves the rule of `HALF` behind, which the tenant's process believes to be there."""
    job = await create(tenant, HALF)
    await delete(tenant, job.job_id)
    await forget_versions(world, of=str(key_of(job)))


async def rules(world: World) -> int:
    (count,) = await world.count("rules")
    return count


async def waits_for_a_lock(connection: asyncpg.Connection) -> None:
    async def is_waiting() -> bool:
        return bool(await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    await until(is_waiting)


async def test_a_rule_that_nothing_refers_to_goes_after_an_hour(world: World, tenant: TenantContext) -> None:
    await world.minutely()
    await unused_rule(world, tenant)
    for now_at, removed in ((at(0), 0), (at(59), 0), (at(61), 1), (at(300), 0)):
        assert await sweep(world, now_at) == removed
    assert await rules(world) == 1
    job = await create(tenant, HALF)
    await world.set_clock(at(30))
    assert key_of(job) in [leased.job_id for leased in await world.run_all()]


async def test_a_rule_is_kept_for_who_uses_it_before_the_hour_is_over(world: World, tenant: TenantContext) -> None:
    await unused_rule(world, tenant)
    await sweep(world, at(0))
    await create(tenant, HALF)
    assert [await sweep(world, at(minute)) for minute in (61, 130, 200)] == [0, 0, 0]


async def test_a_rule_is_kept_for_a_job_whose_creation_was_under_way_when_it_was_marked(
    world: World, tenant: TenantContext, database_url: str
) -> None:
    await unused_rule(world, tenant)
    other = await connect(database_url)
    async with other.transaction():
        # It sees no mark, and nobody sees its job yet.
        job = await create(TenantContext(other, tenant.tenant_id, references=tenant.references), HALF)
        await sweep(world, at(0))
        assert await world.connection.fetchval("SELECT count(*) FROM rules WHERE unused_at IS NOT NULL") == 1
    await other.close()
    assert [await sweep(world, at(minute)) for minute in (61, 130, 200)] == [0, 0, 0]
    assert await world.connection.fetchval("SELECT count(*) FROM rules WHERE unused_at IS NOT NULL") == 0
    await world.set_clock(at(30))
    assert key_of(job) in [leased.job_id for leased in await world.run_all()]


async def test_a_rule_that_is_added_again_while_it_is_removed_stays(
    world: World, tenant: TenantContext, database_url: str
) -> None:
    await unused_rule(world, tenant)
    await sweep(world, at(0))
    row = await world.connection.fetchrow("SELECT digest, canonical FROM rules WHERE unused_at IS NOT NULL")
    assert row is not None
    other = await connect(database_url)
    async with other.transaction():
        await references.add_rules(other, {row["digest"]: row["canonical"]})
        removing = asyncio.create_task(sweep(world, at(61)))
        await waits_for_a_lock(world.connection)
    await other.close()
    assert await removing == 0
    assert await rules(world) == 1


async def test_a_job_that_is_created_while_its_rule_is_removed_gets_it_again(
    world: World, tenant: TenantContext, database_url: str
) -> None:
    await unused_rule(world, tenant)
    await sweep(world, at(0))
    other = await connect(database_url)
    async with other.transaction():
        assert (await retention.sweep_rules(other, at(61), -1, 1000)).removed == 1  # type: ignore[arg-type]
        creating = asyncio.create_task(create(tenant, HALF))
        await waits_for_a_lock(world.connection)
    await other.close()
    job = await creating
    await world.set_clock(at(30))
    assert key_of(job) in [leased.job_id for leased in await world.run_all()]


async def queues(world: World, now_at: datetime) -> int:
    return await retention.sweep_queues(world.pool, now_at, 1)


async def test_a_queue_that_nothing_refers_to_goes_with_its_lanes(world: World, tenant: TenantContext) -> None:
    kept = await world.minutely()
    job = await world.minutely(target={**WORKER, "queue": "other"})
    await delete(tenant, job.job_id)
    assert [await queues(world, at(minute)) for minute in (0, 59, 61, 130)] == [0, 0, 1, 0]
    assert await world.count("queues", "lanes") == [1, 1]
    again = await world.minutely(target={**WORKER, "queue": "other"})
    await world.set_clock(at(1))
    assert {leased.job_id for leased in await world.run_all()} == {key_of(kept), key_of(again)}


async def test_a_queue_stays_while_a_run_waits_for_it_though_its_job_has_another(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely(target={**WORKER, "queue": "old"})
    await trigger(tenant, job.job_id)
    await edit(tenant, job.job_id, {"target": WORKER})
    assert [await queues(world, at(minute)) for minute in (0, 61)] == [0, 0]
    assert [leased.job_id for leased in await world.run_all()] == [key_of(job)]
    assert [await queues(world, at(minute)) for minute in (130, 200)] == [0, 0], "its lane has history"


async def test_a_queue_is_kept_for_a_job_whose_creation_was_under_way(
    world: World, tenant: TenantContext, database_url: str
) -> None:
    first = await world.minutely()
    await delete(tenant, first.job_id)
    other = await connect(database_url)
    async with other.transaction():
        fields = {"schedule": "* * * * *", "target": WORKER}
        job = await create(TenantContext(other, 1, references=tenant.references), fields)
        await queues(world, at(0))
    await other.close()
    assert [await queues(world, at(minute)) for minute in (61, 130)] == [0, 0]
    await world.set_clock(at(1))
    assert [leased.job_id for leased in await world.run_all()] == [key_of(job)]


async def test_only_tenants_with_many_queues_are_swept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.minutely()
    assert await retention.crowded_tenants(world.pool) == []
    monkeypatch.setattr(retention, "QUEUES_KEPT", 0)
    assert await retention.crowded_tenants(world.pool) == [1]


async def test_a_tenant_has_a_limited_number_of_queues(
    world: World, tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_references, "MAX_QUEUES", 2)
    await world.minutely()
    job = await world.minutely(target={**WORKER, "queue": "second"})
    with pytest.raises(QuotaReached, match="queues allows 2"):
        await world.minutely(target={**WORKER, "queue": "third"})
    with pytest.raises(QuotaReached):
        await edit(tenant, job.job_id, {"target": {**WORKER, "queue": "third"}})
    await world.minutely(target={**WORKER, "queue": "second"}, priority="high")
