import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import asyncpg
import pytest

from evertick.domain.errors import InvalidInput
from evertick.roles.janitor import Janitor, Report, pace
from evertick.store import ledgers, members
from evertick.store.database import Pool, connect
from roles.household import Household, Job

DAY = timedelta(days=1)
DAY_US = DAY // timedelta(microseconds=1)
HISTORY = timedelta(days=90)
LONG_AGO = timedelta(days=100)


@pytest.fixture
def house(connection: asyncpg.Connection) -> Household:
    return Household(connection)


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


async def test_the_ledgers_have_today_and_the_coming_days(pool: Pool, house: Household) -> None:
    today = await house.today()
    for day in await house.days():
        await house.connection.execute("SELECT drop_day($1)", day)
    assert (await Janitor(pool, ahead=5).keep_house()).days_added == 6
    assert await house.days() == {today + timedelta(days=ahead) for ahead in range(6)}
    assert (await Janitor(pool, ahead=5).keep_house()).days_added == 0


async def test_two_who_add_the_same_day_get_along(pool: Pool, house: Household) -> None:
    day = await house.today() + timedelta(days=30)
    added = await asyncio.gather(*(ledgers.add_day(pool, day) for _ in range(8)))
    assert sum(added) == 1
    assert day in await house.days()


async def test_a_day_is_added_beside_those_who_read_and_write(pool: Pool, house: Household, database_url: str) -> None:
    other = await connect(database_url)
    async with other.transaction():
        await other.execute("LOCK TABLE attempts, outcomes IN ROW EXCLUSIVE MODE")
        assert (await Janitor(pool, ahead=10).keep_house()).days_added == 7
    await other.close()


async def test_a_day_is_added_later_rather_than_waiting_for_a_vacuum(
    pool: Pool, house: Household, database_url: str
) -> None:
    other = await connect(database_url)
    janitor = Janitor(pool, ahead=10)
    async with other.transaction():
        await other.execute("LOCK TABLE attempts IN SHARE UPDATE EXCLUSIVE MODE")
        assert (await janitor.keep_house()).days_added == 0
    assert (await janitor.keep_house()).days_added == 7
    await other.close()


async def test_days_go_when_they_are_older_than_history_is_kept(pool: Pool, house: Household) -> None:
    today = await house.today()
    kept = await house.days()
    expired = {today - timedelta(days=days) for days in (92, 93, 400)}
    for day in expired | {today - HISTORY}:
        await house.day(day)
    report = await Janitor(pool, history=HISTORY).keep_house()
    assert (report.days_dropped, report.days_unfinished) == (3, 0)
    assert await house.days() == kept | {today - HISTORY}


async def test_a_day_is_dropped_later_rather_than_waiting_for_a_long_reader(
    pool: Pool, house: Household, database_url: str
) -> None:
    await house.day(await house.today() - LONG_AGO)
    reader = await connect(database_url)
    async with reader.transaction():
        await reader.execute("SELECT FROM outcomes LIMIT 1")
        assert (await Janitor(pool).keep_house()).days_dropped == 0
    assert (await Janitor(pool).keep_house()).days_dropped == 1
    await reader.close()


async def _waits_in_its_lane(house: Household, job: Job, seq: int) -> None:
    await house.head(job, seq - 1)


async def _is_out_on_a_lease(house: Household, job: Job, seq: int) -> None:
    await house.connection.execute(
        "INSERT INTO leases (lease_id, lane_id, first_seq, last_seq, expires_at, lease_seconds, partition, worker)"
        " VALUES (1, $1, $2, $3, clock_at(), 9, 7, 'w')",
        job.lane_id,
        seq - 10 * DAY_US,
        seq + 10 * DAY_US,
    )


async def _waits_for_its_retry(house: Household, job: Job, seq: int) -> None:
    await house.connection.execute(
        "INSERT INTO open_runs (job_id, fire_at, lane_id, seq) VALUES ($1, clock_at(), $2, $3)",
        job.job_id,
        job.lane_id,
        seq,
    )


@pytest.mark.parametrize("unfinished", [_waits_in_its_lane, _is_out_on_a_lease, _waits_for_its_retry])
async def test_a_day_with_an_unfinished_run_stays(
    pool: Pool, house: Household, unfinished: Callable[[Household, Job, int], Awaitable[None]]
) -> None:
    job = await house.job(age=LONG_AGO)
    old_at = await house.now() - LONG_AGO
    seq = await house.attempt(job, old_at, ended=False)
    await house.head(job, seq)
    await unfinished(house, job, seq)
    report = await Janitor(pool).keep_house()
    assert (report.days_dropped, report.days_unfinished) == (0, 1)
    assert old_at.date() in await house.days()


