"""Days are archived before they are dropped: all of them, once, whatever fails meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from pathlib import Path

import asyncpg
import pyarrow.parquet as pq
import pytest

from archives import BUCKET, directory_archive, failing_archive, files_in, s3_server
from evertick.domain import archiving as archiving_rules
from evertick.domain.archiving import FileKind
from evertick.domain.ids import MAX_ID, Prefix, format_id
from evertick.domain.schedule.instants import to_us
from evertick.metrics.catalog import STATEMENT_SECONDS
from evertick.roles.janitor import Janitor, archiving, exporting
from evertick.roles.janitor.archiving import Archiving
from evertick.runtime.archive import Archive, open_archive
from evertick.store.archive import days
from evertick.store.database import Pool, connect
from evertick.store.errors import ArchiveUnavailable
from evertick.store.tenants import audit, tenants
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
    (path,) = (tmp_path / "manifests").iterdir()
    assert path.name.startswith(f"{old_at.date()}.0-")
    manifest = json.loads(path.read_text())
    assert manifest["tables"] == {"attempts": 3, "outcomes": 3, "gaps": 1, "withdrawals": 1}
    assert sum(file["rows"] for file in manifest["files"]) == 5
    assert await states(pool) == ["dropped"]
    assert await Archiving(pool, archive, HISTORY).archive_days() == 0


async def test_a_day_goes_to_storage_like_s3(pool: Pool, aged: AgedTables, old_at: datetime, tmp_path: Path) -> None:
    await some_day(aged, old_at)
    async with s3_server(tmp_path) as server, open_archive(server.settings) as archive:
        await server.start()
        assert archive is not None
        assert await Archiving(pool, archive, HISTORY).archive_days() == 1
        (file,) = [file for file in await days.files_of_day(pool, old_at.date()) if file.kind == "runs"]
        source = server.filesystem.open_input_file(f"{BUCKET}/evertick/{file.path}")
        assert pq.ParquetFile(source).metadata.num_rows == 4


async def test_while_the_storage_is_away_days_stay(
    pool: Pool, aged: AgedTables, old_at: datetime, tmp_path: Path
) -> None:
    await some_day(aged, old_at)
    async with s3_server(tmp_path) as server, open_archive(server.settings) as archive:
        assert archive is not None
        with pytest.raises(ArchiveUnavailable):
            await Archiving(pool, archive, HISTORY).archive_days()
        await Janitor(pool, archive=archive).maintain()
        assert old_at.date() in await aged.days()
        assert await aged.count("gaps") == 1
        assert (await days.marks(pool)).error is not None
        await server.start()
        assert await Archiving(pool, archive, HISTORY).archive_days() == 1
    assert (await days.marks(pool)).error is None


def _failing_at(call: str, kind: str) -> Callable[[str, str], bool]:
    return lambda name, path: name == call and f"/{kind}" in path


STEPS = [
    ("open_output_stream", "runs/"),
    ("move", "runs/"),
    ("open_input_file", "runs/"),
    ("open_output_stream", "gaps/"),
    ("open_output_stream", "manifests/"),
    ("move", "manifests/"),
]


@pytest.mark.parametrize(("call", "kind"), STEPS)
async def test_an_export_that_fails_at_any_step_is_continued(  # noqa: PLR0917 - fixtures
    pool: Pool, aged: AgedTables, old_at: datetime, tmp_path: Path, call: str, kind: str
) -> None:
    await some_day(aged, old_at)
    with failing_archive(tmp_path) as (storage, archive):
        storage.fails = _failing_at(call, kind)
        with pytest.raises(ArchiveUnavailable):
            await Archiving(pool, archive, HISTORY).archive_days()
        assert old_at.date() in await aged.days()
        assert await states(pool) == ["exporting"]
        checked = {file.path for file in await days.files_of_day(pool, old_at.date())}
        storage.fails = lambda _call, _path: False
        assert await Archiving(pool, archive, HISTORY).archive_days() == 1
    assert checked <= set(files_in(tmp_path)), "what was checked is not written again"
    assert len(files_in(tmp_path)) == 2, "what was not is removed"
    assert len(rows_of(tmp_path, "runs")) == 4
    assert len(rows_of(tmp_path, "gaps")) == 1


async def test_a_file_that_storage_damages_is_written_again(
    pool: Pool, aged: AgedTables, old_at: datetime, tmp_path: Path
) -> None:
    await some_day(aged, old_at)

    def damage(call: str, path: str) -> None:
        if call == "move" and "/runs/" in path:
            finished = Path(path.removesuffix(".part"))
            content = finished.read_bytes()
            finished.write_bytes(content[: len(content) // 3] + b"?" + content[len(content) // 3 + 1 :])

    with failing_archive(tmp_path) as (storage, archive):
        storage.after = damage
        with pytest.raises(ArchiveUnavailable):
            await Archiving(pool, archive, HISTORY).archive_days()
        assert old_at.date() in await aged.days()
        storage.after = lambda _call, _path: None
        assert await Archiving(pool, archive, HISTORY).archive_days() == 1
    assert len(rows_of(tmp_path, "runs")) == 4


async def test_a_file_that_was_damaged_since_it_was_checked_is_written_again_before_the_drop(
    pool: Pool, aged: AgedTables, old_at: datetime, archive: Archive, tmp_path: Path
) -> None:
    await some_day(aged, old_at)
    await exporting.DayExport(pool, archive, old_at.date()).run(await aged.now())
    assert await states(pool) == ["verified"]
    (path,) = [path for path in files_in(tmp_path) if path.startswith("runs")]
    (tmp_path / path).write_bytes(b"PAR1 is not enough")
    assert await Archiving(pool, archive, HISTORY).archive_days() == 1
    assert len(rows_of(tmp_path, "runs")) == 4
    assert path not in files_in(tmp_path)


async def test_a_file_that_is_gone_since_it_was_checked_is_written_again_before_the_drop(
    pool: Pool, aged: AgedTables, old_at: datetime, archive: Archive, tmp_path: Path
) -> None:
    await some_day(aged, old_at)
    await exporting.DayExport(pool, archive, old_at.date()).run(await aged.now())
    (path,) = [path for path in files_in(tmp_path) if path.startswith("runs")]
    (tmp_path / path).unlink()
    assert await Archiving(pool, archive, HISTORY).archive_days() == 1
    assert len(rows_of(tmp_path, "runs")) == 4


async def test_a_verified_day_is_dropped_when_the_ledgers_can_be_locked_again(  # noqa: PLR0917 - fixtures
    pool: Pool,
    aged: AgedTables,
    old_at: datetime,
    archive: Archive,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archiving, "DROP_PAUSE_SECONDS", 0.01)
    await some_day(aged, old_at)
    reader = await connect(database_url)
    waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
    async with reader.transaction():
        await reader.execute("SELECT FROM attempts LIMIT 1")
        dropped = asyncio.create_task(Archiving(pool, archive, HISTORY).archive_days())
        while not await aged.connection.fetchval(waiting):
            assert not dropped.done()
        while await aged.connection.fetchval(waiting):  # until it has given up once
            pass
    assert await dropped == 1
    await reader.close()


async def test_an_export_that_lost_its_claim_checks_no_file(
    pool: Pool, aged: AgedTables, old_at: datetime, database_url: str
) -> None:
    first = await days.claim(pool, old_at.date(), "first")
    assert first is not None
    assert await days.note_file(pool, first, "runs/x.parquet", 1, FileKind.RUNS)
    other = await connect(database_url)
    file = days.KnownFile("runs/x.parquet", 1, "runs", 1, 1, 1, "1", "")
    async with other.transaction():
        await days.claim(other, old_at.date(), "second")
        checked = asyncio.create_task(days.check_file(pool, first, file, days.Extent(0, 0, old_at, old_at)))
        while not checked.done():
            if await aged.connection.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
                break
    assert not await checked
    await other.close()


@pytest.mark.parametrize("late", ["outcome", "attempt", "gap", "widened gap", "withdrawal"])
async def test_a_day_that_changes_between_export_and_drop_is_exported_again(  # noqa: PLR0917 - fixtures
    pool: Pool, aged: AgedTables, old_at: datetime, archive: Archive, tmp_path: Path, late: str
) -> None:
    job = await some_day(aged, old_at)
    later_at = old_at + timedelta(hours=6)
    open_seq = await aged.attempt(job, old_at + timedelta(hours=5), ended=False)
    await aged.head(job, open_seq)
    claim = await exporting.DayExport(pool, archive, old_at.date()).run(await aged.now())
    match late:
        case "outcome":
            await aged.connection.execute(
                "INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final) VALUES ($1, $2, $3, 'lost', true)",
                *(job.lane_id, open_seq, later_at),
            )
        case "attempt":
            await aged.head(job, await aged.attempt(job, later_at, ended=True))
        case "gap":
            await aged.gap(job, later_at, later_at)
        case "widened gap":
            await aged.connection.execute("UPDATE gaps SET last_at = last_at + interval '1 minute', ticks = 2")
        case _:
            await aged.connection.execute(
                "INSERT INTO withdrawals VALUES ($1, $2, $2, 1, 'manual')", job.job_id, later_at
            )
    assert await days.drop_archived_day(pool, claim) == "changed"
    assert old_at.date() in await aged.days()
    assert await aged.count("withdrawals") >= 1, "nothing is deleted"
    assert await Archiving(pool, archive, HISTORY).archive_days() == 1
    rows = len(rows_of(tmp_path, "runs")), len(rows_of(tmp_path, "gaps"))
    assert rows == (5 + (late in {"attempt", "withdrawal"}), 1 + (late == "gap"))
    if late == "outcome":
        assert sorted(str(row["result"]) for row in rows_of(tmp_path, "runs"))[1] == "lost"


async def test_a_writer_of_an_archived_day_comes_before_the_drop_or_the_drop_waits_for_another_time(
    pool: Pool, aged: AgedTables, old_at: datetime, archive: Archive, database_url: str
) -> None:
    job = await some_day(aged, old_at)
    claim = await exporting.DayExport(pool, archive, old_at.date()).run(await aged.now())
    writer = await connect(database_url)
    async with writer.transaction():
        await AgedTables(writer).attempt(job, old_at + timedelta(hours=7), ended=True)
        assert await days.drop_archived_day(pool, claim) == "locked"
    await writer.close()
    assert await days.drop_archived_day(pool, claim) == "changed"


async def test_rows_that_come_to_a_day_after_its_drop_become_another_part(
    pool: Pool, aged: AgedTables, old_at: datetime, archive: Archive, tmp_path: Path
) -> None:
    job = await some_day(aged, old_at)
    archiving = Archiving(pool, archive, HISTORY)
    await archiving.archive_days()
    await aged.gap(job, old_at, old_at)
    assert await archiving.archive_days() == 1
    assert len(rows_of(tmp_path, "gaps")) == 2
    assert [(day.part, day.state) for day in await days.exported_days(pool, 9)] == [(1, "dropped"), (0, "dropped")]


async def test_of_two_exports_of_a_day_the_later_claim_counts(
    pool: Pool, aged: AgedTables, old_at: datetime, archive: Archive, tmp_path: Path
) -> None:
    await some_day(aged, old_at)
    first = await days.claim(pool, old_at.date(), "first")
    assert first is not None
    second = await exporting.DayExport(pool, archive, old_at.date()).run(await aged.now())
    assert not await days.verify_day(pool, first)
    assert not await days.note_file(pool, first, "runs/x.parquet", 1, FileKind.RUNS)
    assert await days.drop_archived_day(pool, first) == "unverified"
    assert await days.drop_archived_day(pool, second) == "dropped"
    assert await days.claim(pool, old_at.date(), "third") != first


async def test_the_manifest_of_an_export_that_another_took_over_is_removed(
    pool: Pool, aged: AgedTables, old_at: datetime, archive: Archive, tmp_path: Path
) -> None:
    await some_day(aged, old_at)
    first = await exporting.DayExport(pool, archive, old_at.date()).run(await aged.now())
    (of_first,) = (tmp_path / "manifests").iterdir()
    assert first.token in of_first.name
    assert await Archiving(pool, archive, HISTORY).archive_days() == 1
    (of_second,) = (tmp_path / "manifests").iterdir()
    assert of_second != of_first
    assert {file["path"] for file in json.loads(of_second.read_text())["files"]} == set(files_in(tmp_path))


async def test_many_janitors_archive_each_day_once(
    pool: Pool, aged: AgedTables, old_at: datetime, archive: Archive, tmp_path: Path
) -> None:
    job = await aged.job(age=2 * LONG_AGO)
    for ago in (4, 3, 2, 1):
        await runs(aged, job, old_at - timedelta(days=ago), 2)
    archivings = [Archiving(pool, archive, HISTORY) for _ in range(4)]
    done = await asyncio.gather(*(each.archive_days() for each in archivings))
    assert sorted(done) == [0, 0, 0, 4]
    assert len(rows_of(tmp_path, "runs")) == 4 * 2


async def test_no_janitor_drops_a_day_while_the_archive_is_on(
    pool: Pool, aged: AgedTables, old_at: datetime, archive: Archive
) -> None:
    await some_day(aged, old_at)
    await Archiving(pool, archive, HISTORY).turn_on()
    await Janitor(pool).maintain()
    await aged.connection.execute("SELECT drop_day($1)", old_at.date())
    assert old_at.date() in await aged.days()
    assert [await aged.count(table) for table in ("gaps", "withdrawals")] == [1, 1]
    await days.turn(pool, None)
    assert (await Janitor(pool).maintain()).days_dropped == 1
    assert [await aged.count(table) for table in ("gaps", "withdrawals")] == [0, 0]


async def test_a_deleted_job_stays_until_its_runs_are_archived(
    pool: Pool, aged: AgedTables, old_at: datetime, archive: Archive, tmp_path: Path
) -> None:
    job = await aged.job(age=2 * LONG_AGO, status="deleted", deleted=LONG_AGO - timedelta(days=1))
    await runs(aged, job, old_at, 1)
    janitor = Janitor(pool, archive=archive)
    assert (await janitor.maintain()).jobs_purged == 0
    await Archiving(pool, archive, HISTORY).archive_days()
    assert (await janitor.maintain()).jobs_purged == 1
    assert [row["job_name"] for row in rows_of(tmp_path, "runs")] == [f"job {job.job_id}"]


async def test_a_large_day_is_read_and_written_in_small_parts(  # noqa: PLR0917 - fixtures
    pool: Pool,
    aged: AgedTables,
    old_at: datetime,
    archive: Archive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporting, "ATTEMPTS_PER_LANE", 10)
    monkeypatch.setattr(exporting, "LANES_PER_PAGE", 2)
    monkeypatch.setattr(exporting, "ROWS_PER_GROUP", 16)
    monkeypatch.setattr(archiving_rules, "SLICE_ROWS", 40)
    await some_day(aged, old_at.replace(hour=2), 100)
    pages = STATEMENT_SECONDS.of("archive.attempts_page")
    before = pages.count
    assert await Archiving(pool, archive, HISTORY).archive_days() == 1
    assert pages.count - before >= 10
    (path,) = [path for path in files_in(tmp_path) if path.startswith("runs")]
    file = pq.ParquetFile(tmp_path / path).metadata
    assert file.num_rows == 101
    assert max(file.row_group(number).num_rows for number in range(file.num_row_groups)) <= 16


async def test_a_run_over_several_days_is_marked_at_its_last_attempt(
    pool: Pool, aged: AgedTables, old_at: datetime, archive: Archive, tmp_path: Path
) -> None:
    job = await aged.job(age=2 * LONG_AGO)
    await aged.timer(job, old_at + 2 * LONG_AGO)
    for number in (1, 2, 3):
        at = old_at + timedelta(days=number - 1)
        await aged.day(at.date())
        await aged.connection.execute(
            "INSERT INTO attempts (lane_id, seq, job_id, fire_at, due_at, spec_version, epoch, reason, attempt)"
            " VALUES ($1, $2, $3, $4, $4, 1, 1, 'tick', $5)",
            *(job.lane_id, to_us(at), job.job_id, old_at, number),
        )
        await aged.connection.execute(
            "INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final, error)"
            " VALUES ($1, $2, $3, 'failed', $4, 'no')",
            *(job.lane_id, to_us(at), at, number == 3),
        )
    await aged.head(job, to_us(old_at) + 10**12)
    assert await Archiving(pool, archive, HISTORY).archive_days() == 3
    found = sorted(rows_of(tmp_path, "runs"), key=lambda row: str(row["seq"]))
    assert [(row["attempt"], row["is_last"], row["status"]) for row in found] == [
        (1, False, None),
        (2, False, None),
        (3, True, "dead"),
    ]


async def test_a_tenant_decides_how_long_its_archive_is_kept(
    pool: Pool, aged: AgedTables, old_at: datetime, archive: Archive, tmp_path: Path
) -> None:
    other = await tenants.add(pool, "other", weight=1)
    nothing = await tenants.add(pool, "nothing", weight=1)
    assert other is not None
    assert nothing is not None
    await tenants.edit(pool, nothing.tenant_id, {"archive_days": 0})
    for tenant_id in (1, other.tenant_id, nothing.tenant_id):
        await runs(aged, await aged.job(age=2 * LONG_AGO, tenant_id=tenant_id), old_at, 2)
    archiving = Archiving(pool, archive, HISTORY)
    assert await archiving.archive_days() == 1
    directories = {path.split("/")[1] for path in files_in(tmp_path)}
    assert directories == {f"tenant={format_id(Prefix.TENANT, tenant_id)}" for tenant_id in (1, other.tenant_id)}
    assert await audit.page(pool, nothing.tenant_id, before=MAX_ID, most=9) == [], "nothing was written and removed"
    await tenants.edit(pool, other.tenant_id, {"archive_days": 95})
    await archiving.archive_days()
    assert {path.split("/")[1] for path in files_in(tmp_path)} == {f"tenant={format_id(Prefix.TENANT, 1)}"}
    entries = await audit.page(pool, other.tenant_id, before=MAX_ID, most=9)
    assert [(entry.actor, entry.action, entry.subject) for entry in entries] == [
        ("janitor", "delete_archive", f"up to {old_at.date()}")
    ]
