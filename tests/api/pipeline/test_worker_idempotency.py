"""Idempotency keys on the calls of workers: an answer that got lost comes again."""

import asyncio
from pathlib import Path

import asyncpg
import httpx
import pytest

from api.callers import Caller, Callers, is_problem
from api.processes import served
from engine import until

pytestmark = pytest.mark.usefixtures("scheduler")

KEY = {"Idempotency-Key": "poll-1"}


@pytest.fixture
async def worker(callers: Callers) -> Caller:
    return await callers.make("worker")


async def _lease(worker: Caller, wait_seconds: float = 10, worker_id: str = "w", key: str = "poll-1") -> httpx.Response:
    body = {"worker_id": worker_id, "wait_seconds": wait_seconds}
    return await worker.post("/queues/billing/lease", json=body, headers={"Idempotency-Key": key})


async def test_the_same_key_gets_the_same_leases_again(
    admin: Caller, worker: Caller, connection: asyncpg.Connection
) -> None:
    await admin.create(schedule="now", payload={"n": 1})
    first, again = await _lease(worker), await _lease(worker)
    assert [attempt["payload"] for attempt in first.json()["attempts"]] == [{"n": 1}]
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    assert await connection.fetchval("SELECT count(*) FROM leases") == 1
    is_problem(await _lease(worker, worker_id="other"), 422, "idempotency-key-reused")


async def test_leases_whose_answer_was_lost_with_the_server_come_again_from_another(
    admin: Caller, worker: Caller, connection: asyncpg.Connection, database_url: str, tmp_path: Path
) -> None:
    await admin.create(schedule="now")
    assert worker.key is not None
    with served(database_url, tmp_path / "log", "--hold-answers") as process:
        doomed = Caller(process.address, worker.key)
        leasing = asyncio.create_task(_lease(doomed))
        await until(lambda: connection.fetchval("SELECT count(*) FROM leases"))
        process.kill()
        with pytest.raises(httpx.TransportError):
            await leasing
        await doomed.aclose()
    (attempt,) = (await _lease(worker)).json()["attempts"]
    assert attempt["attempt"] == 1
    assert (await worker.record({"token": attempt["token"], "result": "success"}))["recorded"] == 1


async def test_two_polls_with_one_key_get_the_same_leases(admin: Caller, worker: Caller) -> None:
    await admin.create(schedule="manual")
    polls = [asyncio.create_task(_lease(worker, 20)) for _ in range(2)]
    await admin.until_polls(2)
    await admin.create(schedule="now")
    first, second = await asyncio.gather(*polls)
    assert (first.status_code, len(first.json()["attempts"])) == (200, 1)
    assert second.content == first.content


async def test_an_answer_with_nothing_comes_again_too(admin: Caller, worker: Caller) -> None:
    assert (await _lease(worker, 0)).json()["attempts"] == []
    await admin.create(schedule="now")
    assert len((await _lease(worker, key="poll-2")).json()["attempts"]) == 1
    assert (await _lease(worker, 0)).json()["attempts"] == []


async def test_who_hung_up_and_asks_again_is_served(admin: Caller, worker: Caller) -> None:
    hasty = asyncio.create_task(_lease(worker))
    await admin.until_polls(1)
    hasty.cancel()
    await admin.until_polls(0)
    await admin.create(schedule="now")
    assert len((await _lease(worker)).json()["attempts"]) == 1


async def test_outcomes_that_were_recorded_are_told_so_again(admin: Caller, worker: Caller) -> None:
    await admin.create(schedule="now")
    (attempt,) = await worker.lease()
    body = {"worker_id": "w", "outcomes": [{"token": attempt["token"], "result": "success"}]}
    first, again = [await worker.post("/outcomes", json=body, headers=KEY) for _ in range(2)]
    assert first.json() == again.json() == {"recorded": 1, "stale": []}
    assert again.headers["idempotency-replayed"] == "true"


async def test_a_retry_of_a_failure_that_was_recorded_under_a_key_comes_soon(admin: Caller, worker: Caller) -> None:
    await admin.create(schedule="now", retry_delay_seconds=0)
    (attempt,) = await worker.lease()
    body = {"worker_id": "w", "outcomes": [{"token": attempt["token"], "result": "failed"}]}
    await worker.post("/outcomes", json=body, headers=KEY)
    (second,) = await worker.lease()
    assert second["attempt"] == 2


async def test_a_repeated_heartbeat_is_answered_and_extends_nothing(
    admin: Caller, worker: Caller, connection: asyncpg.Connection
) -> None:
    await admin.create(schedule="now")
    (attempt,) = await worker.lease()
    assert (await worker.post("/workers/w/heartbeat", headers=KEY)).json() == {"cancel": []}
    extended = await connection.fetchval("SELECT expires_at FROM leases")
    await admin.post(f"/runs/{attempt['run_id']}/cancel")
    assert (await worker.post("/workers/w/heartbeat", headers=KEY)).json() == {"cancel": []}
    assert await connection.fetchval("SELECT expires_at FROM leases") == extended


async def test_what_workers_do_is_not_in_the_log_of_changes(admin: Caller, worker: Caller) -> None:
    await _lease(worker, 0)
    await worker.post("/workers/w/heartbeat", headers={"Idempotency-Key": "beat-1"})
    assert (await admin.get("/audit-log")).json() == []