async def test_a_day_that_others_have_unfinished_runs_after_goes(pool: Pool, house: Household) -> None:
    job = await house.job(age=LONG_AGO)
    old_at = await house.now() - LONG_AGO
    await house.head(job, await house.attempt(job, old_at, ended=True))
    seq = await house.attempt(job, old_at + timedelta(days=1), ended=False)
    await _waits_for_its_retry(house, job, seq)
    report = await Janitor(pool).keep_house()
    assert (report.days_dropped, report.days_unfinished) == (1, 1)
    assert old_at.date() not in await house.days()


async def test_rows_that_are_older_than_history_go_in_batches(
    pool: Pool, house: Household, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "MOST", 3)
    now = await house.now()
    job = await house.job()
    await house.timer(job, now + DAY)
    for number in range(10):
        await house.gap(job, now - LONG_AGO - number * DAY, now - LONG_AGO)
    await house.gap(job, now - DAY, now - DAY)
    for at in (now - LONG_AGO, now - DAY):
        await house.connection.execute("INSERT INTO withdrawals VALUES ($1, $2, $2, 1, 'tick')", job.job_id, at)
        await house.connection.execute(
            "INSERT INTO requested_runs VALUES ($1, $2, $2, NULL, false, NULL)", job.job_id, at
        )
    assert (await Janitor(pool).keep_house()).rows_pruned == 12
    assert [await house.count(table) for table in ("gaps", "withdrawals", "requested_runs")] == [1, 1, 1]


@pytest.mark.parametrize("needed_by", ["open_runs", "timers", "dead_letters"])
async def test_the_payload_of_a_requested_run_stays_while_it_may_be_needed(
    pool: Pool, house: Household, needed_by: str
) -> None:
    job = await house.job()
    at = await house.now() - LONG_AGO
    await house.timer(job, at + 2 * LONG_AGO)
    await house.connection.execute("INSERT INTO requested_runs VALUES ($1, $2, $2, NULL, true, '1')", job.job_id, at)
    match needed_by:
        case "open_runs":
            await house.connection.execute("INSERT INTO open_runs VALUES ($1, $2, 1, 1)", job.job_id, at)
        case "timers":
            await house.timer(job, at, kind="retry", reason="manual")
        case _:
            await house.connection.execute(
                "INSERT INTO dead_letters VALUES ($1, $2, 1, 1, 1, $2, 1, 1, 'exhausted')", job.job_id, at
            )
    assert (await Janitor(pool).keep_house()).rows_pruned == 0
    assert await house.count("requested_runs") == 1


async def test_a_job_that_was_deleted_long_ago_goes_with_all_that_is_left_of_it(pool: Pool, house: Household) -> None:
    old = await house.job(age=2 * LONG_AGO, status="deleted", deleted=LONG_AGO)
    recent = await house.job(age=LONG_AGO, status="deleted", deleted=DAY)
    now = await house.now()
    await house.head(old, await house.attempt(old, now - 2 * LONG_AGO, ended=True))
    for job in (old, recent):
        await house.finished(job, LONG_AGO)
        await house.gap(job, now - DAY, now - DAY)
        await house.connection.execute(
            "INSERT INTO dead_letters VALUES ($1, $2, 1, 1, 1, $2, 1, 1, 'exhausted')", job.job_id, now
        )
    assert (await Janitor(pool).keep_house()).jobs_purged == 1
    for table in ("jobs", "job_versions", "finished_jobs", "dead_letters", "gaps"):
        assert [row["job_id"] for row in await house.connection.fetch(f"SELECT job_id FROM {table}")] == [recent.job_id]


async def test_a_deleted_job_stays_while_an_attempt_of_it_is_open(pool: Pool, house: Household) -> None:
    job = await house.job(age=2 * LONG_AGO, status="deleted", deleted=LONG_AGO)
    await house.attempt(job, await house.now() - 2 * LONG_AGO, ended=False)
    assert (await Janitor(pool).keep_house()).jobs_purged == 0
    assert await house.status(job) == "deleted"


async def test_a_finished_one_off_is_removed_when_it_was_kept_for_long_enough(pool: Pool, house: Household) -> None:
    soon = await house.job("in 1m", retain_seconds=60)
    later = await house.job("in 1m")
    for job in (soon, later):
        await house.attempt(job, await house.now() - timedelta(hours=2), ended=True)
        await house.finished(job, timedelta(hours=2))
    assert (await Janitor(pool).keep_house()).one_offs_removed == 1
    assert [await house.status(job) for job in (soon, later)] == ["deleted", "active"]
    assert await house.count("attempts") == 2, "its history stays"
    assert await house.count("finished_jobs") == 1


async def test_all_finished_one_offs_are_found_page_by_page(
    pool: Pool, house: Household, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "MOST", 2)
    for _ in range(7):
        await house.finished(await house.job("in 1m"), 2 * DAY)
    assert (await Janitor(pool).keep_house()).one_offs_removed == 7


