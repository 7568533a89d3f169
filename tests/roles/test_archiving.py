"""Days are archived before they are dropped: all of them, once, whatever fails meanwhile."""

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import asyncpg
import pyarrow.parquet as pq
import pytest

from archives import BUCKET, S3Server, directory_archive, files_in, s3_server
from evertick.domain.ids import Prefix, format_id
from evertick.roles.janitor import Janitor
from evertick.roles.janitor.archiving import Archiving
from evertick.runtime.archive import Archive, open_archive
from evertick.store.archive import days
from evertick.store.database import Pool
from evertick.store.errors import ArchiveUnavailable
from roles.aged_tables import AgedTables, Job

HISTORY = timedelta(days=90)
LONG_AGO = timedelta(days=100)


@pytest.fixture
def aged(connection: asyncpg.Connection) -> AgedTables:
    return AgedTables(connection)


@pytest.fixture
async def old_at(aged: AgedTables) -> datetime:
    """Noon of a day that is older than history is kept."""
    return (await aged.now() - LONG_AGO).replace(hour=12, minute=0, second=0, microsecond=0)


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[Archive]:
    async with directory_archive(tmp_path) as archive:
        yield archive


async def runs(aged: AgedTables, job: Job, first_at: datetime, count: int) -> None:
    """Runs of a job a second apart, which ended."""
    seq = 0
    for number in range(count):
        seq = await aged.attempt(job, first_at + timedelta(minutes=number), ended=True)
    await aged.head(job, seq)


async def some_day(aged: AgedTables, old_at: datetime, count: int = 3) -> Job:
    """A day with runs, a gap and a run that was withdrawn, and a run of the day after."""
    job = await aged.job(age=2 * LONG_AGO)
    await aged.timer(job, old_at + 2 * LONG_AGO)
    await runs(aged, job, old_at, count)
    await aged.gap(job, old_at - timedelta(hours=2), old_at - timedelta(hours=1))
    await aged.connection.execute(
        "INSERT INTO withdrawals VALUES ($1, $2, $3, 1, 'manual')",
        *(job.job_id, old_at + timedelta(hours=3), old_at + timedelta(hours=4)),
    )
    return job


def rows_of(directory: Path, kind: str) -> list[dict[str, object]]:
    return [row for path in files_in(directory) if path.startswith(kind) for row in _read(directory / path)]


def _read(path: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pq.ParquetFile(path).read().to_pylist()
    return rows


async def states(pool: Pool) -> list[str]:
    return [day.state for day in await days.exported_days(pool, 100)]


async def test_a_day_is_in_files_when_it_is_dropped(
    pool: Pool, aged: AgedTables, old_at: datetime, archive: Archive, tmp_path: Path
) -> None:
    job = await some_day(aged, old_at)
    assert await Archiving(pool, archive, HISTORY).archive_days() == 1
    assert old_at.date() not in await aged.days()
    assert [await aged.count(table) for table in ("gaps", "withdrawals")] == [0, 0]
    tenant = format_id(Prefix.TENANT, 1)
    assert [path.rpartition("/")[0] for path in files_in(tmp_path)] == [
        f"gaps/tenant={tenant}/date={old_at.date()}",
        f"runs/tenant={tenant}/date={old_at.date()}",
    ]
    found = rows_of(tmp_path, "runs")
    assert [(row["attempt"], row["status"], row["is_last"]) for row in found] == [
        *[(1, "success", True)] * 3,
        (0, "cancelled", True),
    ]
    assert {row["job_id"] for row in found} == {format_id(Prefix.JOB, job.job_id)}
    assert {(row["job_name"], row["queue"], row["handler"]) for row in found} == {
        (f"job {job.job_id}", "default", "noop")
    }
    assert [(row["reason"], row["count"]) for row in rows_of(tmp_path, "gaps")] == [("missed", 1)]
    manifest = json.loads((tmp_path / "manifests" / f"{old_at.date()}.0.json").read_text())
    assert manifest["tables"] == {"attempts": 3, "outcomes": 3, "gaps": 1, "withdrawals": 1}
    assert sum(file["rows"] for file in manifest["files"]) == 5
    assert await states(pool) == ["dropped"]
    assert await Archiving(pool, archive, HISTORY).archive_days() == 0


async def test_a_day_goes_to_storage_like_s3(pool: Pool, aged: AgedTables, old_at: datetime) -> None:
    await some_day(aged, old_at)
    async with s3_server() as server, open_archive(server.settings) as archive:
        assert archive is not None
        assert await Archiving(pool, archive, HISTORY).archive_days() == 1
        (file,) = [file for file in await days.files_of_day(pool, old_at.date()) if file.kind == "runs"]
        source = server.filesystem.open_input_file(f"{BUCKET}/evertick/{file.path}")
        assert pq.ParquetFile(source).metadata.num_rows == 4


async def test_while_the_storage_is_away_days_stay(pool: Pool, aged: AgedTables, old_at: datetime) -> None:
    await some_day(aged, old_at)
    server = S3Server()
    async with open_archive(server.settings) as archive:
        assert archive is not None
        with pytest.raises(ArchiveUnavailable):
            await Archiving(pool, archive, HISTORY).archive_days()
        await Janitor(pool, archive=archive).maintain()
        assert old_at.date() in await aged.days()
        assert await aged.count("gaps") == 1
        assert (await days.marks(pool)).error is not None
        await server.start()
        try:
            assert await Archiving(pool, archive, HISTORY).archive_days() == 1
        finally:
            await server.stop()
    assert (await days.marks(pool)).error is None
