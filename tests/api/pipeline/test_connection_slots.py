"""Requests of one tenant that wait must not keep those of others from being answered."""

import asyncio
import time

import asyncpg
import pytest

from api.callers import JOB, Caller, Callers, is_problem
from engine import PATIENCE_SECONDS, until
from evertick.api import services
from evertick.api.problems import Kind, problem_of
from evertick.api.server import ApiServer
from evertick.config.settings import Settings
from evertick.runtime import timeouts
from evertick.store.database import Pool, Timeouts
from evertick.usecases import transactions
from evertick.usecases.context import TenantContext, unit_of_work
from evertick.usecases.jobs.create import create
from faults.proxy import Proxy

LOCK_SECONDS = 10.0
"""Long enough for what others ask meanwhile on a slow machine."""
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def lock_seconds() -> float:
    """For how long a request waits for a row that somebody has locked: longer than any test."""
    return PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch, lock_seconds: float) -> None:
    patient = timeouts.API._replace(command_seconds=2 * PATIENCE_SECONDS, lock_seconds=lock_seconds)
    monkeypatch.setattr(timeouts, "API", patient)
    monkeypatch.setattr(services, "WAIT_SECONDS", PATIENCE_SECONDS)


@pytest.mark.parametrize("lock_seconds", [LOCK_SECONDS])
async def test_requests_that_wait_for_one_row_leave_room_for_other_tenants_workers_and_probes(
    admin: Caller, callers: Callers, connection: asyncpg.Connection, pool: Pool
) -> None:
    job = await admin.create(name="hot")
    others = await callers.tenant()
    worker, other = await callers.make("worker", others), await callers.make("editor", others)

    async with connection.transaction():
        await connection.execute("SELECT FROM jobs WHERE name = 'hot' FOR UPDATE")
        edits = [
            asyncio.create_task(admin.patch(f"/jobs/{job['job_id']}", json={"max_retries": number}))
            for number in range(12)
        ]
        await until(lambda: pool.fetchval(f"SELECT ({_WAITING}) >= 4"))
        assert (await worker.post("/workers/w/heartbeat", json={})).status_code == 200
        assert (await other.get("/jobs")).status_code == 200
        await other.create()
        assert await pool.fetchval(_WAITING) == 4, "half of the connections"
        assert (await worker.get(f"{callers.address}/readyz")).status_code == 200
        assert not any(edit.done() for edit in edits)
        done, _ = await asyncio.wait(edits, return_when=asyncio.FIRST_COMPLETED)
        refused = done.pop().result()
        is_problem(refused, 503, "unavailable")
        assert int(refused.headers["retry-after"]) > 0
    await asyncio.gather(*edits)


