import itertools
import logging
from datetime import timedelta

import asyncpg
import pytest

from evertick.roles.janitor import Janitor, Kept, batch_size, maintenance
from evertick.roles.janitor.maintenance import RepairProgress
from evertick.store.database import Pool, connect
from evertick.store.engine.lanes import queue_of
from roles.aged_tables import AgedTables

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def aged(connection: asyncpg.Connection) -> AgedTables:
    return AgedTables(connection)


async def test_a_job_that_lost_its_timer_goes_on_after_its_last_tick(pool: Pool, aged: AgedTables) -> None:
    job = await aged.job("@hourly", priority="high")
    last_at = (await aged.now() - 3 * HOUR).replace(minute=0, second=0, microsecond=0)
    seq = await aged.attempt(job, last_at, ended=True)
    await aged.attempt(job, last_at + 2 * HOUR, ended=True, reason="manual")
    assert (await Janitor(pool).maintain()).timers_repaired == 1
    tick = await aged.tick(job)
    assert tick is not None
    assert tick["fire_at"] == tick["due_at"] == last_at + HOUR, "what was missed since is missed like any other"
    assert (tick["last_lane"], tick["last_seq"]) == (job.lane_id, seq)
    assert (tick["partition"], tick["priority"], tick["spec_version"]) == (7, 0, 1)
    assert tick["queue_id"] == queue_of(job.lane_id)
    assert (await Janitor(pool).maintain()).timers_repaired == 0


@pytest.mark.parametrize("how", ["a gap", "a run that waits", "a withdrawn run"])
async def test_ticks_that_are_accounted_for_otherwise_are_not_brought_up_again(
    pool: Pool, aged: AgedTables, how: str
) -> None:
    job = await aged.job("@hourly")
    last_at = (await aged.now() - 3 * HOUR).replace(minute=0, second=0, microsecond=0)
    match how:
        case "a gap":
            await aged.gap(job, last_at - HOUR, last_at)
        case "a run that waits":
            await aged.timer(job, last_at, kind="queued", reason="tick")
        case _:
            await aged.connection.execute(
                "INSERT INTO withdrawals VALUES ($1, $2, clock_at(), 1, 'tick')", job.job_id, last_at
            )
    assert (await Janitor(pool).maintain()).timers_repaired == 1
    tick = await aged.tick(job)
    assert tick is not None
    assert tick["fire_at"] == last_at + HOUR


async def test_a_job_that_never_ran_begins_where_its_spec_does(pool: Pool, aged: AgedTables) -> None:
    job = await aged.job("@hourly", age=2 * HOUR)
    await Janitor(pool).maintain()
    tick = await aged.tick(job)
    assert tick is not None
    assert timedelta(0) < tick["fire_at"] - (await aged.now() - 2 * HOUR) <= HOUR


async def test_what_history_has_forgotten_is_not_brought_up_again(pool: Pool, aged: AgedTables) -> None:
    job = await aged.job("@hourly", age=timedelta(days=500))
    await Janitor(pool, kept=Kept(DAY)).maintain()
    tick = await aged.tick(job)
    assert tick is not None
    assert timedelta(0) < tick["fire_at"] - (await aged.now() - DAY) <= HOUR


async def test_jitter_moves_the_due_time_as_ever(pool: Pool, aged: AgedTables) -> None:
    job = await aged.job("@hourly", jitter_seconds=600)
    await Janitor(pool).maintain()
    tick = await aged.tick(job)
    assert tick is not None
    assert timedelta(0) < tick["due_at"] - tick["fire_at"] < timedelta(minutes=10)


async def test_the_timer_of_a_paused_job_waits_for_ever(pool: Pool, aged: AgedTables) -> None:
    job = await aged.job(status="paused")
    await Janitor(pool).maintain()
    assert await aged.connection.fetchval("SELECT due_at = 'infinity' FROM timers WHERE job_id = $1", job.job_id)


