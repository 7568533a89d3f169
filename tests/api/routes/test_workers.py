import asyncio
import time
from datetime import UTC, datetime

import asyncpg
import pytest

from api.callers import TARGET, Caller, Callers, is_problem, pointers
from engine import until
from evertick.api.server import ApiServer
from evertick.roles.scheduler import Scheduler

POLL_SECONDS = 30
"""The longest poll: what ends sooner was woken."""

pytestmark = pytest.mark.usefixtures("scheduler")


@pytest.fixture
async def worker(callers: Callers) -> Caller:
    return await callers.make("worker")


async def test_a_lease_brings_all_that_running_needs(admin: Caller, worker: Caller) -> None:
    job = await admin.create(name="invoice", schedule="now", payload={"n": 1}, timeout_seconds=60)
    answer = await worker.post("/queues/billing/lease", json={"worker_id": "w"})
    assert answer.json()["lease_seconds"] == 30
    (attempt,) = answer.json()["attempts"]
    lane, seq = attempt["token"].split(".")
    assert int(lane) > 0
    assert int(seq) > 0
    assert attempt["run_id"].startswith("run_")
    assert (attempt["job_id"], attempt["name"], attempt["handler"]) == (job["job_id"], "invoice", "send_invoice")
    assert (attempt["payload"], attempt["attempt"]) == ({"n": 1}, 1)
    assert attempt["scheduled_at"] == job["next_run_at"]
    assert attempt["idempotency_key"].startswith(f"{job['job_id']}:")
    left = datetime.fromisoformat(attempt["deadline"]) - datetime.now(UTC)
    assert 0 < left.total_seconds() <= 61


async def test_a_worker_gets_only_work_for_handlers_that_it_has_and_the_rest_waits_for_others(
    admin: Caller, worker: Caller, connection: asyncpg.Connection
) -> None:
    await admin.create(schedule="now")
    lease = {"worker_id": "w", "wait_seconds": 0, "handlers": ["another"]}

    async def is_put_back() -> bool:
        assert (await worker.post("/queues/billing/lease", json=lease)).json()["attempts"] == []
        return bool(await connection.fetchval("SELECT handler FROM leases WHERE worker IS NULL") == "send_invoice")

    await until(is_put_back)
    lease |= {"worker_id": "v", "handlers": ["send_invoice", "another"]}
    (attempt,) = (await worker.post("/queues/billing/lease", json=lease)).json()["attempts"]
    assert (attempt["handler"], attempt["attempt"]) == ("send_invoice", 1)
    assert await connection.fetchval("SELECT count(*) FROM outcomes") == 0
    assert [row["worker"].endswith("/v") for row in await connection.fetch("SELECT worker FROM leases")] == [True]


async def test_a_recorded_success_ends_the_run(admin: Caller, worker: Caller, connection: asyncpg.Connection) -> None:
    await admin.create(schedule="now")
    (attempt,) = await worker.lease()
    outcome = {
        "token": attempt["token"],
        "result": "success",
        "started_at": "2026-06-09T13:00:00Z",
        "finished_at": "2026-06-09T13:00:00.001Z",
        "output": {"sent": True},
    }
    assert await worker.record(outcome) == {"recorded": 1, "stale": []}
    run = (await admin.get(f"/runs/{attempt['run_id']}")).json()
    assert (run["status"], run["duration_ms"], run["worker_id"], run["attempt"]) == ("success", 1, "w", 1)
    assert run["attempts"][0]["token"] == attempt["token"]
    assert (run["attempts"][0]["result"], run["attempts"][0]["excerpt"]) == ("success", '{"sent":true}')
    assert await connection.fetchval("SELECT count(*) FROM leases") == 0