async def test_who_waits_too_long_behind_its_own_tenants_requests_is_told_why(
    database_url: str, admin: Caller, connection: asyncpg.Connection, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await admin.create(name="hot")
    monkeypatch.setattr(services, "WAIT_SECONDS", 0.1)
    server = ApiServer(database_url, Settings(port=0), connections=2)
    await server.start()
    try:
        async with Caller(server.address, admin.key) as caller:
            async with connection.transaction():
                await connection.execute("SELECT FROM jobs WHERE name = 'hot' FOR UPDATE")
                waiting = asyncio.create_task(caller.patch(f"/jobs/{job['job_id']}", json={"max_retries": 1}))
                await until(lambda: pool.fetchval(f"SELECT ({_WAITING}) = 1"))
                refused = await caller.get("/jobs")
                is_problem(refused, 429, "over-quota")
                assert refused.json()["quota"] == "requests"
                assert int(refused.headers["retry-after"]) > 0
            await waiting
    finally:
        await server.stop()


async def test_who_waited_long_for_its_turn_is_tried_again_when_it_is_undone_because_of_others(
    database_url: str, admin: Caller, connection: asyncpg.Connection, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = await admin.create(name="hot")
    await pool.execute(
        """
        CREATE SEQUENCE tries;
        CREATE FUNCTION undone_once() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.action = 'create_key' AND nextval('tries') = 1 THEN
                RAISE EXCEPTION 'deadlock detected' USING ERRCODE = 'deadlock_detected';
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER undone_once BEFORE INSERT ON audit_log FOR EACH ROW EXECUTE FUNCTION undone_once();
        """
    )
    monkeypatch.setattr(transactions, "LONG_SECONDS", 1.0)
    server = ApiServer(database_url, Settings(port=0), connections=2)
    await server.start()
    try:
        async with Caller(server.address, admin.key) as caller:
            async with connection.transaction():
                await connection.execute("SELECT FROM jobs WHERE name = 'hot' FOR UPDATE")
                first = asyncio.create_task(caller.patch(f"/jobs/{hot['job_id']}", json={"max_retries": 1}))
                await until(lambda: pool.fetchval(f"SELECT ({_WAITING}) = 1"))
                second = asyncio.create_task(caller.post("/api-keys", json={"role": "viewer"}))
                began = time.monotonic()

                async def has_waited_long() -> bool:
                    return time.monotonic() - began > 1.3

                await until(has_waited_long)
            assert (await first).status_code == 200
            assert (await second).status_code == 201
        assert await pool.fetchval("SELECT last_value FROM tries") == 2
    finally:
        await server.stop()


async def test_previews_of_one_tenant_leave_the_connections_of_workers_alone(
    callers: Callers, connection: asyncpg.Connection, pool: Pool
) -> None:
    viewer, others = await callers.make("viewer", await callers.tenant()), await callers.tenant()
    worker, other = await callers.make("worker", others), await callers.make("viewer", others)
    async with connection.transaction():
        await connection.execute("LOCK TABLE idempotency_keys IN SHARE MODE")  # what is previewed cannot be kept
        previews = [
            asyncio.create_task(
                viewer.post("/schedules/preview", json={"schedule": "@daily"}, headers={"Idempotency-Key": f"{number}"})
            )
            for number in range(12)
        ]
        await until(lambda: pool.fetchval(f"SELECT ({_WAITING}) >= 4"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await worker.lease(wait_seconds=0) == []
            assert (await other.post("/schedules/preview", json={"schedule": "@daily"})).status_code == 200
        assert await pool.fetchval(_WAITING) == 4, "half of the connections that all share"
    assert {answer.status_code for answer in await asyncio.gather(*previews)} == {200}


async def test_a_tenant_does_not_wait_for_another_that_brings_the_same_new_schedule(
    admin: Caller, callers: Callers, pool: Pool
) -> None:
    other = await callers.make("editor", await callers.tenant())
    schedule = {"schedule": "17 3 * * *"}
    async with unit_of_work(TenantContext(pool, 1)) as inside:
        await create(inside, {**JOB, "name": "taken"})
        waiting = asyncio.create_task(admin.post("/jobs", json={**JOB, **schedule, "name": "taken"}))
        await until(
            lambda: pool.fetchval("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')")
        )
        await other.create(**schedule)
        assert not waiting.done()
    is_problem(await waiting, 409, "name-taken")


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.DeadlockDetectedError("x"),
        asyncpg.LockNotAvailableError("x"),
        asyncpg.SerializationError("x"),
        asyncpg.QueryCanceledError("x"),
        asyncpg.InterfaceError("pool is closing"),
    ],
)
def test_what_others_or_a_stop_are_to_blame_for_may_be_tried_again(error: Exception) -> None:
    problem = problem_of(error, "some id")
    assert problem.kind is Kind.UNAVAILABLE
    assert problem.headers["Retry-After"]


async def test_without_an_answer_from_the_database_probes_say_so_and_the_server_stops(
    database_url: str, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "API", Timeouts(connection_seconds=5, command_seconds=5, lock_seconds=5))
    proxy = Proxy(database_url)
    try:
        server = ApiServer(proxy.url, Settings(port=0), connections=2)
        await server.start()
        async with Caller(server.address, admin.key) as caller:
            assert (await caller.get("/jobs")).status_code == 200
            proxy.freeze()
            answers = await asyncio.gather(*(caller.get(f"{server.address}/readyz") for _ in range(20)))
            assert {answer.status_code for answer in answers} <= {200, 503}  # what was known a moment ago may be told
            await until(lambda: _is_unready(caller, server.address))
            assert (await caller.get(f"{server.address}/livez")).status_code == 200
            is_problem(await caller.get("/jobs"), 503, "unavailable")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await server.stop()
    finally:
        proxy.stop()


async def _is_unready(caller: Caller, address: str) -> bool:
    answer = await caller.get(f"{address}/readyz")
    assert "the database does not answer" in answer.text or answer.status_code == 200
    return answer.status_code == 503
