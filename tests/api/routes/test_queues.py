"""Queues: which there are, and how much of each runs at once."""

import asyncio
from collections import Counter

import asyncpg
import pytest

from api.callers import Caller, Callers, is_problem, pointers
from engine import PATIENCE_SECONDS, until
from evertick.api import long_polls
from evertick.usecases.runs import pull_workers

BILLING = {
    "name": "billing",
    "max_running": None,
    "max_ready": 250_000,
    "rate_limit": None,
    "rate_burst": None,
    "ready": 0,
    "oldest_due_at": None,
    "is_full": False,
    "workers": 0,
    "handlers": [{"handler": "send_invoice", "workers": 0}],
}


async def test_a_queue_is_there_with_its_first_job_and_has_no_limit(admin: Caller) -> None:
    assert (await admin.get("/queues")).json() == []
    await admin.create()
    assert (await admin.get("/queues")).json() == [BILLING]
    assert (await admin.get("/queues/billing")).json() == BILLING
    is_problem(await admin.get("/queues/other"), 404, "not-found")


async def test_a_queue_may_be_limited_before_its_first_job_and_is_no_more(admin: Caller, callers: Callers) -> None:
    editor, viewer = [await callers.make(role) for role in ("editor", "viewer")]
    limits = {"max_running": 5, "max_ready": 7, "rate_limit": 0.5, "rate_burst": 3}
    limited = BILLING | {"name": "reports", "handlers": []} | limits
    assert (await viewer.put("/queues/reports", json=limits)).status_code == 403
    assert (await editor.put("/queues/reports", json=limits)).json() == limited
    assert (await viewer.get("/queues")).json() == [limited]
    unlimited = BILLING | {"name": "reports", "handlers": []}
    assert (await editor.put("/queues/reports", json={})).json() == unlimited, "what is left out gets its default"
    (entry, _) = (await admin.get("/audit-log")).json()
    assert (entry["action"], entry["subject"]) == ("put_queue", "reports")


async def test_what_is_no_limit_is_refused(admin: Caller) -> None:
    for wrong in (-1, "5", 1_000_001, 1.5):
        assert pointers(await admin.put("/queues/reports", json={"max_running": wrong})) == ["/max_running"]
    for out in (0, "5", 1_000_000_001, None):
        answer = await admin.put("/queues/reports", json={"max_running": 1, "max_ready": out})
        assert pointers(answer) == ["/max_ready"]
    for wrong in (0, -1, "5", 1_000_001, 0.0001):
        assert pointers(await admin.put("/queues/reports", json={"rate_limit": wrong})) == ["/rate_limit"]
    for wrong in (0, 1.5, "5"):
        refused = await admin.put("/queues/reports", json={"rate_limit": 1, "rate_burst": wrong})
        assert pointers(refused) == ["/rate_burst"]
    assert pointers(await admin.put("/queues/reports", json={"rate_burst": 1})) == ["/rate_burst"]
    assert (await admin.put("/queues/Reports", json={"max_running": 1})).status_code == 422
    assert (await admin.get("/queues")).json() == []


async def test_a_queue_tells_how_full_it_is(admin: Caller, connection: asyncpg.Connection) -> None:
    await admin.put("/queues/reports", json={"max_running": None, "max_ready": 5})
    await admin.put("/queues/other", json={"max_running": None})
    queue_id = await connection.fetchval("SELECT queue_id FROM queues WHERE name = 'reports'")
    await connection.execute(
        "INSERT INTO ready_batches SELECT lane_id_of($1, n, 1), 1, 1, '2026-06-01T12:00:00Z', 2, false"
        " FROM generate_series(1, 2) AS n",
        queue_id,
    )
    reports = (await admin.get("/queues/reports")).json()
    assert (reports["ready"], reports["oldest_due_at"], reports["is_full"]) == (4, "2026-06-01T12:00:00Z", False)
    await admin.put("/queues/reports", json={"max_running": None, "max_ready": 4})
    other, reports = (await admin.get("/queues")).json()
    assert (reports["is_full"], other["is_full"]) == (True, False)
    await connection.execute("UPDATE tenants SET ready_quota = 4")
    assert (await admin.get("/queues/other")).json()["is_full"]  # all of its tenant's queues are
    await admin.put("/queues/reports", json={"max_running": None})
    await connection.execute("UPDATE tenants SET ready_quota = 5")
    other, reports = (await admin.get("/queues")).json()
    assert (reports["is_full"], other["is_full"]) == (True, False)  # the rest is for the other
    await connection.execute("UPDATE tenants SET ready_quota = 6")
    assert not (await admin.get("/queues/reports")).json()["is_full"]


async def test_queues_of_another_tenant_are_not_seen(admin: Caller, callers: Callers) -> None:
    await admin.put("/queues/reports", json={"max_running": 5})
    other = await callers.make("admin", await callers.tenant())
    assert (await other.get("/queues")).json() == []
    is_problem(await other.get("/queues/reports"), 404, "not-found")


