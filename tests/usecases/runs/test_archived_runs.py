"""Runs are read across the days in the database and those in the archive as if all were in the database."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from archives import directory_archive, failing_archive, files_in
from evertick.contract.runs import Run, RunOrGap
from evertick.domain.ids import Prefix, format_id, format_run_id
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import GapStatus
from evertick.roles.janitor.archiving import Archiving
from evertick.runtime.archive import Archive
from evertick.store.database import Pool
from evertick.store.errors import ArchiveUnavailable
from evertick.store.tenants import tenants
from evertick.usecases.context import Page, TenantContext
from evertick.usecases.errors import JobNotFound, NoArchive, RunNotFound
from evertick.usecases.runs import archived, reading
from roles.aged_tables import AgedTables, Job

STEP = timedelta(days=2)
"""Between days with runs: whatever the time is, a number of days ago lies clearly before or after their runs."""
HISTORY = timedelta(days=90)
DAYS = 4
"""Of the history: the first two are archived."""


@pytest.fixture
def aged(connection: asyncpg.Connection) -> AgedTables:
    return AgedTables(connection)


@pytest.fixture
async def first_at(aged: AgedTables) -> datetime:
    """Noon of a day, four days before the history begins."""
    return (await aged.now() - HISTORY - 2 * STEP).replace(hour=12, minute=0, second=0, microsecond=0)


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[Archive]:
    async with directory_archive(tmp_path) as archive:
        yield archive


@pytest.fixture
def tenant(pool: Pool, archive: Archive) -> TenantContext:
    return TenantContext(pool, 1, archive=archive)


async def a_history(aged: AgedTables, first_at: datetime, *, tenant_id: int = 1) -> list[Job]:
    """Two jobs with three runs each on each of four days, and a gap of the first on each day."""
    jobs = [await aged.job(age=2 * HISTORY, tenant_id=tenant_id) for _ in range(2)]
    for day in range(DAYS):
        for number, job in enumerate(jobs):
            for minute in range(3):
                at = first_at + day * STEP + timedelta(minutes=minute, seconds=number)
                seq = await aged.attempt(job, at, ended=True)
                await aged.head(job, seq)
        await aged.gap(
            jobs[0], first_at + day * STEP - timedelta(hours=1), first_at + day * STEP - timedelta(minutes=30)
        )
    return jobs


async def archive_two_days(pool: Pool, archive: Archive) -> None:
    assert await Archiving(pool, archive, HISTORY).archive_days() == 2


async def all_of_tenant(tenant: TenantContext, limit: int, **filters: object) -> list[Run]:
    found: list[Run] = []
    cursor: str | None = None
    while True:
        page = await reading.tenant_runs(tenant, limit=limit, cursor=cursor, archive=True, **filters)  # type: ignore[arg-type]
        found += page.items
        cursor = page.next
        if cursor is None:
            return found


async def all_of_job(tenant: TenantContext, job: Job, limit: int, **filters: object) -> list[RunOrGap]:
    found: list[RunOrGap] = []
    cursor: str | None = None
    job_id = format_id(Prefix.JOB, job.job_id)
    while True:
        page: Page[RunOrGap] = await reading.job_runs(
            tenant,
            job_id,
            limit=limit,
            cursor=cursor,
            archive=True,
            **filters,  # type: ignore[arg-type]
        )
        found += page.items
        cursor = page.next
        if cursor is None:
            return found


@pytest.mark.parametrize("limit", [1, 4, 5, 100])
async def test_the_lists_are_the_same_before_and_after_days_are_archived(  # noqa: PLR0917 - fixtures
    pool: Pool, aged: AgedTables, first_at: datetime, archive: Archive, tenant: TenantContext, limit: int
) -> None:
    first, second = await a_history(aged, first_at)
    of_tenant = await all_of_tenant(tenant, 100)
    of_jobs = [await all_of_job(tenant, job, 100) for job in (first, second)]
    assert (len(of_tenant), [len(each) for each in of_jobs]) == (24, [16, 12])
    await archive_two_days(pool, archive)
    assert len((await reading.tenant_runs(tenant, limit=100)).items) == 12, "without the archive"
    assert await all_of_tenant(tenant, limit) == of_tenant
    assert [await all_of_job(tenant, job, limit) for job in (first, second)] == of_jobs
    middle = {"from_at": first_at + STEP, "to_at": first_at + 2 * STEP + timedelta(minutes=1)}
    assert len(await all_of_tenant(tenant, limit, **middle)) == 8
    assert len(await all_of_job(tenant, first, limit, **middle)) == 5
    gaps = await all_of_job(tenant, first, limit, status=GapStatus.MISSED)
    assert gaps == [entry for entry in of_jobs[0] if not isinstance(entry, Run)]


async def test_a_list_goes_on_while_days_are_archived(
    pool: Pool, aged: AgedTables, first_at: datetime, archive: Archive, tenant: TenantContext
) -> None:
    job, _ = await a_history(aged, first_at)
    expected = await all_of_tenant(tenant, 100)
    of_job = await all_of_job(tenant, job, 100)
    page = await reading.tenant_runs(tenant, limit=14, archive=True)
    job_page = await reading.job_runs(tenant, format_id(Prefix.JOB, job.job_id), limit=9, archive=True)
    await archive_two_days(pool, archive)
    rest = await reading.tenant_runs(tenant, limit=100, cursor=page.next, archive=True)
    job_rest = await reading.job_runs(
        tenant, format_id(Prefix.JOB, job.job_id), limit=100, cursor=job_page.next, archive=True
    )
    assert [*page.items, *rest.items] == expected
    assert [*job_page.items, *job_rest.items] == of_job


async def test_a_day_that_stays_in_the_database_stands_in_its_place(
    pool: Pool, aged: AgedTables, first_at: datetime, archive: Archive, tenant: TenantContext
) -> None:
    job, _ = await a_history(aged, first_at)
    expected = await all_of_tenant(tenant, 100)
    of_job = await all_of_job(tenant, job, 100)
    await aged.connection.execute(
        "INSERT INTO open_runs (job_id, fire_at, lane_id, seq) VALUES ($1, $2, $3, $4)",
        *(job.job_id, first_at, job.lane_id, to_us(first_at)),
    )
    assert await Archiving(pool, archive, HISTORY).archive_days() == 1, "only the second day"
    assert await all_of_tenant(tenant, 3) == expected
    assert await all_of_job(tenant, job, 3) == of_job


async def test_a_page_reads_few_files_and_the_next_goes_on(  # noqa: PLR0917 - fixtures
    pool: Pool,
    aged: AgedTables,
    first_at: datetime,
    archive: Archive,
    tenant: TenantContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, _ = await a_history(aged, first_at)
    expected = await all_of_tenant(tenant, 100)
    of_job = await all_of_job(tenant, job, 100)
    await archive_two_days(pool, archive)
    monkeypatch.setattr(archived, "MAX_FILES", 1)
    page = await reading.tenant_runs(tenant, limit=100, archive=True)
    assert len(page.items) == 18
    assert page.next is not None
    assert await all_of_tenant(tenant, 100) == expected
    monkeypatch.setattr(archived, "MAX_FILES", 2)
    assert await all_of_job(tenant, job, 100) == of_job


async def test_a_run_is_found_with_all_its_attempts_wherever_they_are(
    pool: Pool, aged: AgedTables, first_at: datetime, archive: Archive, tenant: TenantContext
) -> None:
    job = await aged.job(age=2 * HISTORY)
    for number in (1, 2, 3):
        at = first_at + (number - 1) * STEP
        await aged.day(at.date())
        await aged.connection.execute(
            "INSERT INTO attempts (lane_id, seq, job_id, fire_at, due_at, spec_version, epoch, reason, attempt)"
            " VALUES ($1, $2, $3, $4, $4, 1, 1, 'tick', $5)",
            *(job.lane_id, to_us(at), job.job_id, first_at, number),
        )
        await aged.connection.execute(
            "INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final, error, excerpt)"
            " VALUES ($1, $2, $3, 'failed', $4, 'no', 'beginning')",
            *(job.lane_id, to_us(at), at, number == 3),
        )
        await aged.head(job, to_us(at))
    run_id = format_run_id(job.job_id, to_us(first_at))
    expected = await reading.get_run(tenant, run_id)
    listed = await all_of_tenant(tenant, 10)
    await archive_two_days(pool, archive)
    assert len((await reading.get_run(tenant, run_id)).attempts) == 1
    assert await reading.get_run(tenant, run_id, archive=True) == expected
    assert await all_of_tenant(tenant, 10) == listed
    assert len(await all_of_job(tenant, job, 10)) == 1
    await Archiving(pool, archive, timedelta(days=80)).archive_days()
    assert await reading.get_run(tenant, run_id, archive=True) == expected
    with pytest.raises(RunNotFound):
        await reading.get_run(tenant, run_id)


async def test_a_run_that_was_cancelled_while_it_waited_stays_so(
    pool: Pool, aged: AgedTables, first_at: datetime, archive: Archive, tenant: TenantContext
) -> None:
    job = await aged.job(age=2 * HISTORY)
    await aged.connection.execute(
        "INSERT INTO withdrawals VALUES ($1, $2, $3, 1, 'manual')", job.job_id, first_at, first_at + STEP
    )
    run_id = format_run_id(job.job_id, to_us(first_at))
    expected = await reading.get_run(tenant, run_id)
    assert await Archiving(pool, archive, HISTORY).archive_days() == 1
    assert await reading.get_run(tenant, run_id, archive=True) == expected
    assert await all_of_job(tenant, job, 10) == [expected.run]


async def test_no_file_of_another_tenant_is_read(
    pool: Pool, aged: AgedTables, first_at: datetime, tmp_path: Path
) -> None:
    other = await tenants.add(pool, "other", weight=1)
    assert other is not None
    mine, _ = await a_history(aged, first_at)
    theirs, _ = await a_history(aged, first_at, tenant_id=other.tenant_id)
    with failing_archive(tmp_path) as (storage, archive):
        await archive_two_days(pool, archive)
        storage.calls.clear()
        tenant = TenantContext(pool, 1, archive=archive)
        assert len(await all_of_tenant(tenant, 100)) == 24
        with pytest.raises(JobNotFound):
            await all_of_job(tenant, theirs, 10)
        with pytest.raises(RunNotFound):
            await reading.get_run(tenant, format_run_id(theirs.job_id, to_us(first_at)), archive=True)
        assert len(await all_of_job(tenant, mine, 10)) == 16
        assert {path.split("tenant=")[1].split("/")[0] for _, path in storage.calls} == {format_id(Prefix.TENANT, 1)}


async def test_runs_of_a_job_that_is_gone_are_still_read(
    pool: Pool, aged: AgedTables, first_at: datetime, archive: Archive, tenant: TenantContext
) -> None:
    job, _ = await a_history(aged, first_at)
    await archive_two_days(pool, archive)
    await aged.connection.execute("DELETE FROM jobs WHERE job_id = $1", job.job_id)
    assert len(await all_of_job(tenant, job, 3)) == 8
    with pytest.raises(JobNotFound):
        await reading.job_runs(tenant, format_id(Prefix.JOB, job.job_id))
    with pytest.raises(JobNotFound):
        await reading.job_runs(tenant, format_id(Prefix.JOB, 12345), archive=True)


async def test_what_cannot_be_read_is_an_error_not_a_shorter_list(  # noqa: PLR0917 - fixtures
    pool: Pool, aged: AgedTables, first_at: datetime, archive: Archive, tenant: TenantContext, tmp_path: Path
) -> None:
    await a_history(aged, first_at)
    await archive_two_days(pool, archive)
    with pytest.raises(NoArchive):
        await reading.tenant_runs(replace(tenant, archive=None), archive=True)
    for path in files_in(tmp_path):
        (tmp_path / path).unlink()
    assert len((await reading.tenant_runs(tenant, limit=5, archive=True)).items) == 5, "these are in the database"
    with pytest.raises(ArchiveUnavailable):
        await reading.tenant_runs(tenant, limit=100, archive=True)


async def test_a_tenant_sees_as_far_back_as_its_history_reaches(
    pool: Pool, aged: AgedTables, first_at: datetime, archive: Archive, tenant: TenantContext
) -> None:
    job, _ = await a_history(aged, first_at)
    await archive_two_days(pool, archive)
    short = replace(tenant, history_days=89, archive_days=93)
    assert len((await reading.tenant_runs(short, limit=100)).items) == 6
    assert len(await all_of_tenant(short, 100)) == 18
    assert len(await all_of_job(short, job, 100)) == 12
    run_id = format_run_id(job.job_id, to_us(first_at))
    assert (await reading.get_run(tenant, run_id, archive=True)).run_id == run_id
    with pytest.raises(RunNotFound):
        await reading.get_run(short, run_id, archive=True)
