import logging
from datetime import timedelta

import asyncpg
import pytest

from evertick.roles.janitor import Janitor, chores, pace
from evertick.roles.janitor.chores import Rounds
from evertick.store.database import Pool, connect
from roles.household import Household

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def house(connection: asyncpg.Connection) -> Household:
    return Household(connection)


async def test_a_job_that_lost_its_timer_goes_on_after_its_last_tick(pool: Pool, house: Household) -> None:
    job = await house.job("@hourly", priority="high")
    last_at = (await house.now() - 3 * HOUR).replace(minute=0, second=0, microsecond=0)
    seq = await house.attempt(job, last_at, ended=True)
    await house.attempt(job, last_at + 2 * HOUR, ended=True, reason="manual")
    assert (await Janitor(pool).keep_house()).timers_healed == 1
    tick = await house.tick(job)
    assert tick is not None
    assert tick["fire_at"] == tick["due_at"] == last_at + HOUR, "what was missed since is missed like any other"
    assert (tick["last_lane"], tick["last_seq"]) == (job.lane_id, seq)
    assert (tick["partition"], tick["priority"], tick["spec_version"]) == (7, 0, 1)
    assert tick["queue_id"] == job.lane_id >> 10
    assert (await Janitor(pool).keep_house()).timers_healed == 0


@pytest.mark.parametrize("how", ["a gap", "a run that waits", "a withdrawn run"])
async def test_ticks_that_are_accounted_for_otherwise_are_not_brought_up_again(
    pool: Pool, house: Household, how: str
) -> None:
    job = await house.job("@hourly")
    last_at = (await house.now() - 3 * HOUR).replace(minute=0, second=0, microsecond=0)
    match how:
        case "a gap":
            await house.gap(job, last_at - HOUR, last_at)
        case "a run that waits":
            await house.timer(job, last_at, kind="queued", reason="tick")
        case _:
            await house.connection.execute(
                "INSERT INTO withdrawals VALUES ($1, $2, clock_at(), 1, 'tick')", job.job_id, last_at
            )
    assert (await Janitor(pool).keep_house()).timers_healed == 1
    tick = await house.tick(job)
    assert tick is not None
    assert tick["fire_at"] == last_at + HOUR


async def test_a_job_that_never_ran_begins_where_its_spec_does(pool: Pool, house: Household) -> None:
    job = await house.job("@hourly", age=2 * HOUR)
    await Janitor(pool).keep_house()
    tick = await house.tick(job)
    assert tick is not None
    assert timedelta(0) < tick["fire_at"] - (await house.now() - 2 * HOUR) <= HOUR


async def test_what_history_has_forgotten_is_not_brought_up_again(pool: Pool, house: Household) -> None:
    job = await house.job("@hourly", age=timedelta(days=500))
    await Janitor(pool, history=DAY).keep_house()
    tick = await house.tick(job)
    assert tick is not None
    assert timedelta(0) < tick["fire_at"] - (await house.now() - DAY) <= HOUR


async def test_jitter_moves_the_due_time_as_ever(pool: Pool, house: Household) -> None:
    job = await house.job("@hourly", jitter_seconds=600)
    await Janitor(pool).keep_house()
    tick = await house.tick(job)
    assert tick is not None
    assert timedelta(0) < tick["due_at"] - tick["fire_at"] < timedelta(minutes=10)


async def test_the_timer_of_a_paused_job_waits_for_ever(pool: Pool, house: Household) -> None:
    job = await house.job(status="paused")
    await Janitor(pool).keep_house()
    assert await house.connection.fetchval("SELECT due_at = 'infinity' FROM timers WHERE job_id = $1", job.job_id)


async def test_a_one_off_that_never_ran_gets_its_instant_back(pool: Pool, house: Household) -> None:
    job = await house.job("in 3d", age=2 * DAY)
    created_at = await house.connection.fetchval("SELECT created_at FROM jobs")
    assert (await Janitor(pool).keep_house()).timers_healed == 1
    tick = await house.tick(job)
    assert tick is not None
    assert tick["fire_at"] == created_at + 3 * DAY


async def test_a_one_off_that_ran_is_finished(pool: Pool, house: Household) -> None:
    job = await house.job("in 1m")
    await house.attempt(job, await house.now() - DAY, ended=True)
    report = await Janitor(pool).keep_house()
    assert (report.timers_healed, report.jobs_finished) == (0, 1)
    assert await house.count("finished_jobs") == 1


async def test_a_job_whose_window_has_closed_is_finished(pool: Pool, house: Household) -> None:
    end_at = (await house.now() - DAY).isoformat(timespec="seconds")
    job = await house.job("@hourly", end_at=end_at)
    await house.attempt(job, (await house.now() - DAY).replace(minute=0, second=0, microsecond=0), ended=True)
    assert (await Janitor(pool).keep_house()).jobs_finished == 1


async def test_jobs_that_need_no_timer_and_fresh_ones_are_left_alone(pool: Pool, house: Household) -> None:
    await house.job("manual")
    await house.job(status="deleted")
    await house.job(age=timedelta(seconds=5))
    await house.finished(await house.job(end_at="2999-01-01T00:00:00Z"), timedelta(0))
    await house.timer(await house.job(), await house.now() + DAY)
    report = await Janitor(pool).keep_house()
    assert (report.timers_healed, report.jobs_finished) == (0, 0)
    assert await house.count("timers") == 1


async def test_a_job_that_is_being_edited_is_left_for_the_next_round(
    pool: Pool, house: Household, database_url: str
) -> None:
    job = await house.job()
    editor = await connect(database_url)
    async with editor.transaction():
        await editor.execute("SELECT FROM jobs WHERE job_id = $1 FOR UPDATE", job.job_id)
        assert (await Janitor(pool).keep_house()).timers_healed == 0
    assert (await Janitor(pool).keep_house()).timers_healed == 1
    await editor.close()


async def test_all_jobs_are_looked_at_page_by_page(
    pool: Pool, house: Household, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "MOST", 2)
    for _ in range(5):
        await house.job()
    assert (await Janitor(pool).keep_house()).timers_healed == 5


async def test_a_look_at_all_jobs_is_spread_over_several_rounds(
    pool: Pool, house: Household, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "MOST", 2)
    clock = iter(range(100))
    monkeypatch.setattr(
        "evertick.roles.janitor.chores.monotonic", lambda: next(clock)
    )  # a second goes by with each look at it
    for _ in range(5):
        await house.job()
    rounds = Rounds(after_id=0)
    healed = [(await chores.heal(pool, await house.now() - DAY, rounds, seconds=2)).timers for _ in range(5)]
    assert healed == [2, 2, 1, 0, 0]
    assert rounds.after_id is None


async def test_a_rule_that_cannot_be_read_stops_nobody_else(
    pool: Pool, house: Household, caplog: pytest.LogCaptureFixture
) -> None:
    broken = await house.job("@daily")
    await house.connection.execute("""UPDATE rules SET canonical = '{"spec": {"kind": "lunar"}}'""")
    whole = await house.job("@hourly")
    with caplog.at_level(logging.WARNING, "evertick.janitor"):
        assert (await Janitor(pool).keep_house()).timers_healed == 1
    assert await house.tick(broken) is None
    assert await house.tick(whole) is not None
    assert "has lost its timer and cannot be read" in caplog.text
    assert "1 jobs had lost their timer: 1 have it back" in caplog.text
