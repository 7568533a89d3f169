import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import asyncpg
import pytest

from engine import PATIENCE_SECONDS
from evertick.domain.errors import InvalidInput
from evertick.roles.janitor import Janitor, JanitorReport, Kept, batch_size
from evertick.store.database import Pool, connect
from evertick.store.engine import members
from evertick.store.maintenance import ledgers
from roles.aged_tables import AgedTables, Job

DAY = timedelta(days=1)
DAY_US = DAY // timedelta(microseconds=1)
HISTORY = timedelta(days=90)
LONG_AGO = timedelta(days=100)


@pytest.fixture
def aged(connection: asyncpg.Connection) -> AgedTables:
    return AgedTables(connection)


class Told(logging.Handler):
    """Sets an event as soon as something is logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.event = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.event.set()


@contextmanager
def told(name: str) -> Iterator[asyncio.Event]:
    handler, logger = Told(), logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield handler.event
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


async def test_a_janitor_removes_nothing_from_a_database_that_may_be_a_restored_copy(
    pool: Pool, aged: AgedTables
) -> None:
    await aged.connection.execute("UPDATE cluster_identity SET suspected_at = clock_at(), suspicion = 'recovered'")
    assert await Janitor(pool, ahead=5).maintain() == JanitorReport(passed=True, days_added=2)


async def test_the_ledgers_have_today_and_the_coming_days(pool: Pool, aged: AgedTables) -> None:
    today = await aged.today()
    for day in await aged.days():
        await aged.connection.execute("SELECT drop_day($1)", day)
    assert (await Janitor(pool, ahead=5).maintain()).days_added == 6
    assert await aged.days() == {today + timedelta(days=ahead) for ahead in range(6)}
    assert (await Janitor(pool, ahead=5).maintain()).days_added == 0


async def test_two_who_add_the_same_day_get_along(pool: Pool, aged: AgedTables) -> None:
    day = await aged.today() + timedelta(days=30)
    added = await asyncio.gather(*(ledgers.add_day(pool, day) for _ in range(8)))
    assert sum(added) == 1
    assert day in await aged.days()


async def test_a_day_is_added_beside_those_who_read_and_write(pool: Pool, aged: AgedTables, database_url: str) -> None:
    other = await connect(database_url)
    async with other.transaction():
        await other.execute("LOCK TABLE attempts, outcomes IN ROW EXCLUSIVE MODE")
        assert (await Janitor(pool, ahead=10).maintain()).days_added == 7
    await other.close()


async def test_a_day_is_added_later_rather_than_waiting_for_a_vacuum(
    pool: Pool, aged: AgedTables, database_url: str
) -> None:
    other = await connect(database_url)
    janitor = Janitor(pool, ahead=10)
    async with other.transaction():
        await other.execute("LOCK TABLE attempts IN SHARE UPDATE EXCLUSIVE MODE")
        assert (await janitor.maintain()).days_added == 0
    assert (await janitor.maintain()).days_added == 7
    await other.close()


async def test_days_go_when_they_are_older_than_history_is_kept(pool: Pool, aged: AgedTables) -> None:
    today = await aged.today()
    kept = await aged.days()
    expired = {today - timedelta(days=days) for days in (92, 93, 400)}
    for day in expired | {today - HISTORY}:
        await aged.day(day)
    report = await Janitor(pool, kept=Kept(HISTORY)).maintain()
    assert (report.days_dropped, report.days_unfinished) == (3, 0)
    assert await aged.days() == kept | {today - HISTORY}


async def test_a_day_is_dropped_later_rather_than_waiting_for_a_long_reader(
    pool: Pool, aged: AgedTables, database_url: str
) -> None:
    await aged.day(await aged.today() - LONG_AGO)
    reader = await connect(database_url)
    async with reader.transaction():
        await reader.execute("SELECT FROM outcomes LIMIT 1")
        assert (await Janitor(pool).maintain()).days_dropped == 0
    assert (await Janitor(pool).maintain()).days_dropped == 1
    await reader.close()


async def _waits_in_its_lane(aged: AgedTables, job: Job, seq: int) -> None:
    await aged.head(job, seq - 1)


async def _is_out_on_a_lease(aged: AgedTables, job: Job, seq: int) -> None:
    await aged.connection.execute(
        "INSERT INTO leases (lease_id, lane_id, first_seq, last_seq, expires_at, lease_seconds, partition, worker)"
        " VALUES (1, $1, $2, $3, clock_at(), 9, 7, 'w')",
        job.lane_id,
        seq - 10 * DAY_US,
        seq + 10 * DAY_US,
    )


async def _waits_for_its_retry(aged: AgedTables, job: Job, seq: int) -> None:
    await aged.connection.execute(
        "INSERT INTO open_runs (job_id, fire_at, lane_id, seq) VALUES ($1, clock_at(), $2, $3)",
        job.job_id,
        job.lane_id,
        seq,
    )


@pytest.mark.parametrize("unfinished", [_waits_in_its_lane, _is_out_on_a_lease, _waits_for_its_retry])
async def test_a_day_with_an_unfinished_run_stays(
    pool: Pool, aged: AgedTables, unfinished: Callable[[AgedTables, Job, int], Awaitable[None]]
) -> None:
    job = await aged.job(age=LONG_AGO)
    old_at = await aged.now() - LONG_AGO
    seq = await aged.attempt(job, old_at, ended=False)
    await aged.head(job, seq)
    await unfinished(aged, job, seq)
    report = await Janitor(pool).maintain()
    assert (report.days_dropped, report.days_unfinished) == (0, 1)
    assert old_at.date() in await aged.days()


async def test_a_day_that_others_have_unfinished_runs_after_goes(pool: Pool, aged: AgedTables) -> None:
    job = await aged.job(age=LONG_AGO)
    old_at = await aged.now() - LONG_AGO
    await aged.head(job, await aged.attempt(job, old_at, ended=True))
    seq = await aged.attempt(job, old_at + timedelta(days=1), ended=False)
    await _waits_for_its_retry(aged, job, seq)
    report = await Janitor(pool).maintain()
    assert (report.days_dropped, report.days_unfinished) == (1, 1)
    assert old_at.date() not in await aged.days()


async def test_rows_that_are_older_than_history_go_in_batches(
    pool: Pool, aged: AgedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size, "MAX_ROWS", 3)
    now = await aged.now()
    job = await aged.job()
    await aged.timer(job, now + DAY)
    for number in range(10):
        await aged.gap(job, now - LONG_AGO - number * DAY, now - LONG_AGO)
    await aged.gap(job, now - DAY, now - DAY)
    for at in (now - LONG_AGO, now - DAY):
        await aged.connection.execute("INSERT INTO withdrawals VALUES ($1, $2, $2, 1, 'tick')", job.job_id, at)
        await aged.connection.execute(
            "INSERT INTO requested_runs VALUES ($1, $2, $2, NULL, false, NULL)", job.job_id, at
        )
    assert (await Janitor(pool).maintain()).rows_pruned == 12
    assert [await aged.count(table) for table in ("gaps", "withdrawals", "requested_runs")] == [1, 1, 1]


async def test_the_audit_log_dead_letters_and_replays_are_kept_for_their_own_time(pool: Pool, aged: AgedTables) -> None:
    job = await aged.job()
    now = await aged.now()
    await aged.timer(job, now + DAY)
    for days in (5, 15, 25, 35):
        at = now - days * DAY
        await aged.connection.execute(
            "INSERT INTO audit_log (tenant_id, changed_at, actor, action) VALUES (1, $1, 'key', 'edit')", at
        )
        await aged.connection.execute(
            "INSERT INTO dead_letters VALUES ($1, $2, 1, 1, 1, $2, 1, 1, 'exhausted')", job.job_id, at
        )
        for status, finished_at in (("done", at), ("running", None)):
            await aged.connection.execute(
                "INSERT INTO replays (tenant_id, created_at, finished_at, next_batch_at, died_from, reached_died_at,"
                " reached_job_id, reached_fire_at, rate_per_second, status, actor)"
                " VALUES (1, $1, $2, $1, $1, $1, 1, $1, 1, $3, 'key')",
                at, finished_at, status,
            )  # fmt: skip
    kept = Kept(history=10 * DAY, audit_log=20 * DAY, dead_letters=30 * DAY)
    assert (await Janitor(pool, kept=kept).maintain()).rows_pruned == 2 + 1 + 3
    assert [await aged.count(table) for table in ("audit_log", "dead_letters", "replays")] == [2, 3, 1 + 4]
    freed = await aged.connection.fetchval("SELECT sum(bytes) FROM storage_sums")
    assert freed == -(2 * 500 + 3 * 500)


@pytest.mark.parametrize("needed_by", ["open_runs", "timers", "dead_letters"])
async def test_the_payload_of_a_requested_run_stays_while_it_may_be_needed(
    pool: Pool, aged: AgedTables, needed_by: str
) -> None:
    job = await aged.job()
    at = await aged.now() - LONG_AGO
    await aged.timer(job, at + 2 * LONG_AGO)
    await aged.connection.execute("INSERT INTO requested_runs VALUES ($1, $2, $2, NULL, true, '1')", job.job_id, at)
    match needed_by:
        case "open_runs":
            await aged.connection.execute("INSERT INTO open_runs VALUES ($1, $2, 1, 1)", job.job_id, at)
        case "timers":
            await aged.timer(job, at, kind="retry", reason="manual")
        case _:
            await aged.connection.execute(
                "INSERT INTO dead_letters VALUES ($1, $2, 1, 1, 1, $2, 1, 1, 'exhausted')", job.job_id, at
            )
    assert (await Janitor(pool).maintain()).rows_pruned == 0
    assert await aged.count("requested_runs") == 1


async def test_a_job_that_was_deleted_long_ago_goes_with_all_that_is_left_of_it(pool: Pool, aged: AgedTables) -> None:
    old = await aged.job(age=2 * LONG_AGO, status="deleted", deleted=LONG_AGO)
    recent = await aged.job(age=LONG_AGO, status="deleted", deleted=DAY)
    now = await aged.now()
    await aged.head(old, await aged.attempt(old, now - 2 * LONG_AGO, ended=True))
    for job in (old, recent):
        await aged.finished(job, LONG_AGO)
        await aged.gap(job, now - DAY, now - DAY)
        await aged.connection.execute(
            "INSERT INTO dead_letters VALUES ($1, $2, 1, 1, 1, $2, 1, 1, 'exhausted')", job.job_id, now
        )
    assert (await Janitor(pool).maintain()).jobs_purged == 1
    for table in ("jobs", "job_versions", "finished_jobs", "dead_letters", "gaps"):
        assert [row["job_id"] for row in await aged.connection.fetch(f"SELECT job_id FROM {table}")] == [recent.job_id]


async def test_a_deleted_job_stays_while_an_attempt_of_it_is_open(pool: Pool, aged: AgedTables) -> None:
    job = await aged.job(age=2 * LONG_AGO, status="deleted", deleted=LONG_AGO)
    await aged.attempt(job, await aged.now() - 2 * LONG_AGO, ended=False)
    assert (await Janitor(pool).maintain()).jobs_purged == 0
    assert await aged.status(job) == "deleted"


async def test_a_finished_one_off_is_removed_when_it_was_kept_for_long_enough(pool: Pool, aged: AgedTables) -> None:
    soon = await aged.job("in 1m", retain_seconds=60)
    later = await aged.job("in 1m")
    for job in (soon, later):
        await aged.attempt(job, await aged.now() - timedelta(hours=2), ended=True)
        await aged.finished(job, timedelta(hours=2))
    assert (await Janitor(pool).maintain()).one_offs_removed == 1
    assert [await aged.status(job) for job in (soon, later)] == ["deleted", "active"]
    assert await aged.count("attempts") == 2, "its history stays"
    assert await aged.count("finished_jobs") == 1


async def test_all_finished_one_offs_are_found_page_by_page(
    pool: Pool, aged: AgedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size, "MAX_ROWS", 2)
    for _ in range(7):
        await aged.finished(await aged.job("in 1m"), 2 * DAY)
    assert (await Janitor(pool).maintain()).one_offs_removed == 7


async def test_a_recurring_job_that_ended_stays(pool: Pool, aged: AgedTables) -> None:
    end_at = (await aged.now() - DAY).isoformat(timespec="seconds")
    job = await aged.job("@hourly", end_at=end_at)
    await aged.finished(job, LONG_AGO)
    assert (await Janitor(pool).maintain()).one_offs_removed == 0
    assert await aged.status(job) == "active"


@pytest.mark.parametrize("still", ["waits in its lane", "waits for a retry", "was triggered"])
async def test_a_finished_one_off_stays_while_something_of_it_waits_or_runs(
    pool: Pool, aged: AgedTables, still: str
) -> None:
    job = await aged.job("in 1m", retain_seconds=0)
    await aged.finished(job, 2 * DAY)
    now = await aged.now()
    match still:
        case "waits in its lane":
            await aged.attempt(job, now - DAY, ended=False)
        case "waits for a retry":
            await aged.connection.execute("INSERT INTO open_runs VALUES ($1, $2, 1, 1)", job.job_id, now)
        case _:
            await aged.timer(job, now, kind="manual", reason="manual")
    assert (await Janitor(pool).maintain()).one_offs_removed == 0
    assert await aged.status(job) == "active"


async def test_a_one_off_that_is_being_changed_is_left_for_the_next_round(
    pool: Pool, aged: AgedTables, database_url: str
) -> None:
    job = await aged.job("in 1m")
    await aged.finished(job, 2 * DAY)
    editor = await connect(database_url)
    async with editor.transaction():
        await editor.execute("SELECT FROM jobs WHERE job_id = $1 FOR UPDATE", job.job_id)
        assert (await Janitor(pool).maintain()).one_offs_removed == 0
    assert (await Janitor(pool).maintain()).one_offs_removed == 1
    await editor.close()


async def test_partitioned_tables_are_analysed_when_the_first_rows_came_and_not_again_at_once(
    pool: Pool, aged: AgedTables
) -> None:
    assert (await Janitor(pool).maintain()).tables_analyzed == 0
    await aged.timer(await aged.job(), await aged.now() + DAY)
    await _see_statistics(aged)
    assert (await Janitor(pool).maintain()).tables_analyzed == 1
    await _see_statistics(aged)
    assert await aged.connection.fetchval("SELECT reltuples FROM pg_class WHERE relname = 'timers'") == 1
    assert (await Janitor(pool).maintain()).tables_analyzed == 0


async def _see_statistics(aged: AgedTables) -> None:
    """What this session wrote is counted when it goes idle; the others must not read an older count."""
    await aged.connection.execute("SELECT pg_stat_force_next_flush()")
    await aged.connection.execute("SELECT 1")


async def test_one_janitor_works_at_a_time(pool: Pool) -> None:
    async with members.only_janitor(pool) as is_ours:
        assert is_ours
        assert await Janitor(pool).maintain() == JanitorReport(passed=True)
    assert not (await Janitor(pool).maintain()).passed


async def test_a_janitor_at_work_holds_up_no_vacuum(pool: Pool, aged: AgedTables) -> None:
    async with members.only_janitor(pool):
        held = await aged.connection.fetch(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"  # autovacuum may be at work
            " AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)"
        )
        assert held == []


async def test_once_started_it_keeps_house_by_itself_until_it_is_stopped(pool: Pool, aged: AgedTables) -> None:
    janitor = Janitor(pool, ahead=20)
    with told("evertick.janitor") as kept_house:
        janitor.start()
        await asyncio.wait_for(kept_house.wait(), PATIENCE_SECONDS)
    await janitor.stop()
    assert await aged.today() + timedelta(days=20) in await aged.days()


async def test_a_janitor_that_is_stopped_leaves_off_at_once(pool: Pool, aged: AgedTables, database_url: str) -> None:
    await aged.connection.execute(
        "INSERT INTO nodes VALUES ('old', '', '', clock_at(), clock_at() - interval '9 days')"
    )
    other = await connect(database_url)
    janitor = Janitor(pool)
    async with other.transaction():
        await other.execute("SELECT FROM nodes FOR UPDATE")
        janitor.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await aged.connection.fetchval(waits, other.get_server_pid()):
                pass
        await asyncio.wait_for(janitor.stop(), PATIENCE_SECONDS)
    assert not (await Janitor(pool).maintain()).passed, "its turn is over"
    await other.close()


@pytest.mark.parametrize("bad", [{"kept": Kept(timedelta(hours=1))}, {"ahead": 0}])
async def test_a_history_or_lead_too_short_to_work_with_is_refused(pool: Pool, bad: dict[str, Kept]) -> None:
    with pytest.raises(InvalidInput, match="must be at least"):
        Janitor(pool, **bad)  # type: ignore[arg-type]


async def test_a_report_reads_as_a_sentence() -> None:
    assert str(JanitorReport()) == "nothing to do"
    assert str(JanitorReport(days_added=3, rows_pruned=12)) == "days added 3, rows pruned 12"