async def test_queues_come_page_by_page(admin: Caller) -> None:
    for name in "cab":
        await admin.put(f"/queues/{name}", json={"max_running": 1})
    first = await admin.get("/queues", params={"limit": 2})
    assert [queue["name"] for queue in first.json()] == ["a", "b"]
    rest = await admin.get(first.links["next"]["url"].removeprefix("/api/v1"))
    assert ([queue["name"] for queue in rest.json()], "next" in rest.links) == (["c"], False)


@pytest.mark.usefixtures("scheduler")
async def test_pull_workers_get_no_more_than_the_queue_may_run(admin: Caller) -> None:
    await admin.put("/queues/billing", json={"max_running": 3})
    job = await admin.create(concurrent_policy="ALLOW", max_concurrent=100)
    for _ in range(5):
        await admin.post(f"/jobs/{job['job_id']}/trigger")
    first = await _leased(admin, 3)
    assert await admin.lease(worker="other", wait_seconds=0) == []
    await admin.record({"token": first[0]["token"], "result": "success"})
    assert len(await admin.lease(worker="other", wait_seconds=0)) == 1


@pytest.fixture
def rare_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no wake-up announces is not found."""
    monkeypatch.setattr(long_polls, "CHECK_SECONDS", 3600.0)


@pytest.mark.usefixtures("rare_checks", "scheduler")
async def test_a_pull_worker_that_waits_is_woken_when_an_outcome_makes_room(admin: Caller) -> None:
    await admin.put("/queues/billing", json={"max_running": 1})
    job = await admin.create(concurrent_policy="ALLOW", max_concurrent=100)
    for _ in range(2):
        await admin.post(f"/jobs/{job['job_id']}/trigger")
    (first,) = await _leased(admin, 1)
    await until(lambda: _has_one_ready(admin))
    assert await admin.lease(worker="other", wait_seconds=0) == []
    waiting = asyncio.create_task(admin.lease(worker="other", wait_seconds=30))
    await admin.until_polls(1)
    await admin.record({"token": first["token"], "result": "success"})
    assert len(await waiting) == 1


@pytest.mark.usefixtures("rare_checks", "scheduler")
async def test_a_pull_worker_that_waits_is_woken_when_an_outcome_leaves_a_place_of_a_key(admin: Caller) -> None:
    job = await admin.create(max_running=1)
    for _ in range(2):
        await admin.post(f"/jobs/{job['job_id']}/trigger")
    (first,) = await _leased(admin, 1)
    waiting = asyncio.create_task(admin.lease(worker="other", wait_seconds=30))
    await admin.until_polls(1)
    await admin.record({"token": first["token"], "result": "success"})
    assert len(await waiting) == 1


@pytest.mark.usefixtures("scheduler")
async def test_a_pull_worker_that_meets_the_lock_of_another_lease_tries_again(
    admin: Caller, connection: asyncpg.Connection, statements: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_workers, "CONTENDED_PAUSES", (0.01,) * 10_000)  # on a machine of any speed
    await admin.put("/queues/billing", json={"max_running": 1})
    job = await admin.create()
    await admin.post(f"/jobs/{job['job_id']}/trigger")
    await until(lambda: _has_one_ready(admin))
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(1163280386, queue_id) FROM queues")
        tried = statements["lanes.lock_caps"]
        leasing = asyncio.create_task(admin.lease(wait_seconds=0))
        await until(lambda: _is_more_than(statements, tried + 1))
    assert len(await leasing) == 1


async def _is_more_than(statements: Counter[str], tries: int) -> bool:
    return statements["lanes.lock_caps"] > tries


async def _has_one_ready(caller: Caller) -> bool:
    return bool((await caller.get("/queues/billing")).json()["ready"] == 1)


@pytest.mark.usefixtures("scheduler")
async def test_pull_workers_get_no_more_than_the_rate_of_the_queue_allows(admin: Caller) -> None:
    await admin.put("/queues/billing", json={"rate_limit": 0.001, "rate_burst": 3})
    job = await admin.create(concurrent_policy="ALLOW", max_concurrent=100)
    for _ in range(5):
        await admin.post(f"/jobs/{job['job_id']}/trigger")
    await _leased(admin, 3)
    assert await admin.lease(worker="other", wait_seconds=0) == []
    await admin.put("/queues/billing", json={"rate_limit": 20, "rate_burst": 1})
    assert len(await _leased(admin, 2)) == 2, "one after the other"


async def _leased(caller: Caller, count: int) -> list[dict[str, object]]:
    """So many attempts; they become ready one after the other."""
    leased: list[dict[str, object]] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(leased) < count:
            leased += await caller.lease(wait_seconds=10)
    assert len(leased) == count
    return leased