async def test_a_second_outcome_of_an_attempt_is_stale(admin: Caller, worker: Caller) -> None:
    await admin.create(schedule="now")
    (attempt,) = await worker.lease()
    outcome = {"token": attempt["token"], "result": "success"}
    await worker.record(outcome)
    again = {**outcome, "result": "failed"}
    assert await worker.record(again) == {"recorded": 0, "stale": [attempt["token"]]}
    assert (await admin.get(f"/runs/{attempt['run_id']}")).json()["status"] == "success"


async def test_a_workers_attempts_that_ran_out_go_to_another_with_a_larger_token_and_its_late_outcome_is_stale(
    admin: Caller, worker: Caller, connection: asyncpg.Connection
) -> None:
    await admin.create(schedule="now", retry_delay_seconds=0)
    (first,) = await worker.lease(worker="killed")
    await connection.execute("UPDATE leases SET expires_at = clock_at() - interval '1 second'")
    (second,) = await worker.lease(worker="other")
    assert second["run_id"] == first["run_id"]
    assert second["idempotency_key"] == first["idempotency_key"]
    assert int(second["token"].split(".")[1]) > int(first["token"].split(".")[1])
    late = await worker.record({"token": first["token"], "result": "success"}, worker="killed")
    assert late == {"recorded": 0, "stale": [first["token"]]}
    assert (await worker.record({"token": second["token"], "result": "success"}, worker="other"))["recorded"] == 1


async def test_only_the_worker_that_holds_an_attempt_can_end_it(
    admin: Caller, worker: Caller, callers: Callers
) -> None:
    await admin.create(schedule="now")
    (attempt,) = await worker.lease()
    outcome = {"token": attempt["token"], "result": "success"}
    assert (await worker.record(outcome, worker="impostor"))["stale"] == [attempt["token"]]
    stranger = await callers.make("worker", await callers.tenant())
    assert (await stranger.record(outcome))["stale"] == [attempt["token"]]
    assert (await worker.record(outcome))["recorded"] == 1


async def test_a_token_that_nobody_leased_cannot_be_ended(worker: Caller) -> None:
    tokens = ["0.0", "1.1", f"{10**18 - 1}.{10**18 - 1}"]
    recorded = await worker.record(*({"token": token, "result": "success"} for token in tokens))
    assert recorded == {"recorded": 0, "stale": tokens}


async def test_a_failure_is_retried_until_the_retries_are_used_up(admin: Caller, worker: Caller) -> None:
    await admin.create(schedule="now", max_retries=1, retry_delay_seconds=0)
    (attempt,) = await worker.lease()
    await worker.record({"token": attempt["token"], "result": "failed", "error": "no 1"})
    (attempt,) = await worker.lease()
    assert attempt["attempt"] == 2
    await worker.record({"token": attempt["token"], "result": "failed", "error": "no 2"})
    run = (await admin.get(f"/runs/{attempt['run_id']}")).json()
    assert (run["status"], run["error"], run["attempt"]) == ("dead", "no 2", 2)
    (letter,) = (await admin.get("/dead-letters")).json()
    assert (letter["run_id"], letter["error"], letter["reason"]) == (attempt["run_id"], "no 2", "exhausted")


async def test_what_cannot_be_helped_is_not_retried(admin: Caller, worker: Caller) -> None:
    await admin.create(schedule="now")
    (attempt,) = await worker.lease()
    await worker.record({"token": attempt["token"], "result": "failed", "retryable": False})
    (letter,) = (await admin.get("/dead-letters")).json()
    assert letter["reason"] == "not_retryable"


async def test_what_is_deferred_comes_again_as_the_same_attempt(admin: Caller, worker: Caller) -> None:
    await admin.create(schedule="now")
    (first,) = await worker.lease()
    await worker.record({"token": first["token"], "result": "deferred"})
    (second,) = await worker.lease()
    assert (second["run_id"], second["attempt"]) == (first["run_id"], 1)


