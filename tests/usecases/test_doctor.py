from datetime import UTC, date, datetime, timedelta

import asyncpg
import pytest

import postgres
from engine import PATIENCE_SECONDS, Holder, Planned, add_job, lease
from evertick.domain.assignment import Member
from evertick.runtime import timeouts
from evertick.store.archive.days import ArchiveMarks, ArchiveSummary
from evertick.store.database import Pool, connect, open_pool
from evertick.store.engine import lanes, members
from evertick.store.engine.lanes import PutBack
from evertick.store.location import DatabaseAddress, Location
from evertick.store.maintenance.diagnostics import (
    DeadTuples,
    OldestDueTimer,
    OldestSnapshot,
    ReadyQueue,
    StuckLeases,
    UnservedAttempts,
)
from evertick.usecases import diagnosis
from evertick.usecases.diagnosis import Diagnosis, Level
from evertick.usecases.doctor import examine
from evertick.version import __version__
from pgbouncer import pgbouncer
from roles.aged_tables import AgedTables

NOW = datetime(2026, 6, 9, 12, tzinfo=UTC)
DAY = timedelta(days=1)
LIFETIME = timedelta(minutes=5)


@pytest.fixture
def aged(connection: asyncpg.Connection) -> AgedTables:
    return AgedTables(connection)


@pytest.fixture
async def scheduler(pool: Pool) -> None:
    """One that lives and holds everything."""
    await members.heartbeat(pool, Member("node-1", ""), __version__, LIFETIME)
    await members.take(pool, "node-1", range(256), LIFETIME)


async def found(pool: Pool) -> dict[str, Diagnosis]:
    return {finding.name: finding for finding in await examine(pool, LIFETIME)}


async def _wakeups(pool: Pool, url: DatabaseAddress) -> Diagnosis:
    return next(finding for finding in await examine(pool, LIFETIME, url=url) if finding.name == "wake-ups")


async def test_wake_ups_are_tried(
    postgres_server: postgres.Server, pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "LISTEN", timeouts.LISTEN._replace(command_seconds=PATIENCE_SECONDS))
    assert (await _wakeups(pool, database_url)).level is Level.OK
    async with pgbouncer(database_url) as pooler, await open_pool(pooler.url) as pooled:
        assert (await examine(pooled, LIFETIME))[0].what.endswith(", through a pooler")
        assert (await _wakeups(pooled, Location(pooler.url, direct_url=database_url))).level is Level.OK
        monkeypatch.setattr(timeouts, "LISTEN", timeouts.LISTEN._replace(command_seconds=1))
        without = await _wakeups(pooled, pooler.url)
        assert without.level is Level.WARNING
        assert "EVERTICK_DATABASE_DIRECT_URL" in str(without.todo)
        elsewhere = Location(pooler.url, direct_url=postgres_server.url("postgres"))
        assert await _wakeups(pooled, elsewhere) == diagnosis.on_wakeups(arrive=False)
        nowhere = Location(pooler.url, direct_url="postgresql://127.0.0.1:1/nowhere")
        assert "cannot reach database nowhere" in (await _wakeups(pooled, nowhere)).what


async def test_a_database_with_a_scheduler_is_well(pool: Pool, scheduler: None) -> None:
    assert {name: finding for name, finding in (await found(pool)).items() if finding.level is not Level.OK} == {}


async def test_what_is_well_needs_nothing_to_be_done_and_the_rest_does(pool: Pool) -> None:
    for finding in await examine(pool, LIFETIME):
        assert (finding.todo is None) == (finding.level is Level.OK)


async def test_without_a_scheduler_nothing_fires(pool: Pool) -> None:
    partitions = (await found(pool))["partitions"]
    assert partitions.level is Level.PROBLEM
    assert partitions.todo == "start `evertick scheduler`"


async def test_an_empty_database_is_told_to_be_migrated_and_nothing_else_of_it_is_looked_at(
    postgres_server: postgres.Server,
) -> None:
    async with postgres_server.database(empty=True) as url, await open_pool(url) as empty:
        findings = await found(empty)
    assert findings["schema"].level is Level.PROBLEM
    assert findings["schema"].what.startswith("the database lacks 0001_initial")
    assert findings["schema"].todo == "run `evertick migrate`"
    assert "partitions" not in findings


async def test_a_long_transaction_is_named_with_its_process(pool: Pool, database_url: str) -> None:
    other = await connect(database_url)
    async with other.transaction(isolation="repeatable_read"):
        await other.execute("SELECT 1 FROM jobs")
        what = (await found(pool))["oldest snapshot"].what
    assert f"pid {other.get_server_pid()} (evertick of postgres, idle in transaction)" in what
    await other.close()


