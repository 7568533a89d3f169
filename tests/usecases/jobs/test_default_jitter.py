"""A tenant's default jitter: for jobs that choose none, from then on."""

from dataclasses import replace
from datetime import timedelta

import pytest

from evertick.contract.jobs import PreviewRequest
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.create_many import create_many
from evertick.usecases.jobs.edit import edit, put
from evertick.usecases.jobs.previews import preview
from evertick.usecases.jobs.reading import get
from usecases.world import WORKER, World, at

JOB = {"schedule": "*/5 * * * *", "target": WORKER}


@pytest.fixture
def spread(tenant: TenantContext) -> TenantContext:
    return replace(tenant, default_jitter_seconds=60.0)


async def test_a_job_that_chooses_no_jitter_has_the_default_of_its_tenant(world: World, spread: TenantContext) -> None:
    jobs = [await create(spread, JOB) for _ in range(5)]
    jobs.append((await put(spread, "put", JOB)).job)
    (line,) = await create_many(spread, [JOB])
    jobs.append(await get(spread, str(line.job_id)))
    assert {job.jitter_seconds for job in jobs} == {60}
    rows = await world.connection.fetch("SELECT due_at - fire_at AS offset FROM timers")
    offsets = {row["offset"] for row in rows}
    assert len(offsets) > 1
    assert all(timedelta(0) <= offset <= timedelta(seconds=60) for offset in offsets)
    assert {job.next_run_at for job in jobs} == {at(5)}, "the nominal time stays"


@pytest.mark.parametrize(
    "fields", [{"jitter_seconds": 0}, {"jitter_seconds": 5}, {"schedule": "now"}, {"schedule": "in 90s"}]
)
async def test_a_choice_and_what_is_asked_for_now_stay_as_they_are(
    world: World, spread: TenantContext, fields: dict[str, object]
) -> None:
    job = await create(spread, JOB | fields)
    assert job.jitter_seconds == fields.get("jitter_seconds", 0)
    assert (await put(spread, job.name, JOB | fields)).job.spec_version == 1


async def test_a_changed_default_applies_to_what_is_edited_afterwards(
    world: World, tenant: TenantContext, spread: TenantContext
) -> None:
    job = await create(tenant, JOB | {"name": "old"})
    assert (await edit(spread, job.job_id, {"max_retries": 1})).jitter_seconds == 0
    assert (await edit(spread, job.job_id, {"jitter_seconds": None})).jitter_seconds == 60
    assert (await put(tenant, "old", JOB)).job.jitter_seconds == 0
    assert (await put(spread, "old", JOB)).job.jitter_seconds == 60


async def test_a_preview_shows_nominal_and_due_times_with_the_default(world: World, spread: TenantContext) -> None:
    shown = await preview(spread, PreviewRequest("*/5 * * * *"), at(0))
    exact = await preview(spread, PreviewRequest("*/5 * * * *", jitter_seconds=0), at(0))
    assert [row.fire_at for row in shown.rows] == [row.fire_at for row in exact.rows]
    assert all(row.due_at == row.fire_at for row in exact.rows)
    assert shown.rows != exact.rows