async def test_no_more_is_leased_than_was_asked_for(admin: Caller, worker: Caller) -> None:
    jobs = [{"schedule": "manual", "target": TARGET} for _ in range(40)]
    verdicts = (await admin.post("/jobs:batch", json=jobs)).json()
    await asyncio.gather(*(admin.post(f"/jobs/{verdict['job_id']}/trigger") for verdict in verdicts))
    seen: set[str] = set()
    while len(seen) < 40:
        leased = await worker.lease(max=7)
        assert 0 < len(leased) <= 7
        seen |= {attempt["run_id"] for attempt in leased}


async def test_one_lane_with_much_work_fills_a_whole_lease(admin: Caller, worker: Caller) -> None:
    job = await admin.create(schedule="manual")
    for _ in range(12):
        await admin.post(f"/jobs/{job['job_id']}/trigger")

    async def all_are_ready() -> bool:
        return bool((await admin.get("/stats")).json()["ready"] == 12)

    await until(all_are_ready)
    assert len(await worker.lease(max=12)) == 12


@pytest.mark.parametrize("queue", ["billing", "new"])
async def test_a_long_poll_wakes_when_work_arrives_be_it_the_first_of_its_queue(
    admin: Caller, worker: Caller, queue: str
) -> None:
    await admin.create(schedule="manual")
    waiting = asyncio.create_task(worker.lease(queue, wait_seconds=POLL_SECONDS))
    await admin.until_polls(1)
    began = time.monotonic()
    job = await admin.create(schedule="now", target={**TARGET, "queue": queue})
    (attempt,) = await waiting
    assert attempt["job_id"] == job["job_id"]
    assert time.monotonic() - began < POLL_SECONDS


async def test_a_poll_is_held_for_as_long_as_it_asks_even_where_there_never_was_a_job(
    admin: Caller, worker: Caller
) -> None:
    await admin.create()
    began = time.monotonic()
    found = await asyncio.gather(worker.lease(wait_seconds=10), worker.lease("mistyped", wait_seconds=10))
    assert [len(attempts) for attempts in found] == [0, 0]
    assert time.monotonic() - began >= 10


async def test_a_poll_of_an_empty_queue_ends_when_its_time_is_up(admin: Caller, worker: Caller) -> None:
    await admin.create()
    began = time.monotonic()
    assert await worker.lease(wait_seconds=0.3) == []
    assert time.monotonic() - began >= 0.3


async def test_no_poll_may_ask_for_more_than_half_a_minute(worker: Caller) -> None:
    assert pointers(await worker.post("/queues/billing/lease", json={"worker_id": "w", "wait_seconds": 30.1})) == [
        "/wait_seconds"
    ]


async def test_who_has_hung_up_is_given_nothing_and_waits_no_longer(
    admin: Caller, worker: Caller, connection: asyncpg.Connection
) -> None:
    await admin.create(schedule="manual")
    hasty = asyncio.create_task(worker.lease(worker="gone", wait_seconds=POLL_SECONDS))
    await admin.until_polls(1)
    began = time.monotonic()
    hasty.cancel()
    await admin.until_polls(0)
    assert time.monotonic() - began < POLL_SECONDS
    await admin.create(schedule="now")
    (attempt,) = await worker.lease(worker="here")
    assert attempt["attempt"] == 1
    assert await connection.fetchval("SELECT count(*) FROM leases WHERE worker LIKE '%gone'") == 0


async def test_a_server_that_stops_sends_long_polls_home(server: ApiServer, admin: Caller, worker: Caller) -> None:
    await admin.create(schedule="manual")
    waiting = asyncio.create_task(worker.lease(wait_seconds=POLL_SECONDS))
    await admin.until_polls(1)
    began = time.monotonic()
    await server.stop()
    assert await waiting == []
    assert time.monotonic() - began < POLL_SECONDS


