"""Reading jobs."""

from collections.abc import Mapping
from typing import Any

import pytest

from evertick.domain.errors import InvalidInput
from evertick.domain.schedule.instants import from_us
from evertick.domain.states import JobStatus
from evertick.store.database import Pool
from evertick.store.jobs import job_lists
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import JobNotFound
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.lifecycle import delete, pause
from evertick.usecases.jobs.reading import get, get_by_name, list_jobs
from hooked_pool import Run, hooked
from usecases.world import World, at


async def test_another_tenants_job_is_not_there(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(name="a")
    other = world.tenant(2)
    for asking in (get(other, job.job_id), get_by_name(other, "a"), get(tenant, "job_1"), get_by_name(tenant, "b")):
        with pytest.raises(JobNotFound):
            await asking
    assert (await list_jobs(other)).items == ()
    assert (await list_jobs(tenant)).items == (job,)


async def test_jobs_are_listed_in_pages_that_writes_do_not_shift(world: World, tenant: TenantContext) -> None:
    made = sorted([await world.minutely() for _ in range(5)], key=lambda job: job.job_id)
    first = await list_jobs(tenant, limit=2)
    assert list(first.items) == made[:2]
    await delete(tenant, made[1].job_id)
    later = await world.minutely()
    second = await list_jobs(tenant, limit=2, cursor=first.next)
    assert list(second.items) == made[2:4]
    third = await list_jobs(tenant, limit=2, cursor=second.next)
    assert (list(third.items), third.next) == ([made[4], later], None)


async def test_a_job_that_fires_while_a_page_is_read_is_listed_once_by_its_next_run(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely()
    others = """
        INSERT INTO timers
        SELECT (jsonb_populate_record(timer, jsonb_build_object(
                   'job_id', timer.job_id + 256 * number, 'due_at', timer.due_at + number * interval '1 minute'))).*
          FROM timers timer, generate_series(1, 20) AS number
    """
    await tenant.pool.execute(others)  # in the same lane: more than are read of it at once
    key = await tenant.pool.fetchval("SELECT min(job_id) FROM timers")
    assert isinstance(tenant.pool, Pool)

    async def fire(run: Run, _: Mapping[str, Any]) -> Any:
        await tenant.pool.execute("UPDATE timers SET due_at = due_at + interval '1 hour' WHERE job_id = $1", key)
        return await run()

    pool = hooked(tenant.pool, "job_lists.due_together", fire)
    found = await job_lists.next_by_run(pool, tenant.tenant_id, queue=None, after_at=from_us(0), after_id=-1, most=40)
    assert [candidate.job_id for candidate in found] == [key + 256 * number for number in range(21)]
    assert job.next_run_at == from_us(int(found[0].position.partition(".")[0])), "its first place counts"


async def test_lists_are_filtered(world: World, tenant: TenantContext) -> None:
    a = await world.minutely(name="app-a", labels={"team": "x", "env": "prod"})
    b = await world.minutely(name="app-b", labels={"team": "x"})
    c = await create(
        tenant, {"name": "c", "schedule": at(1).isoformat(), "target": {"type": "http", "url": "https://a.example/"}}
    )
    await world.set_clock(at(1))
    await world.run_all()
    b = await pause(tenant, b.job_id)
    a, c = await get(tenant, a.job_id), await get(tenant, c.job_id)
    assert (await list_jobs(tenant, labels={"team": "x"})).items == (a, b)
    assert (await list_jobs(tenant, labels={"team": "x", "env": "prod"})).items == (a,)
    assert (await list_jobs(tenant, name_prefix="app-")).items == (a, b)
    assert (await list_jobs(tenant, name_prefix="%")).items == ()
    assert (await list_jobs(tenant, queue="http")).items == (c,)
    by_status = {status: (await list_jobs(tenant, status=status)).items for status in JobStatus}
    assert by_status == {JobStatus.ACTIVE: (a,), JobStatus.PAUSED: (b,), JobStatus.FINISHED: (c,)}


async def test_an_http_job_is_shown_whole(tenant: TenantContext) -> None:
    target = {"type": "http", "url": "https://a.example/x", "method": "PUT", "headers": {"X-Team": "growth"}}
    job = await create(tenant, {"schedule": "@daily", "target": target, "payload": 10**30})
    assert await get(tenant, job.job_id) == job
    assert (job.target, job.payload) == (target, 10**30)


async def test_a_page_has_a_size_and_a_cursor_is_a_pages(tenant: TenantContext) -> None:
    for limit in (0, 201):
        with pytest.raises(InvalidInput, match="limit"):
            await list_jobs(tenant, limit=limit)
    with pytest.raises(InvalidInput, match="cursor"):
        await list_jobs(tenant, cursor="abc")
