"""Queues: which there are, and how much of each runs at once."""

import asyncio

import pytest

from api.callers import Caller, Callers, is_problem, pointers
from engine import PATIENCE_SECONDS


async def test_a_queue_is_there_with_its_first_job_and_has_no_limit(admin: Caller) -> None:
    assert (await admin.get("/queues")).json() == []
    await admin.create()
    unlimited = {"name": "billing", "max_running": None, "rate_limit": None, "rate_burst": None}
    assert (await admin.get("/queues")).json() == [unlimited]
    assert (await admin.get("/queues/billing")).json() == unlimited
    is_problem(await admin.get("/queues/other"), 404, "not-found")


async def test_a_queue_may_be_limited_before_its_first_job_and_is_no_more(admin: Caller, callers: Callers) -> None:
    editor, viewer = [await callers.make(role) for role in ("editor", "viewer")]
    limits = {"max_running": 5, "rate_limit": 0.5, "rate_burst": 3}
    assert (await viewer.put("/queues/reports", json=limits)).status_code == 403
    assert (await editor.put("/queues/reports", json=limits)).json() == limits | {"name": "reports"}
    assert (await viewer.get("/queues")).json() == [limits | {"name": "reports"}]
    unlimited = {"name": "reports", "max_running": None, "rate_limit": None, "rate_burst": None}
    assert (await editor.put("/queues/reports", json={})).json() == unlimited, "a limit that is left out is removed"
    (entry, _) = (await admin.get("/audit-log")).json()
    assert (entry["action"], entry["subject"]) == ("put_queue", "reports")


async def test_what_is_no_limit_is_refused(admin: Caller) -> None:
    for wrong in (-1, "5", 1_000_001, 1.5):
        assert pointers(await admin.put("/queues/reports", json={"max_running": wrong})) == ["/max_running"]
    for wrong in (0, -1, "5", 1_000_001, 0.0001):
        assert pointers(await admin.put("/queues/reports", json={"rate_limit": wrong})) == ["/rate_limit"]
    for wrong in (0, 1.5, "5"):
        refused = await admin.put("/queues/reports", json={"rate_limit": 1, "rate_burst": wrong})
        assert pointers(refused) == ["/rate_burst"]
    assert pointers(await admin.put("/queues/reports", json={"rate_burst": 1})) == ["/rate_burst"]
    assert (await admin.put("/queues/Reports", json={"max_running": 1})).status_code == 422
    assert (await admin.get("/queues")).json() == []


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