async def test_a_heartbeat_keeps_leases_and_tells_what_was_cancelled(
    admin: Caller, worker: Caller, connection: asyncpg.Connection
) -> None:
    await admin.create(schedule="now")
    (attempt,) = await worker.lease()
    before = await connection.fetchval("SELECT expires_at FROM leases")
    assert (await worker.post("/workers/w/heartbeat")).json() == {"cancel": []}
    assert await connection.fetchval("SELECT expires_at FROM leases") > before
    assert (await admin.post(f"/runs/{attempt['run_id']}/cancel")).json()["status"] == "cancelled"
    assert (await worker.post("/workers/w/heartbeat")).json() == {"cancel": [attempt["token"]]}
    late = await worker.record({"token": attempt["token"], "result": "success"})
    assert late == {"recorded": 0, "stale": [attempt["token"]]}


async def test_a_heartbeat_tells_which_of_the_running_were_lost(admin: Caller, worker: Caller) -> None:
    await admin.create(schedule="now")
    (attempt,) = await worker.lease()
    answer = await worker.post("/workers/w/heartbeat", json={"tokens": [attempt["token"], "5.5"]})
    assert answer.json() == {"cancel": ["5.5"]}


async def test_a_heartbeat_that_names_what_it_holds_lets_all_else_run_out(
    admin: Caller, worker: Caller, connection: asyncpg.Connection
) -> None:
    """Else an attempt whose answer got lost would be nobody's for as long as the worker lives."""
    await admin.create(schedule="now", name="heard")
    (heard,) = await worker.lease()
    await admin.create(schedule="now", name="lost on the way", retry_delay_seconds=0)
    (lost,) = await worker.lease()
    before = await _expiries(connection)
    assert (await worker.post("/workers/w/heartbeat", json={"tokens": [heard["token"]]})).json() == {"cancel": []}
    after = await _expiries(connection)
    assert after[heard["token"]] > before[heard["token"]]
    assert after[lost["token"]] == before[lost["token"]]
    assert (await worker.post("/workers/w/heartbeat", json={"tokens": []})).json() == {"cancel": []}
    assert await _expiries(connection) == after
    assert (await worker.post("/workers/w/heartbeat", json={})).json() == {"cancel": []}
    at_last = await _expiries(connection)
    assert all(at_last[token] > after[token] for token in after)


async def _expiries(connection: asyncpg.Connection) -> dict[str, datetime]:
    """When the lease of each token runs out, where leases hold one attempt each."""
    rows = await connection.fetch("SELECT lane_id || '.' || first_seq AS token, expires_at FROM leases")
    return {row["token"]: row["expires_at"] for row in rows}


async def test_workers_of_two_tenants_may_have_one_name(admin: Caller, worker: Caller, callers: Callers) -> None:
    other = await callers.tenant()
    editor, stranger = await callers.make("editor", other), await callers.make("worker", other)
    await admin.create(schedule="now", payload="mine")
    await editor.create(schedule="now", payload="theirs")
    (mine,), (theirs,) = await worker.lease(), await stranger.lease()
    assert (mine["payload"], theirs["payload"]) == ("mine", "theirs")
    await admin.post(f"/runs/{mine['run_id']}/cancel")
    assert (await stranger.post("/workers/w/heartbeat")).json() == {"cancel": []}


async def test_the_queue_of_http_targets_is_not_for_pulling(worker: Caller) -> None:
    assert pointers(await worker.post("/queues/http/lease", json={"worker_id": "w"})) == ["/queue"]


@pytest.mark.parametrize("path", ["/queues/No%20Queue/lease", "/workers/a%20b/heartbeat"])
async def test_names_that_cannot_be_are_refused(worker: Caller, path: str) -> None:
    assert (await worker.post(path, json={"worker_id": "w"} if "lease" in path else {})).status_code == 422


async def test_a_job_that_does_not_exist_has_no_run_to_cancel(admin: Caller, scheduler: Scheduler) -> None:
    is_problem(await admin.post(f"/runs/run_{'0' * 26}/cancel"), 404, "not-found")