async def test_a_one_off_that_never_ran_gets_its_instant_back(pool: Pool, aged: AgedTables) -> None:
    job = await aged.job("in 3d", age=2 * DAY)
    created_at = await aged.connection.fetchval("SELECT created_at FROM jobs")
    assert (await Janitor(pool).maintain()).timers_repaired == 1
    tick = await aged.tick(job)
    assert tick is not None
    assert tick["fire_at"] == created_at + 3 * DAY


async def test_a_one_off_that_ran_is_finished(pool: Pool, aged: AgedTables) -> None:
    job = await aged.job("in 1m")
    await aged.attempt(job, await aged.now() - DAY, ended=True)
    report = await Janitor(pool).maintain()
    assert (report.timers_repaired, report.jobs_finished) == (0, 1)
    assert await aged.count("finished_jobs") == 1


async def test_a_job_whose_window_has_closed_is_finished(pool: Pool, aged: AgedTables) -> None:
    end_at = (await aged.now() - DAY).isoformat(timespec="seconds")
    job = await aged.job("@hourly", end_at=end_at)
    await aged.attempt(job, (await aged.now() - DAY).replace(minute=0, second=0, microsecond=0), ended=True)
    assert (await Janitor(pool).maintain()).jobs_finished == 1


async def test_jobs_that_need_no_timer_and_fresh_ones_are_left_alone(pool: Pool, aged: AgedTables) -> None:
    await aged.job("manual")
    await aged.job(status="deleted")
    await aged.job(age=timedelta(seconds=5))
    await aged.finished(await aged.job(end_at="2999-01-01T00:00:00Z"), timedelta(0))
    await aged.timer(await aged.job(), await aged.now() + DAY)
    report = await Janitor(pool).maintain()
    assert (report.timers_repaired, report.jobs_finished) == (0, 0)
    assert await aged.count("timers") == 1


async def test_a_job_that_is_being_edited_is_left_for_the_next_round(
    pool: Pool, aged: AgedTables, database_url: str
) -> None:
    job = await aged.job()
    editor = await connect(database_url)
    async with editor.transaction():
        await editor.execute("SELECT FROM jobs WHERE job_id = $1 FOR UPDATE", job.job_id)
        assert (await Janitor(pool).maintain()).timers_repaired == 0
    assert (await Janitor(pool).maintain()).timers_repaired == 1
    await editor.close()


async def test_all_jobs_are_looked_at_page_by_page(
    pool: Pool, aged: AgedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size, "MAX_ROWS", 2)
    for _ in range(5):
        await aged.job()
    assert (await Janitor(pool).maintain()).timers_repaired == 5


async def test_a_look_at_all_jobs_is_spread_over_several_rounds(
    pool: Pool, aged: AgedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size, "MAX_ROWS", 2)
    seconds = itertools.count()  # one goes by with each look at the clock
    for _ in range(5):
        await aged.job()
    progress = RepairProgress(after_id=0)
    before_at = await aged.now() - DAY
    repaired = [
        await maintenance.repair_timers(pool, before_at, progress, 2, monotonic=seconds.__next__) for _ in range(5)
    ]
    assert [each.timers for each in repaired] == [2, 2, 1, 0, 0]
    assert progress.after_id is None


async def test_a_rule_that_cannot_be_read_stops_nobody_else(
    pool: Pool, aged: AgedTables, caplog: pytest.LogCaptureFixture
) -> None:
    broken = await aged.job("@daily")
    await aged.connection.execute("""UPDATE rules SET canonical = '{"spec": {"kind": "lunar"}}'""")
    whole = await aged.job("@hourly")
    with caplog.at_level(logging.WARNING, "evertick.janitor"):
        assert (await Janitor(pool).maintain()).timers_repaired == 1
    assert await aged.tick(broken) is None
    assert await aged.tick(whole) is not None
    assert "cannot be planned anew" in caplog.text
    assert "1 jobs had lost their timer: 1 got it back" in caplog.text
