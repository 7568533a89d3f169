"""Alerts and their target, as the API shows and changes them."""

import asyncpg

from api.callers import Caller, is_problem, pointers
from evertick.store.tenants import alerts
from evertick.store.tenants.alerts import NewAlert

TARGET = {"url": "https://hooks.example.invalid/alerts"}


async def test_the_target_is_put_read_and_deleted(admin: Caller) -> None:
    assert is_problem(await admin.get("/alerts/target"), 404, "not-found")
    put = await admin.request("PUT", "/alerts/target", json={**TARGET, "conditions": ["fuse", "late", "fuse"]})
    assert put.status_code == 200
    assert put.json()["conditions"] == ["fuse", "late"]
    assert (await admin.get("/alerts/target")).json() == put.json()
    test = await admin.post("/alerts/target/test", json={})
    assert (test.status_code, test.json()["job_id"]) == (202, put.json()["job_id"])
    assert (await admin.request("DELETE", "/alerts/target")).status_code == 204
    assert is_problem(await admin.post("/alerts/target/test", json={}), 404, "not-found")
    assert is_problem(await admin.request("DELETE", "/alerts/target"), 404, "not-found")


async def test_a_target_that_cannot_be_used_is_refused(admin: Caller) -> None:
    for wrong, pointer in (
        ({}, "/url"),
        ({"url": "ftp://example.com"}, "/url"),
        ({**TARGET, "conditions": ["boredom"]}, "/conditions"),
        ({**TARGET, "conditions": []}, "/conditions"),
        ({**TARGET, "headers": {"Host": "a"}}, "/headers/Host"),
        ({**TARGET, "colour": "blue"}, ""),
    ):
        answer = await admin.request("PUT", "/alerts/target", json=wrong)
        assert answer.status_code == 422, wrong
        assert any(found.startswith(pointer) for found in pointers(answer)), (wrong, pointers(answer))


async def test_a_job_of_the_notices_name_stands_in_the_way(admin: Caller) -> None:
    await admin.create(name="alert:notices", schedule="manual")
    assert is_problem(await admin.request("PUT", "/alerts/target", json=TARGET), 409, "name-taken")


async def test_alerts_are_listed_newest_first_page_by_page(admin: Caller, connection: asyncpg.Connection) -> None:
    job = await admin.create(alert_after_failures=3, name="mine")
    await admin.request("PUT", "/alerts/target", json=TARGET)
    for number in range(3):
        await alerts.open_all(connection, [NewAlert(1, None, 1, "breaker_open", f"host-{number}", "it fails")])
    await connection.execute("UPDATE alerts SET is_open = false, closed_at = clock_at() WHERE subject = 'host-1'")
    found, path = [], "/alerts?limit=2"
    while path:
        answer = await admin.get(path)
        found += answer.json()
        path = answer.links["next"]["url"].partition("/api/v1")[2] if "next" in answer.links else ""
    assert [alert["subject"] for alert in found] == ["host-2", "host-1", "host-0"]
    assert [alert["status"] for alert in found] == ["open", "closed", "open"]
    assert len((await admin.get("/alerts?status=open")).json()) == 2
    assert job["alert_after_failures"] == 3
    assert is_problem(await admin.get("/alerts?status=odd"), 422, "invalid-input")