async def test_attempts_that_no_lease_covers_are_a_problem(
    pool: Pool, connection: asyncpg.Connection, scheduler: None
) -> None:
    job = await add_job(connection)
    await Holder(connection, "node-1", {job.partition: 1}).fire(Planned(job))
    [leased] = await lease(connection, job)
    await connection.execute("DELETE FROM leases")
    assert (await found(pool))["attempts without a lease"].level is Level.OK  # it may be a moment's
    later = (
        "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql AS $$SELECT now() + interval '1 h'$$"
    )
    await connection.execute(later)
    finding = (await found(pool))["attempts without a lease"]
    assert finding.level is Level.PROBLEM
    assert finding.what == f"1 were handed out and are in nobody's hands, such as {leased.lane_id}.{leased.seq}"


async def test_handlers_that_nobody_serves_are_named(
    pool: Pool, connection: asyncpg.Connection, scheduler: None
) -> None:
    jobs = [await add_job(connection) for _ in range(2)]
    await Holder(connection, "node-1", {7: 1}).fire(*[Planned(job) for job in jobs])
    leased = await lease(connection, *jobs)
    back = [PutBack(each.lane_id, each.seq, name) for each, name in zip(leased, ("bill", ""), strict=True)]
    await lanes.put_back(connection, "w", back)
    nothing = (await found(pool))["handlers that nobody serves"]
    assert nothing.level is Level.OK
    assert "`evertick queues list` names those of all jobs" in nothing.what, "also of queues without a worker"
    assert (await found(pool))["ready work"].what.startswith("default of default: 2, oldest due")
    await connection.execute("UPDATE leases SET expires_at = expires_at - interval '5 min' WHERE handler = 'bill'")
    await connection.execute("UPDATE leases SET expires_at = expires_at - interval '3 min' WHERE handler = ''")
    finding = (await found(pool))["handlers that nobody serves"]
    assert finding.level is Level.WARNING
    assert finding.what == (
        "bill in default of default: 1, the oldest ready 5 min ago;"
        " HTTP in default of default: 1, the oldest ready 3 min ago"
    )


async def test_leases_that_nobody_reaps_are_a_problem(pool: Pool, aged: AgedTables, scheduler: None) -> None:
    await aged.connection.execute(
        "INSERT INTO leases (lease_id, lane_id, first_seq, last_seq, expires_at, lease_seconds, partition, worker)"
        " VALUES (1, 1, 1, 2, clock_at() - interval '2 minutes', 9, 0, 'w'), (2, 1, 3, 4, clock_at(), 9, 0, 'w')"
    )
    leases = (await found(pool))["leases"]
    assert leases.level is Level.PROBLEM
    assert leases.what.startswith("1 ran out and were not reaped, the oldest 2 min ago")


async def test_a_timer_long_overdue_is_a_problem_unless_it_waits_for_the_run_before(
    pool: Pool, aged: AgedTables, scheduler: None
) -> None:
    job = await aged.job()
    await aged.timer(job, await aged.now() - 2 * DAY, kind="queued", reason="tick")
    assert (await found(pool))["lag"].what == "no timer is overdue"
    await aged.timer(job, await aged.now() - DAY)
    lag = (await found(pool))["lag"]
    assert lag.level is Level.PROBLEM
    assert "waits for 24 h (job_" in lag.what


async def test_work_that_nobody_draws_is_told_by_queue(pool: Pool, aged: AgedTables, scheduler: None) -> None:
    job = await aged.job()
    for minutes in (10, 20):
        await aged.attempt(job, await aged.now() - timedelta(minutes=minutes), ended=False)
    ready = (await found(pool))["ready work"]
    assert ready.level is Level.WARNING
    assert ready.what.startswith("default of default: 2, oldest due 2")


async def test_a_missing_day_is_told(pool: Pool, aged: AgedTables, scheduler: None) -> None:
    last = max(await aged.days())
    await aged.connection.execute("SELECT drop_day($1)", last)
    days = (await found(pool))["days ahead"]
    assert (days.level, days.what) == (Level.WARNING, f"the ledgers lack {last.isoformat()}")


