"""The statements of runs and dead letters: which indexes and days they read."""

from datetime import UTC, datetime, timedelta

import asyncpg

from engine import AT, Holder, Planned, add_job, finish
from evertick.domain.schedule.instants import to_us
from evertick.store import statements
from evertick.store.jobs import runs
from evertick.store.jobs.runs import FireTimeRange, RequestedRun
from evertick.store.statements import Statement

ALL_TIME = FireTimeRange(datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC), 0)


async def plan_of(connection: asyncpg.Connection, statement: Statement, **values: object) -> str:
    """The plan that is kept for all values, as it is carried out for these."""
    await connection.execute(f"PREPARE kept AS {statement.text}")
    literals = ["NULL" if value is None else f"'{value}'" for value in statement.arguments(values)]
    rows = await connection.fetch(f"EXPLAIN (ANALYZE, COSTS off, TIMING off) EXECUTE kept ({', '.join(literals)})")
    await connection.execute("DEALLOCATE kept")
    return "\n".join(row[0] for row in rows)


async def test_a_history_reads_the_attempts_of_its_job_and_only_days_that_can_have_them(
    connection: asyncpg.Connection,
) -> None:
    statement = statements.load("runs")["of_job"]
    all_days = await plan_of(connection, statement, job_id=7, most=20, **ALL_TIME._asdict())
    assert "job_id_fire_at_idx" in all_days
    assert "Subplans Removed" not in all_days.split("CTE waiting", maxsplit=1)[0]
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    few_days = await plan_of(
        connection, statement, job_id=7, most=20, **ALL_TIME._replace(from_seq=to_us(tomorrow))._asdict()
    )
    assert "Subplans Removed: 2" in few_days


async def test_a_tenants_runs_read_each_lane_from_its_end(connection: asyncpg.Connection) -> None:
    job = await add_job(connection, fire_at=AT)
    holder = Holder(connection)
    await holder.take(7)
    await holder.fire(Planned(job))
    plan = await plan_of(
        connection,
        statements.load("runs")["of_tenant"],
        tenant_id=1,
        per_lane=20,
        before_seq=2**62,
        before_lane=0,
        walk_seq=None,
        most=20,
        **ALL_TIME._asdict(),
    )
    assert "_pkey" in plan
    assert "Backward" in plan


async def test_a_run_by_hand_finds_an_instant_that_nothing_else_of_its_job_has(connection: asyncpg.Connection) -> None:
    await connection.execute(
        "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE AS"
        f" $$ SELECT timestamptz '{datetime.now(UTC).isoformat()}' $$"
    )
    now_at = await connection.fetchval("SELECT clock_at()")
    job = await add_job(connection, fire_at=now_at)
    wanted = RequestedRun("manual", None, has_payload=False, payload=None)
    found = [await runs.request(connection, job.job_id, wanted) for _ in range(3)]
    assert found == [now_at + timedelta(microseconds=number) for number in (1, 2, 3)]
    rows = await connection.fetch("SELECT fire_at, due_at FROM timers WHERE kind = 'manual' ORDER BY 1")
    assert [tuple(row) for row in rows] == [(fire_at, now_at) for fire_at in found]


async def test_a_run_by_hand_waits_for_another_instant_when_all_are_taken(
    connection: asyncpg.Connection,
) -> None:
    job = await add_job(connection)
    await connection.execute(
        "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE AS"
        f" $$ SELECT timestamptz '{datetime.now(UTC).isoformat()}' $$"
    )
    await connection.execute(
        "INSERT INTO requested_runs SELECT $1, clock_at() + n * interval '1 microsecond', clock_at(), NULL, false"
        " FROM generate_series(0, $2::integer) AS n",
        job.job_id,
        runs.FREE_INSTANT_TRIES,
    )
    wanted = RequestedRun("manual", None, has_payload=False, payload=None)
    assert await runs.request(connection, job.job_id, wanted) is None


async def test_the_first_who_ends_an_attempt_wins(connection: asyncpg.Connection) -> None:
    job = await add_job(connection)
    holder = Holder(connection)
    await holder.take(7)
    await holder.fire(Planned(job))
    (row,) = await runs.attempts(connection, job.job_id, AT, 0)
    assert await finish(connection, job) == 1
    assert not await runs.cancel_attempt(connection, row.run, "too late")
    assert await connection.fetchval("SELECT result::text FROM outcomes") == "success"
    assert not await runs.withdraw(connection, row.run)


async def test_dead_letters_are_read_by_tenant_and_age(connection: asyncpg.Connection) -> None:
    wanted = runs.LetterRange(*ALL_TIME[:2], 2**62, ALL_TIME.before_at, None)
    plan = await plan_of(
        connection, statements.load("runs")["dead_letters_page"], tenant_id=1, most=20, **wanted._asdict()
    )
    assert "dead_letters_of_tenant" in plan
