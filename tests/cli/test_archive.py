"""The commands about the archive, on a database and over the API."""

import csv
import io
from datetime import date, timedelta
from pathlib import Path

import asyncpg
import pytest

from archives import directory_archive, files_in
from cli.commands import Cli
from evertick.roles.janitor.archiving import Archiving
from evertick.store.database import Pool
from roles.aged_tables import AgedTables

HISTORY = timedelta(days=90)
FROM = ("--from", "2001-01-01T00:00:00Z")


@pytest.fixture
async def archived_day(connection: asyncpg.Connection, pool: Pool, tmp_path: Path) -> date:
    """A day with a run and a gap in the archive; another run and the day before yesterday are in the database."""
    aged = AgedTables(connection)
    job = await aged.job(age=2 * HISTORY)
    old_at = (await aged.now() - timedelta(days=100)).replace(hour=12)
    for at in (old_at, (await aged.now() - timedelta(days=3)).replace(hour=12)):
        await aged.head(job, await aged.attempt(job, at, ended=True))
    await aged.gap(job, old_at, old_at)
    async with directory_archive(tmp_path) as archive:
        assert await Archiving(pool, archive, HISTORY).archive_days() == 1
    return old_at.date()


@pytest.fixture
def cli(on_database: Cli, tmp_path: Path) -> Cli:
    on_database.environment = {"EVERTICK_ARCHIVE_URL": str(tmp_path)}
    return on_database


async def test_history_reads_the_database_and_on_request_the_archive(cli: Cli, archived_day: date) -> None:
    (live,) = await cli.json("history", *FROM)
    recent, old = await cli.json("history", *FROM, "--archive")
    assert recent == live
    assert old["scheduled_at"].startswith(str(archived_day))
    assert len(await cli.json("history", *FROM, "--archive", "--job", live["job_id"])) == 3
    until = f"{archived_day + timedelta(days=1)}T00:00:00Z"
    assert await cli.json("history", *FROM, "--to", until, "--archive") == [old]
    rows = list(csv.DictReader(io.StringIO(await cli("history", *FROM, "--archive", "--csv"))))
    assert [row["run_id"] for row in rows] == [recent["run_id"], old["run_id"]]
    assert "exclude" in await cli("history", *FROM, "--csv", "--json", code=2)


async def test_without_an_archive_history_says_so(on_database: Cli, archived_day: date) -> None:
    assert "no archive" in await on_database("history", *FROM, "--archive", code=1)


async def test_days_are_listed_verified_and_exported(cli: Cli, archived_day: date, tmp_path: Path) -> None:
    (day,) = await cli.json("archive", "list")
    assert (day["day"], day["state"], day["rows"], day["files"]) == (str(archived_day), "dropped", 2, 2)
    verified = await cli.json("archive", "verify", str(archived_day))
    assert (verified["rows"], verified["damaged"]) == (2, [])
    (path,) = [path for path in files_in(tmp_path) if path.startswith("runs")]
    (tmp_path / path).write_bytes(b"nothing of it")
    assert path in (await cli.run("archive", "verify", str(archived_day))).output
    (tmp_path / path).unlink()
    assert (await cli.run("archive", "verify", str(archived_day))).exit_code == 1
    recent = archived_day + timedelta(days=97)
    exported = await cli.json("archive", "export", str(recent))
    assert (exported["files"], exported["rows"]) == (1, 1)
    assert [day["state"] for day in await cli.json("archive", "list")] == ["verified", "dropped"]
    assert "no files" in await cli("archive", "verify", "2020-01-01", code=2)
    assert "as in" in await cli("archive", "verify", "yesterday", code=2)


async def test_the_archive_is_turned_off_by_a_command_alone(cli: Cli, archived_day: date) -> None:
    assert "without being archived" in await cli("archive", "off")
    assert "already" in await cli("archive", "off")
