"""Leases that somebody lost, never heard of, or let go: what becomes of the attempts in them."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from api.callers import Caller
from engine import until
from evertick.store.database import Pool, connect
from evertick.store.engine import lanes
from evertick.store.engine.lanes import PutBack

pytestmark = pytest.mark.usefixtures("scheduler")


async def _lease(admin: Caller, **fields: Any) -> dict[str, Any]:
    await admin.create(schedule="now", **fields)
    (attempt,) = await admin.lease()
    return attempt


async def test_a_heartbeat_is_told_what_went_to_others(admin: Caller, connection: asyncpg.Connection) -> None:
    attempt = await _lease(admin)
    await connection.execute("UPDATE leases SET worker = 'another'")
    answer = await admin.post("/workers/w/heartbeat", json={"tokens": [attempt["token"]]})
    assert answer.json() == {"cancel": [attempt["token"]]}


@pytest.mark.parametrize("says", [True, False])
async def test_a_heartbeat_that_comes_late_keeps_what_nobody_took_over(
    admin: Caller, connection: asyncpg.Connection, *, says: bool
) -> None:
    attempt = await _lease(admin)
    # Out of the scheduler's sight, so that it is not reaped meanwhile.
    await connection.execute("UPDATE leases SET expires_at = clock_at() - interval '1 second', partition = -1")
    answer = await admin.post("/workers/w/heartbeat", json={"tokens": [attempt["token"]]} if says else {})
    assert answer.json() == {"cancel": []}
    assert await connection.fetchval("SELECT expires_at > clock_at() FROM leases")


async def test_a_lease_that_its_worker_never_heard_of_is_not_kept_for_ever(
    admin: Caller, connection: asyncpg.Connection
) -> None:
    await _lease(admin, timeout_seconds=60)
    left = "SELECT extract(epoch FROM expires_at - clock_at())::float FROM leases"
    await admin.post("/workers/w/heartbeat", json={})
    assert await connection.fetchval(left) > 25
    # It might have run for a minute, and has been with its worker for longer.
    await connection.execute(
        "UPDATE leases SET leased_at = leased_at - interval '80 s', expires_at = clock_at() + interval '5 s'"
    )
    await admin.post("/workers/w/heartbeat", json={})
    assert 5 < await connection.fetchval(left) < 15


async def test_hanging_up_while_a_lease_is_granted_burns_no_attempt(
    admin: Caller, connection: asyncpg.Connection, pool: Pool
) -> None:
    await admin.create(schedule="now")
    await until(lambda: connection.fetchval("SELECT count(*) = 1 FROM attempts"))
    async with connection.transaction():
        await connection.execute("LOCK TABLE job_versions")  # an attempt is leased, and its job cannot be read
        polling = asyncio.create_task(admin.lease(worker="hasty"))
        await until(lambda: pool.fetchval("SELECT count(*) = 1 FROM leases"))
        assert polling.cancel()
        await asyncio.wait([polling])
    (attempt,) = await admin.lease(worker="next")
    assert attempt["attempt"] == 1
    assert await connection.fetchval("SELECT count(*) FROM attempts") == 1
    assert await connection.fetchval("SELECT count(*) FROM outcomes") == 0


async def test_of_two_outcomes_for_one_attempt_in_one_request_the_first_counts(admin: Caller) -> None:
    attempt = await _lease(admin, max_retries=0)
    token = attempt["token"]
    recorded = await admin.record({"token": token, "result": "failed"}, {"token": token, "result": "success"})
    assert recorded == {"recorded": 1, "stale": [token]}
    assert (await admin.get(f"/runs/{attempt['run_id']}")).json()["status"] == "dead"


async def test_failures_that_no_attempt_follows_are_named_if_that_is_asked_for(admin: Caller) -> None:
    token = (await _lease(admin, max_retries=0))["token"]
    outcomes = [{"token": token, "result": "failed"}]
    body = {"worker_id": "w", "outcomes": outcomes, "with_dead": True}
    answer = await admin.post("/outcomes", json=body)
    assert answer.json() == {"recorded": 1, "stale": [], "dead": [token]}


async def test_what_a_worker_put_back_is_pending_and_goes_to_a_worker_that_pulls(
    admin: Caller, connection: asyncpg.Connection
) -> None:
    attempt = await _lease(admin)
    lane_id, seq = (int(part) for part in attempt["token"].split("."))
    holder = await connection.fetchval("SELECT worker FROM leases")
    back = PutBack(lane_id, seq, "send_invoice", timedelta(hours=1))
    assert await lanes.put_back(connection, holder, [back]) == set()
    run = (await admin.get(f"/runs/{attempt['run_id']}")).json()
    assert (run["status"], run["attempts"][0]["status"]) == ("pending", "ready")
    for path in (f"/jobs/{attempt['job_id']}/runs", "/runs"):
        assert [run["status"] for run in (await admin.get(path)).json()] == ["pending"]
    await connection.execute("UPDATE leases SET expires_at = clock_at()")
    (again,) = await admin.lease(worker="next")
    assert again["token"] == attempt["token"]
    assert (await admin.get(f"/runs/{attempt['run_id']}")).json()["status"] == "running"
    assert await admin.record({"token": again["token"], "result": "success"}, worker="next") == {
        "recorded": 1,
        "stale": [],
    }
    assert await connection.fetchval("SELECT count(*) FROM leases") == 0


async def test_the_only_attempt_of_a_run_counts_as_started_when_a_worker_was_given_it(
    admin: Caller, connection: asyncpg.Connection
) -> None:
    attempt = await _lease(admin, max_retries=0)
    await connection.execute("UPDATE leases SET expires_at = clock_at() - interval '1 second'")
    await until(lambda: connection.fetchval("SELECT EXISTS (SELECT FROM dead_letters)"))
    assert (await admin.get(f"/runs/{attempt['run_id']}")).json()["status"] == "dead"


async def test_an_outcome_of_a_run_that_is_just_being_cancelled_waits_for_that_alone(
    admin: Caller, connection: asyncpg.Connection, database_url: str
) -> None:
    first, second = [await _lease(admin, concurrent_policy="ALLOW", name=name) for name in ("first", "second")]
    outcomes = [{"token": each["token"], "result": "success"} for each in (first, second)]
    user = await connect(database_url)
    transaction = user.transaction()
    await transaction.start()
    await user.execute("SELECT FROM open_runs WHERE seq = $1 FOR UPDATE", int(first["token"].split(".")[1]))
    recording = asyncio.create_task(admin.record(*outcomes))
    await until(lambda: connection.fetchval("SELECT EXISTS (SELECT FROM outcomes)"))
    assert await connection.fetchval("SELECT array_agg(seq) FROM outcomes") == [int(second["token"].split(".")[1])]
    await transaction.rollback()
    assert await recording == {"recorded": 2, "stale": []}
    await user.close()
