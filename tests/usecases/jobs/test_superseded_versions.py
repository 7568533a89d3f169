"""Versions that no new run will have: what is large in them goes when no run needs it, the rest after the history."""

from datetime import datetime, timedelta

import pytest

from evertick.contract.job import Job
from evertick.store.database import connect
from evertick.store.maintenance import retention
from evertick.store.tenants import tenants
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.edit import edit
from evertick.usecases.jobs.lifecycle import delete, pause, resume
from evertick.usecases.runs.reading import job_runs
from evertick.usecases.runs.requests import replay, trigger
from usecases.world import World, at, key_of

LARGE = "x" * 40_000
HISTORY = timedelta(days=90)
COUNTED = """
SELECT (SELECT coalesce(sum(version_bytes(payload::text, spec::text)), 0) FROM job_versions)
       + (SELECT coalesce(sum(requested_bytes(payload::text)), 0) FROM requested_runs)
       + (SELECT count(*) * audit_bytes() FROM audit_log)
"""


async def check(world: World, now_at: datetime | None = None) -> retention.CheckedVersions:
    return await retention.check_versions(world.pool, now_at or at(30), HISTORY, 1000)


async def payloads(world: World, job: Job) -> dict[int, int]:
    """The size of each version's payload."""
    rows = await world.connection.fetch(
        "SELECT spec_version, coalesce(length(payload::text), 0) AS size FROM job_versions WHERE job_id = $1",
        key_of(job),
    )
    return {row["spec_version"]: row["size"] for row in rows}


async def stored(world: World) -> int:
    return (await tenants.stored(world.pool, 1)).bytes


async def test_versions_that_never_ran_keep_only_what_tells_their_ticks(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(payload=LARGE, labels={"a": "b"})
    for priority in ("high", "low", "normal"):
        await edit(tenant, job.job_id, {"priority": priority})
    assert await stored(world) > 4 * len(LARGE)
    assert (await check(world)).emptied == 3
    large = len(LARGE) + 2
    assert await payloads(world, job) == {1: 0, 2: 0, 3: 0, 4: large}
    assert await stored(world) == await world.connection.fetchval(COUNTED) < 2 * len(LARGE)
    schedules = await world.connection.fetch("SELECT spec ->> 'schedule' AS schedule FROM job_versions")
    assert {row["schedule"] for row in schedules} == {"* * * * *"}
    assert (await check(world)).checked == 0, "until the history is over"


async def test_a_version_that_ran_stays_whole_and_its_run_can_be_replayed(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(payload=LARGE)
    await world.set_clock(at(1))
    await world.run_all()
    await edit(tenant, job.job_id, {"payload": "small"})
    assert (await check(world)).emptied == 0
    (run,) = (await job_runs(tenant, job.job_id)).items
    assert run.run_id is not None
    await replay(tenant, run.run_id)
    (again,) = await world.run_all()
    assert again.payload == f'"{LARGE}"'


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_version_stays_whole_while_a_run_of_it_waits(
    world: World, tenant: TenantContext, *, is_paused: bool
) -> None:
    job = await world.minutely(payload=LARGE)
    if is_paused:
        await pause(tenant, job.job_id)
    await trigger(tenant, job.job_id)
    await edit(tenant, job.job_id, {"payload": "small"})
    assert (await check(world)).emptied == 0
    (leased,) = await world.run_all()
    assert leased.payload == f'"{LARGE}"'


async def test_a_run_that_is_fired_while_its_version_is_looked_at_keeps_it(
    world: World, tenant: TenantContext, database_url: str
) -> None:
    job = await world.minutely(payload=LARGE)
    await trigger(tenant, job.job_id)
    await edit(tenant, job.job_id, {"payload": "small"})
    async with world.connection.transaction():
        await world.fire()  # the timer is gone and the attempt is there, for this transaction alone
        assert (await check(world)).emptied == 0
    (leased,) = await world.lease()
    assert leased.payload == f'"{LARGE}"'


async def test_a_run_that_is_not_over_keeps_its_version(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(payload=LARGE)
    await world.set_clock(at(1))
    await world.fire()
    await edit(tenant, job.job_id, {"payload": "small"})
    assert (await check(world)).emptied == 0
    assert (await payloads(world, job))[1] > 0


async def test_a_deleted_job_keeps_its_payload_until_its_attempts_have_ended(
    world: World, tenant: TenantContext
) -> None:
    job = await world.minutely(payload=LARGE)
    await world.set_clock(at(1))
    await world.fire()
    leased = await world.lease()
    await edit(tenant, job.job_id, {"timeout_seconds": 5})
    await delete(tenant, job.job_id)
    await check(world)
    assert (await payloads(world, job))[1] > 0, "it runs"
    await world.record(leased)
    later = at(30) + timedelta(hours=2)
    for _ in range(2):
        await check(world, later)
    assert await payloads(world, job) == {1: 0, 2: 0}
    assert await stored(world) == await world.connection.fetchval(COUNTED)
    assert await world.count("superseded_versions") == [0]


async def test_what_is_left_of_a_version_goes_after_the_history(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(payload=LARGE)
    await world.set_clock(at(1))
    await world.run_all()
    await edit(tenant, job.job_id, {"payload": "small"})
    await check(world)
    after = at(31) + HISTORY
    assert (await check(world, after)).removed == 0, "the day of its run is still there"
    for row in await world.connection.fetch("SELECT relname FROM pg_class WHERE relname ~ '^attempts_\\d{8}$'"):
        day = datetime.strptime(row["relname"][-8:], "%Y%m%d").date()  # noqa: DTZ007 - of a date
        if day <= after.date() - HISTORY:
            await world.connection.execute("SELECT drop_day($1)", day)
    assert (await check(world, after + timedelta(days=2))).removed == 1
    assert await payloads(world, job) == {2: 7}
    assert await stored(world) == await world.connection.fetchval(COUNTED)
    await resume(tenant, job.job_id)


async def test_two_janitors_at_once_take_each_version_once(
    world: World, tenant: TenantContext, database_url: str
) -> None:
    job = await world.minutely(payload=LARGE)
    await edit(tenant, job.job_id, {"payload": "small"})
    other = await connect(database_url)
    async with other.transaction():
        await other.execute("SELECT FROM superseded_versions FOR UPDATE")
        assert (await check(world)).checked == 0
    await other.close()
    assert (await check(world)).emptied == 1
    while await tenants.sum_storage(world.pool, 2):
        pass
    assert await stored(world) == await world.connection.fetchval(COUNTED)
