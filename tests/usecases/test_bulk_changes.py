"""One change of many jobs."""

from evertick.usecases import audit
from evertick.usecases.bulk_changes import BulkAction, BulkChange, change_one, count
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.lifecycle import delete
from evertick.usecases.jobs.reading import get
from usecases.world import World, at


async def test_a_change_is_in_the_audit_log_and_a_job_that_is_gone_is_none(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    change = BulkChange(BulkAction.PAUSE, "key_1", "request-1", "together")
    assert await change_one(tenant, job.job_id, change)
    assert (await get(tenant, job.job_id)).pause_reason == "together"
    (entry,) = (await audit.list_changes(tenant)).items
    assert (entry.actor, entry.action, entry.subject) == ("key_1", "pause_job", job.job_id)
    await delete(tenant, job.job_id)
    assert not await change_one(tenant, job.job_id, change)
    assert len((await audit.list_changes(tenant)).items) == 1


async def test_jobs_are_resumed_triggered_and_deleted(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    for action in (BulkAction.PAUSE, BulkAction.RESUME, BulkAction.TRIGGER):
        assert await change_one(tenant, job.job_id, BulkChange(action, "key_1", "request-1"))
    await world.set_clock(at(1))
    assert len(await world.run_all()) == 2
    assert await count(tenant, {"queue": job.target["queue"]}) == (1, False)
    assert await change_one(tenant, job.job_id, BulkChange(BulkAction.DELETE, "key_1", "request-1"))
    assert await count(tenant, {}) == (0, False)
