"""Statements that lock rows which were changed after they began.

The server then evaluates a part of the statement again, and frees what that needed. PostgreSQL 18 uses it afterwards to
choose among partitions, and crashes if the memory has other contents by then (decision 35). This server overwrites what
it frees, so that it crashes at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

import postgres
from engine import (
    AGAIN,
    AT,
    LEASE,
    MINUTE,
    Holder,
    Job,
    Planned,
    add_job,
    ending_of,
    lease as lease_all,
    timers_of,
    until_blocked,
)
from evertick.domain.attempt import Token
from evertick.store.engine import consumers, gates, lanes, outcomes, pulls
from evertick.store.engine.consumers import HandOver
from evertick.store.engine.lanes import Leased, LeasedRange, PutBack
from evertick.store.statements import Connection

GATE = 4711
QUEUES = 60
WORKER = "w"


@pytest.fixture(scope="session", params=[postgres.EMBEDDED, postgres.DEBIAN])
def postgres_server(request: pytest.FixtureRequest, postgres_servers: postgres.Servers) -> postgres.Server:
    programs = postgres.VERSIONS[request.param]
    if programs and not programs.exists():
        pytest.skip(f"no PostgreSQL in {programs}: `apt install postgresql-15`")
    return postgres_servers.overwriting(request.param)


async def lease(connection: Connection, jobs: list[Job]) -> list[LeasedRange]:
    queue_ids = [job.queue_id for job in jobs]
    return await lanes.lease(
        connection, queue_ids, WORKER, lanes=64, most_per_lane=9, rotation=0, lease_time=LEASE, tenant_id=None
    )


async def lease_by_queue(connection: Connection, jobs: list[Job]) -> list[LeasedRange]:
    rooms = {job.queue_id: 100 for job in jobs}
    return await lanes.lease_by_queue(
        connection, rooms, WORKER, lanes=64, most=100, most_per_lane=9, rotation=0, lease_time=LEASE
    )


@asynccontextmanager
async def held_up(watcher: asyncpg.Connection) -> AsyncIterator[None]:
    """Statements wait after they have begun, where they look whether the server is confirmed."""
    await watcher.execute(
        "CREATE OR REPLACE VIEW confirmed_server AS SELECT true AS is_known"
        f" FROM (SELECT pg_advisory_xact_lock_shared({GATE})) AS waited"
    )
    async with gate_closed(watcher):
        yield


@asynccontextmanager
async def gate_closed(watcher: asyncpg.Connection) -> AsyncIterator[None]:
    await watcher.execute("SELECT pg_advisory_lock($1)", GATE)
    try:
        yield
    finally:
        await watcher.execute("SELECT pg_advisory_unlock($1)", GATE)


async def wait_at_jobs(connection: asyncpg.Connection) -> None:
    """Statements of this connection wait at the gate after they have begun, where they first look at a job."""
    await connection.execute("CREATE SCHEMA waiting")
    await connection.execute(
        f"CREATE VIEW waiting.jobs AS SELECT * FROM jobs WHERE (SELECT pg_advisory_xact_lock_shared({GATE})::text) = ''"
    )
    await connection.execute("SELECT set_config('search_path', 'waiting, ' || current_setting('search_path'), false)")


async def run_while(
    watcher: asyncpg.Connection, connection: asyncpg.Connection, statement: Coroutine[Any, Any, Any], change: str
) -> Any:
    """Run a statement on rows that another session changes, and commits when the statement waits for its locks."""
    async with watcher.transaction():
        await watcher.execute(change)
        running = asyncio.create_task(statement)
        await until_blocked(watcher, connection)
    return await running


async def jobs_of_queues(connection: asyncpg.Connection, count: int = QUEUES) -> list[Job]:
    return [await add_job(connection, queue=f"q{each}", partition=7 + each) for each in range(count)]


@pytest.mark.parametrize("statement", [lease, lease_by_queue])
@pytest.mark.parametrize("queues", [1, QUEUES])
async def test_a_lease_of_lanes_that_changed_meanwhile_gives_what_is_in_them(
    connection: asyncpg.Connection,
    second: asyncpg.Connection,
    statement: Callable[[Connection, list[Job]], Coroutine[Any, Any, list[LeasedRange]]],
    queues: int,
) -> None:
    holder = Holder(connection)
    await holder.take(*range(7, 7 + queues))
    jobs = await jobs_of_queues(connection, queues)
    for job in jobs:
        await holder.fire_ticks(Planned(job, policy="ALLOW", limit=100), 3)
    for _ in range(8):  # the first executions are planned for their parameters, later ones for any
        transaction = second.transaction()
        await transaction.start()
        async with held_up(connection):
            leasing = asyncio.create_task(statement(second, jobs))
            await until_blocked(connection, second)
            await connection.execute("UPDATE lanes SET head = head")
        ranges = await leasing
        assert {each.lane_id for each in ranges} == {job.lane_id for job in jobs}
        await transaction.rollback()


@pytest.mark.parametrize("policy", ["SKIP", "REPLACE"])
async def test_of_timers_that_changed_meanwhile_none_fires_and_each_other_fires_once(
    connection: asyncpg.Connection, second: asyncpg.Connection, policy: str
) -> None:
    """An edit that keeps the due time; what it edits is tried again."""
    holder = Holder(connection)
    await holder.take(*range(7, 7 + QUEUES))
    jobs = await jobs_of_queues(connection)
    for job in jobs:
        await holder.fire(Planned(job, policy=policy))
    edited = jobs[::7]
    holder.connection = second
    async with held_up(connection):
        firing = asyncio.create_task(holder.fire(*(Planned(job, AT + MINUTE, policy=policy) for job in jobs)))
        await until_blocked(connection, second)
        await connection.execute(
            "UPDATE timers SET spec_version = spec_version WHERE job_id = ANY($1)", [job.job_id for job in edited]
        )
    fired = await firing
    assert sorted(fired.busy) == list(range(1, QUEUES + 1, 7))
    assert not fired.refused
    for job in jobs:
        is_moved = await timers_of(connection, job) == [("tick", AT + 2 * MINUTE)]
        assert is_moved is (job not in edited)
        attempts = await connection.fetchval("SELECT count(*) FROM attempts WHERE job_id = $1", job.job_id)
        assert attempts == 1 + (is_moved and policy == "REPLACE")
    again = await holder.fire(*(Planned(job, AT + MINUTE, policy=policy) for job in edited))
    assert len(again.passed) + again.runs == len(edited)


async def test_a_fence_that_changed_meanwhile_keeps_its_partitions_timers_and_no_others(
    connection: asyncpg.Connection, second: asyncpg.Connection
) -> None:
    holder = Holder(connection)
    await holder.take(*range(7, 7 + QUEUES))
    jobs = await jobs_of_queues(connection)
    holder.connection = second
    async with held_up(connection):
        firing = asyncio.create_task(holder.fire(*map(Planned, jobs)))
        await until_blocked(connection, second)
        await connection.execute("UPDATE partitions SET epoch = epoch + 1 WHERE partition = 7")
    fired = await firing
    assert (fired.runs, list(fired.refused), list(fired.busy)) == (QUEUES - 1, [1], [])


@pytest.fixture
async def leased(connection: asyncpg.Connection) -> list[Leased]:
    """Three attempts in each of many leases of one worker, each first one with its outcome."""
    holder = Holder(connection)
    await holder.take(*range(7, 7 + QUEUES))
    jobs = await jobs_of_queues(connection)
    for job in jobs:
        await holder.fire_ticks(Planned(job, policy="ALLOW", limit=100), 3)
    await lease_all(connection, *jobs, worker=WORKER)
    await connection.execute(
        "INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final)"
        " SELECT lane_id, first_seq, clock_at(), 'cancelled', true FROM leases"
    )
    rows = await connection.fetch("SELECT lease_id, lane_id, first_seq, last_seq FROM leases")
    return await lanes.read(connection, [LeasedRange(**row, most=9) for row in rows])


HEARTBEAT = "UPDATE leases SET expires_at = expires_at WHERE lease_id = (SELECT max(lease_id) FROM leases)"
"""Of the lease that is locked last: what is looked up next still has what was made for it."""


async def put_back(connection: Connection, leased: list[Leased]) -> set[Token]:
    """Returns what is not put back."""
    return await lanes.put_back(connection, WORKER, [PutBack(each.lane_id, each.seq, "handle") for each in leased])


async def mark_started(connection: Connection, leased: list[Leased]) -> set[Token]:
    """Returns what is not marked."""
    marked = await lanes.mark_started(connection, WORKER, [(each.lease_id, each.seq) for each in leased])
    return {each.token for each in leased} - marked


async def hand_over(connection: Connection, leased: list[Leased]) -> set[Token]:
    """Returns what is not handed over."""
    published = [HandOver(*each.token, tenant_id=1, timeout_seconds=60) for each in leased]
    return await consumers.hand_over(connection, WORKER, published)


@pytest.mark.parametrize("statement", [put_back, mark_started, hand_over])
async def test_leases_that_a_heartbeat_extends_meanwhile_keep_what_is_over_and_nothing_else(
    connection: asyncpg.Connection,
    second: asyncpg.Connection,
    leased: list[Leased],
    statement: Callable[[Connection, list[Leased]], Coroutine[Any, Any, set[Token]]],
) -> None:
    ended = {each.token for each in leased if each.is_over}
    assert len(ended) == QUEUES
    for _ in range(8):  # the first executions are planned for their parameters, later ones for any
        transaction = second.transaction()
        await transaction.start()
        assert await run_while(connection, second, statement(second, leased), HEARTBEAT) == ended
        await transaction.rollback()


async def test_leases_that_a_heartbeat_extends_meanwhile_are_kept_for_their_timeouts(
    connection: asyncpg.Connection, second: asyncpg.Connection, leased: list[Leased]
) -> None:
    """Attempts that began half a minute ago and may take a minute."""
    assert leased
    await connection.execute(
        "UPDATE leases SET leased_at = clock_at() - interval '30 seconds', expires_at = clock_at()"
    )
    await run_while(connection, second, pulls.extend_all(second, WORKER, LEASE), HEARTBEAT)
    assert await connection.fetchval("SELECT min(expires_at - clock_at()) FROM leases") > LEASE - timedelta(seconds=25)


async def test_failures_of_jobs_that_are_edited_meanwhile_are_recorded_with_their_retries(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, leased: list[Leased]
) -> None:
    """But for that of a job which another session has locked: it is looked at last."""
    failed = [each for each in leased if not each.is_over]
    locked = failed[-1].job_id
    await wait_at_jobs(second)
    async with watcher.transaction():
        await watcher.execute("SELECT FROM jobs WHERE job_id = $1 FOR UPDATE", locked)
        async with gate_closed(connection):
            endings = [ending_of(each, "failed", AGAIN) for each in failed]
            recording = asyncio.create_task(outcomes.record(second, WORKER, endings, []))
            await until_blocked(connection, second)
            await connection.execute("UPDATE jobs SET updated_at = updated_at WHERE job_id <> $1", locked)
        recorded = await recording
    busy = {each.token for each in failed if each.job_id == locked}
    assert (recorded.stale, recorded.busy) == (set(), busy)
    retries = await connection.fetchval("SELECT count(*) FROM timers WHERE kind = 'retry'")
    assert retries == len({each.job_id for each in failed}) * 2 - len(busy)


async def test_runs_that_change_while_they_are_let_in_wait_and_the_others_get_their_leases(
    connection: asyncpg.Connection, second: asyncpg.Connection
) -> None:
    holder = Holder(connection)
    await holder.take(*range(7, 7 + QUEUES))
    jobs = [
        await add_job(connection, queue=f"q{each}", partition=7 + each, gate_id=each + 1, gate_limit=1)
        for each in range(QUEUES)
    ]
    await holder.fire(*(Planned(job, policy="ALLOW", limit=9) for job in jobs))
    changed = [job.job_id for job in jobs[::7]]
    await wait_at_jobs(second)
    async with gate_closed(connection):
        letting_in = asyncio.create_task(gates.let_in(second, range(1, QUEUES + 1)))
        await until_blocked(connection, second)
        await connection.execute("UPDATE open_runs SET seq = seq WHERE job_id = ANY($1)", changed)
    entered = await letting_in
    inside = await connection.fetch("SELECT lane_id, seq FROM open_runs WHERE is_inside")
    leases = await connection.fetch("SELECT lane_id, first_seq AS seq FROM leases")
    assert len(entered) == len(inside) == QUEUES - len(changed)
    assert {tuple(row) for row in inside} == {tuple(row) for row in leases}
    assert len(await gates.let_in(second, range(1, QUEUES + 1))) == len(changed)
