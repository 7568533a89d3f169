"""What a process remembers of rules, queues and lanes is a hint: the database may have lost them since."""

import pytest

from evertick.store.jobs import jobs
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.create_many import create_many
from evertick.usecases.jobs.edit import edit
from usecases.world import WORKER, World, at, key_of

LOST = ["rules", "queues", "lanes"]
KEY_SHARE = "SELECT job_id FROM jobs WHERE job_id = $1 FOR KEY SHARE SKIP LOCKED"


@pytest.mark.parametrize("lost", LOST)
async def test_a_job_is_created_with_all_that_it_refers_to(world: World, tenant: TenantContext, lost: str) -> None:
    await world.minutely()
    await world.connection.execute(f"TRUNCATE {lost}; DELETE FROM timers")
    await world.minutely(payload="mine")
    await create_many(tenant, [{"schedule": "* * * * *", "target": WORKER, "payload": "mine"}] * 3)
    await world.set_clock(at(1))
    assert [leased.payload for leased in await world.run_all()] == ['"mine"'] * 4


@pytest.mark.parametrize("lost", LOST)
async def test_a_job_is_edited_with_all_that_it_refers_to(world: World, tenant: TenantContext, lost: str) -> None:
    await world.minutely(schedule="*/2 * * * *", target={**WORKER, "queue": "new"})
    job = await world.minutely()
    rule_id = await world.connection.fetchval("SELECT rule_id FROM timers WHERE job_id = $1", key_of(job))
    condition = f"rule_id <> {rule_id}" if lost == "rules" else "queue_id IN (SELECT queue_id FROM queues_new)"
    await world.connection.execute("CREATE TEMP VIEW queues_new AS SELECT queue_id FROM queues WHERE name = 'new'")
    await world.connection.execute(f"DELETE FROM {lost} WHERE {condition}")
    await edit(tenant, job.job_id, {"schedule": "*/2 * * * *", "target": {**WORKER, "queue": "new"}})
    await world.set_clock(at(2))
    assert key_of(job) in [leased.job_id for leased in await world.run_all()]


async def test_a_job_gets_another_number_when_its_own_was_issued_again(world: World, tenant: TenantContext) -> None:
    first = await world.minutely()
    await world.connection.execute("SELECT setval('job_numbers', 1, false)")
    second = await create(tenant, {"schedule": "* * * * *", "target": WORKER, "name": "second"})
    await world.connection.execute("SELECT setval('job_numbers', 1, false)")
    (third,) = await create_many(tenant, [{"schedule": "* * * * *", "target": WORKER, "name": "third"}])
    assert third.faults == ()
    assert len({first.job_id, second.job_id, third.job_id}) == 3


async def test_outcomes_are_recorded_while_a_job_is_changed_but_not_while_it_is_deleted(
    world: World,
) -> None:
    job = await world.minutely()
    async with world.pool.acquire() as session, session.transaction():
        assert await jobs.lock(session, 1, key_of(job))
        assert await world.connection.fetchval(KEY_SHARE, key_of(job)) == key_of(job)
    async with world.pool.acquire() as session, session.transaction():
        assert await jobs.lock(session, 1, key_of(job), to_delete=True)
        assert await world.connection.fetchval(KEY_SHARE, key_of(job)) is None