async def test_dead_letters_want_to_be_looked_at(pool: Pool, aged: AgedTables, scheduler: None) -> None:
    await aged.connection.execute(
        "INSERT INTO dead_letters VALUES (1, clock_at(), 1, 1, 1, clock_at(), 1, 1, 'exhausted')"
    )
    letters = (await found(pool))["dead letters"]
    assert (letters.level, letters.what) == (Level.WARNING, "1")


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (diagnosis.on_clock(0.9), Level.OK),
        (diagnosis.on_clock(-1.1), Level.WARNING),
        (diagnosis.on_connections(79, 100), Level.OK),
        (diagnosis.on_connections(80, 100), Level.WARNING),
        (diagnosis.on_connections(95, 100), Level.PROBLEM),
        (diagnosis.on_snapshot(None), Level.OK),
        (diagnosis.on_snapshot(OldestSnapshot(7, "psql", 299, 5)), Level.OK),
        (diagnosis.on_snapshot(OldestSnapshot(7, "psql", 300, 5)), Level.WARNING),
        (diagnosis.on_snapshot(OldestSnapshot(7, "psql", 3600, 5)), Level.PROBLEM),
        (diagnosis.on_snapshot(OldestSnapshot(None, "the replication slot s", None, 1_000_000)), Level.WARNING),
        (diagnosis.on_schema(None), Level.OK),
        (diagnosis.on_schema("the database lacks x: run y"), Level.PROBLEM),
        (diagnosis.on_versions([__version__]), Level.OK),
        (diagnosis.on_versions([__version__, "0.0.1"]), Level.WARNING),
        (diagnosis.on_partitions(0, ["a"]), Level.OK),
        (diagnosis.on_partitions(3, ["a"]), Level.WARNING),
        (diagnosis.on_partitions(256, []), Level.PROBLEM),
        (diagnosis.on_days([], 3), Level.OK),
        (diagnosis.on_days([date(2026, 6, 9)], 3), Level.WARNING),
        (diagnosis.on_days([date(2026, 6, day) for day in (9, 10, 11, 12)], 3), Level.PROBLEM),
        (diagnosis.on_lag(None), Level.OK),
        (diagnosis.on_lag(OldestDueTimer(7, NOW - timedelta(seconds=9), NOW)), Level.OK),
        (diagnosis.on_lag(OldestDueTimer(7, NOW - timedelta(seconds=10), NOW)), Level.WARNING),
        (diagnosis.on_lag(OldestDueTimer(7, NOW - timedelta(minutes=5), NOW)), Level.PROBLEM),
        (diagnosis.on_leases(StuckLeases(0, None, NOW)), Level.OK),
        (diagnosis.on_leases(StuckLeases(1, NOW - DAY, NOW)), Level.PROBLEM),
        (diagnosis.on_orphans([]), Level.OK),
        (diagnosis.on_orphans([(1, 2)]), Level.PROBLEM),
        (diagnosis.on_unserved([]), Level.OK),
        (diagnosis.on_unserved([UnservedAttempts("t", "q", "h", 1, NOW - DAY, NOW)]), Level.WARNING),
        (diagnosis.on_ready([]), Level.OK),
        (diagnosis.on_ready([ReadyQueue("t", "q", 5, NOW - timedelta(minutes=4), NOW)]), Level.OK),
        (diagnosis.on_ready([ReadyQueue("t", "q", 5, NOW - timedelta(minutes=5), NOW)]), Level.WARNING),
        (diagnosis.on_dead_letters(0), Level.OK),
        (diagnosis.on_dead_letters(10_000), Level.WARNING),
        (diagnosis.on_dead_tuples(DeadTuples(99_999, 0)), Level.OK),
        (diagnosis.on_dead_tuples(DeadTuples(200_000, 300_000)), Level.OK),
        (diagnosis.on_dead_tuples(DeadTuples(300_000, 300_000)), Level.WARNING),
    ],
    ids=lambda value: value.what if isinstance(value, Diagnosis) else "",
)
def test_each_fact_is_judged_by_its_limits(finding: Diagnosis, level: Level) -> None:
    assert finding.level is level
    assert (finding.todo is None) == (level is Level.OK)


def test_one_is_not_told_as_many() -> None:
    archived = diagnosis.on_archive(
        ArchiveMarks(True, "/srv", None, None), ArchiveSummary(1, date(2026, 5, 1)), 0, "/srv"
    )
    assert archived.what == "1 day at /srv, the last 2026-05-01"


@pytest.mark.parametrize(
    ("marks", "waiting", "url", "level"),
    [
        (ArchiveMarks(False, None, None, None), 0, None, Level.OK),
        (ArchiveMarks(False, None, None, None), 0, "/srv", Level.WARNING),
        (ArchiveMarks(True, "/srv", None, None), 0, "/srv", Level.OK),
        (ArchiveMarks(True, "/srv", None, None), 5, "/srv", Level.WARNING),
        (ArchiveMarks(True, "/srv", None, None), 0, None, Level.WARNING),
        (ArchiveMarks(True, "/srv", NOW, "away"), 1, "/srv", Level.WARNING),
        (ArchiveMarks(True, "/srv", NOW, "away"), 5, "/srv", Level.PROBLEM),
    ],
)
def test_an_archive_that_does_not_keep_up_is_told(
    marks: ArchiveMarks, waiting: int, url: str | None, level: Level
) -> None:
    found = diagnosis.on_archive(marks, ArchiveSummary(3, date(2026, 5, 1)), waiting, url)
    assert found.level is level
    assert (found.todo is None) == (level is Level.OK)
