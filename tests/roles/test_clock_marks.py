"""A clock that was set wrong, or a long outage, removes no history: ages count by a time that follows slowly."""

import logging
from datetime import timedelta

import asyncpg
import pytest

from evertick.roles.janitor import Janitor
from evertick.store.database import Pool, connect
from evertick.store.engine import clock
from evertick.store.engine.clock import mark
from evertick.store.tenants import idempotency
from evertick.store.tenants.idempotency import StoredAnswer
from evertick.usecases.diagnosis import Diagnosis, Level
from evertick.usecases.doctor import examine
from roles.aged_tables import AgedTables
from roles.stepping import Dial

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def aged(connection: asyncpg.Connection) -> AgedTables:
    return AgedTables(connection)


@pytest.fixture
async def dial(connection: asyncpg.Connection) -> Dial:
    return await Dial.on(connection)


async def things(aged: AgedTables) -> dict[str, int]:
    tables = ("gaps", "withdrawals", "requested_runs", "jobs", "finished_jobs", "idempotency_keys")
    return {table: await aged.count(table) for table in tables} | {"days": len(await aged.days())}


async def furnish(aged: AgedTables) -> None:
    """Something of each kind that goes when it is old, none of it old enough."""
    now = await aged.now()
    job = await aged.job("in 1m", age=80 * DAY)
    await aged.timer(await aged.job(), now + DAY)
    await aged.finished(job, HOUR)
    await aged.job(status="deleted", age=85 * DAY, deleted=80 * DAY)
    await aged.gap(job, now - 80 * DAY, now - 80 * DAY)
    for table, values in (
        ("withdrawals", "($1, $2, $2, 1, 'tick')"),
        ("requested_runs", "($1, $2, $2, NULL, false, NULL)"),
    ):
        await aged.connection.execute(f"INSERT INTO {table} VALUES {values}", job.job_id, now - 80 * DAY)
    await idempotency.store(aged.connection, 1, {"key": StoredAnswer(b"", 201, "{}", b"")})
    for age in (20, 50, 80):
        await aged.day((now - age * DAY).date())


async def test_a_clock_that_is_a_hundred_days_ahead_for_a_while_removes_nothing(
    pool: Pool, aged: AgedTables, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    await furnish(aged)
    janitor = Janitor(pool)
    await janitor.maintain()
    before = await things(aged)
    await dial.move(100 * DAY)
    with caplog.at_level(logging.WARNING, "evertick"):
        first = (await dial.now() + MINUTE).date()
        for _ in range(5):
            await dial.move(MINUTE)
            await janitor.maintain()
    ahead = await things(aged)
    days = 4 + ((await dial.now()).date() - first).days  # one more where these minutes lie around midnight
    assert ahead.pop("days") == before["days"] + days, "those that the clock was about to write to"
    assert ahead == {name: count for name, count in before.items() if name != "days"}
    warnings = [record.message for record in caplog.records if "after the last mark" in record.message]
    assert len(warnings) == 1
    assert warnings[0].startswith("the database's clock is 100 days")
    await dial.move(-100 * DAY)
    await janitor.maintain()
    assert {**await things(aged), "days": before["days"] + 4} == {**before, "days": before["days"] + 4}


async def test_the_trusted_time_is_that_of_the_clock_while_nothing_happens_to_it(pool: Pool, dial: Dial) -> None:
    marks = await dial.run_on(DAY)
    assert marks.marked_at - marks.trusted_at < MINUTE


@pytest.mark.parametrize("away", [HOUR, 10 * DAY])
async def test_after_an_outage_the_trusted_time_follows_in_a_third_of_it(
    pool: Pool, dial: Dial, away: timedelta
) -> None:
    await clock.mark(pool)
    await dial.move(away)
    behind = await clock.mark(pool)
    assert behind.marked_at - behind.trusted_at > away / 4
    marks = await dial.run_on(away / 3)
    assert marks.marked_at - marks.trusted_at < HOUR
    marks = await dial.run_on(HOUR)
    assert marks.marked_at - marks.trusted_at < MINUTE


async def test_a_machine_that_is_on_for_a_few_hours_a_day_removes_what_is_old(pool: Pool, dial: Dial) -> None:
    began_at = await dial.now()
    for _ in range(10):
        await dial.run_on(8 * HOUR)
        await dial.move(16 * HOUR)
    marks = await clock.marks(pool)
    assert marks.trusted_at - began_at > 8 * DAY


async def test_marks_of_many_nodes_make_the_trusted_time_no_faster(pool: Pool, dial: Dial) -> None:
    await clock.mark(pool)
    await dial.move(100 * DAY)
    first = await clock.mark(pool)
    for _ in range(100):
        await clock.mark(pool)
    last = await clock.marks(pool)
    assert last.trusted_at - first.trusted_at < MINUTE


async def test_a_mark_does_not_wait_for_another(pool: Pool, dial: Dial, database_url: str) -> None:
    other = await connect(database_url)
    async with other.transaction():
        await other.execute("SELECT FROM clock_marks FOR UPDATE")
        assert (await clock.mark(pool)).replan_from is None
    await other.close()


async def test_no_more_than_three_days_go_in_one_sweep(pool: Pool, aged: AgedTables) -> None:
    today = await aged.today()
    for age in range(100, 108):
        await aged.day(today - timedelta(days=age))
    assert [(await Janitor(pool).maintain()).days_dropped for _ in range(4)] == [3, 3, 2, 0]


async def test_the_day_to_which_seqs_go_on_after_a_correction_is_kept_ready(
    pool: Pool, aged: AgedTables, dial: Dial
) -> None:
    await dial.move(100 * DAY)
    await mark(pool)
    await dial.move(-100 * DAY)
    await Janitor(pool).maintain()
    furthest = (await aged.today()) + timedelta(days=100)
    assert {furthest, furthest + DAY} <= await aged.days()


async def diagnosed(pool: Pool) -> Diagnosis:
    [finding] = [finding for finding in await examine(pool) if finding.name == "clock steps"]
    return finding


async def test_the_doctor_tells_of_a_jump_and_of_a_correction_until_all_is_done(pool: Pool, dial: Dial) -> None:
    assert await diagnosed(pool) == Diagnosis("clock steps", Level.OK, "none that matters")
    await dial.move(100 * DAY)
    await mark(pool)
    ahead = await diagnosed(pool)
    assert ahead.level is Level.WARNING
    assert "which is 100 days behind" in ahead.what
    await dial.move(-100 * DAY)
    await mark(pool)
    back = await diagnosed(pool)
    assert back.level is Level.WARNING
    assert back.what == "the clock was set back: timers of 256 partitions are yet to be planned anew"
    await Janitor(pool).maintain()
    assert await diagnosed(pool) == Diagnosis("clock steps", Level.OK, "the clock was once 100 days ahead of now")