async def test_a_recurring_job_that_ended_stays(pool: Pool, house: Household) -> None:
    end_at = (await house.now() - DAY).isoformat(timespec="seconds")
    job = await house.job("@hourly", end_at=end_at)
    await house.finished(job, LONG_AGO)
    assert (await Janitor(pool).keep_house()).one_offs_removed == 0
    assert await house.status(job) == "active"


@pytest.mark.parametrize("still", ["waits in its lane", "waits for a retry", "was triggered"])
async def test_a_finished_one_off_stays_while_something_of_it_waits_or_runs(
    pool: Pool, house: Household, still: str
) -> None:
    job = await house.job("in 1m", retain_seconds=0)
    await house.finished(job, 2 * DAY)
    now = await house.now()
    match still:
        case "waits in its lane":
            await house.attempt(job, now - DAY, ended=False)
        case "waits for a retry":
            await house.connection.execute("INSERT INTO open_runs VALUES ($1, $2, 1, 1)", job.job_id, now)
        case _:
            await house.timer(job, now, kind="manual", reason="manual")
    assert (await Janitor(pool).keep_house()).one_offs_removed == 0
    assert await house.status(job) == "active"


async def test_a_one_off_that_is_being_changed_is_left_for_the_next_round(
    pool: Pool, house: Household, database_url: str
) -> None:
    job = await house.job("in 1m")
    await house.finished(job, 2 * DAY)
    editor = await connect(database_url)
    async with editor.transaction():
        await editor.execute("SELECT FROM jobs WHERE job_id = $1 FOR UPDATE", job.job_id)
        assert (await Janitor(pool).keep_house()).one_offs_removed == 0
    assert (await Janitor(pool).keep_house()).one_offs_removed == 1
    await editor.close()


async def test_partitioned_tables_are_analysed_when_the_first_rows_came_and_not_again_at_once(
    pool: Pool, house: Household
) -> None:
    assert (await Janitor(pool).keep_house()).tables_analyzed == 0
    await house.timer(await house.job(), await house.now() + DAY)
    await _see_statistics(house)
    assert (await Janitor(pool).keep_house()).tables_analyzed == 1
    await _see_statistics(house)
    assert await house.connection.fetchval("SELECT reltuples FROM pg_class WHERE relname = 'timers'") == 1
    assert (await Janitor(pool).keep_house()).tables_analyzed == 0


async def _see_statistics(house: Household) -> None:
    """What this session wrote is counted when it goes idle; the others must not read an older count."""
    await house.connection.execute("SELECT pg_stat_force_next_flush()")
    await house.connection.execute("SELECT 1")


async def test_one_janitor_works_at_a_time(pool: Pool) -> None:
    async with members.only_janitor(pool) as is_ours:
        assert is_ours
        assert await Janitor(pool).keep_house() == Report(passed=True)
    assert not (await Janitor(pool).keep_house()).passed


async def test_a_janitor_at_work_holds_up_no_vacuum(pool: Pool, house: Household) -> None:
    async with members.only_janitor(pool):
        held = await house.connection.fetch(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)"
        )
        assert held == []


async def test_once_started_it_keeps_house_by_itself_until_it_is_stopped(pool: Pool, house: Household) -> None:
    janitor = Janitor(pool, ahead=20)
    with told("evertick.janitor") as kept_house:
        janitor.start()
        await asyncio.wait_for(kept_house.wait(), 30)
    await janitor.stop()
    assert await house.today() + timedelta(days=20) in await house.days()


async def test_a_janitor_that_is_stopped_leaves_off_at_once(pool: Pool, house: Household, database_url: str) -> None:
    await house.connection.execute(
        "INSERT INTO nodes VALUES ('old', '', '', clock_at(), clock_at() - interval '9 days')"
    )
    other = await connect(database_url)
    janitor = Janitor(pool)
    async with other.transaction():
        await other.execute("SELECT FROM nodes FOR UPDATE")
        janitor.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))"
        async with asyncio.timeout(30):
            while not await house.connection.fetchval(waits, other.get_server_pid()):
                pass
        await asyncio.wait_for(janitor.stop(), 30)
    assert not (await Janitor(pool).keep_house()).passed, "its turn is over"
    await other.close()


@pytest.mark.parametrize("bad", [{"history": timedelta(hours=1)}, {"ahead": 0}])
async def test_a_history_or_lead_too_short_to_work_with_is_refused(pool: Pool, bad: dict[str, timedelta]) -> None:
    with pytest.raises(InvalidInput, match="must be at least"):
        Janitor(pool, **bad)  # type: ignore[arg-type]


async def test_a_report_reads_as_a_sentence() -> None:
    assert str(Report()) == "nothing to do"
    assert str(Report(days_added=3, rows_pruned=12)) == "days added 3, rows pruned 12"
