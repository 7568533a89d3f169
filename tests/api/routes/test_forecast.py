"""The forecast, the advisor and its smears over HTTP; a smear is worked off by a janitor, here by hand."""

import asyncio
from typing import Any

import pytest

from api.callers import Caller, Callers, is_problem, pointers
from evertick.runtime.smearing import smear_batch
from evertick.store.database import Pool
from hooked_pool import Run, hook_every_pool
from schedules import daily, daily_in_half_a_day

DAILY = {"schedule": "0 3 * * *"}


async def test_a_forecast_has_a_count_for_each_bucket(admin: Caller) -> None:
    at = daily_in_half_a_day()
    await admin.create(schedule=daily(at), name="nightly")
    day = (await admin.get("/forecast")).json()
    assert (len(day["counts"]), day["bucket_seconds"], day["total"], day["counted_jobs"]) == (1440, 60, 1, 1)
    assert day["hottest"][0]["rules"][0]["job_names"] == ["nightly"]
    month = (await admin.get("/forecast", params={"horizon": "30d", "hottest": 0})).json()
    assert (len(month["counts"]), month["bucket_seconds"], month["total"], month["hottest"]) == (720, 3600, 30, [])
    between: dict[str, str | int] = {
        "from": "2030-01-01T00:00:00Z",
        "to": "2030-01-02T00:00:00Z",
        "bucket_seconds": 3600,
    }
    hours = (await admin.get("/forecast", params=between)).json()["counts"]
    assert hours == [1 if hour == at.hour else 0 for hour in range(24)]
    none = await admin.get("/forecast", params={"label": "team:none"})
    assert none.json()["total"] == 0


@pytest.mark.parametrize("path", ["/forecast", "/forecast/advice"])
async def test_equal_requests_at_the_same_time_share_one_forecast(
    admin: Caller, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    await admin.create(**DAILY)
    begun, release, read = asyncio.Event(), asyncio.Event(), 0

    async def held(run: Run, _: object) -> Any:
        nonlocal read
        read += 1
        begun.set()
        await release.wait()
        return await run()

    hook_every_pool(monkeypatch, "forecast.of_tenant", held)
    first = asyncio.create_task(admin.get(path))
    await begun.wait()
    others = [asyncio.create_task(admin.get(path)) for _ in range(3)]
    for _ in range(5):  # a request that came later has been answered: the others are under way
        await admin.get("/smears")
    first.cancel()
    release.set()
    answers = await asyncio.gather(*others)
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({answer.text for answer in answers}) == 1
    reads_of_one = 2  # one partition, then all
    assert read == reads_of_one


async def test_what_cannot_be_forecast_is_a_problem(admin: Caller) -> None:
    refused = await admin.get("/forecast", params={"horizon": "1y"})
    is_problem(refused, 422, "invalid-input")
    assert pointers(await admin.get("/forecast", params={"bucket_seconds": 1})) == ["/bucket_seconds"]


async def test_only_admins_of_the_host_see_all_tenants(admin: Caller, callers: Callers) -> None:
    other = await callers.make("admin", await callers.tenant())
    await other.create(**DAILY)
    assert (await admin.get("/forecast", params={"all_tenants": True})).json()["total"] == 1
    assert (await admin.get("/forecast")).json()["total"] == 0
    is_problem(await other.get("/forecast", params={"all_tenants": True}), 403, "forbidden")


async def test_an_advice_is_applied_and_undone(admin: Caller, callers: Callers, pool: Pool) -> None:
    editor, viewer = [await callers.make(role) for role in ("editor", "viewer")]
    for _ in range(30):
        await admin.create(**DAILY)
    advice = (await viewer.get("/forecast/advice")).json()
    assert (advice["jobs"], advice["peak_before"]) == (30, 30)
    body = {"rules": [rule["rule_id"] for rule in advice["rules"]], "jitter_seconds": advice["jitter_seconds"]}
    is_problem(await viewer.post("/forecast/advice:apply", json=body), 403, "forbidden")
    keyed = {"Idempotency-Key": "smear-1"}
    applied = await editor.post("/forecast/advice:apply", json=body, headers=keyed)
    assert (applied.status_code, applied.json()["status"], applied.json()["jobs"]) == (202, "running", 30)
    again = await editor.post("/forecast/advice:apply", json=body, headers=keyed)
    assert again.json() == applied.json()
    await smear_batch(pool)
    path = applied.headers["Location"].removeprefix("/api/v1")
    done = (await viewer.get(path)).json()
    assert (done["status"], done["changed"]) == ("done", 30)
    assert (await viewer.get("/forecast")).json()["peak"] == advice["peak_after"]
    assert (await viewer.get("/smears")).json() == [done]
    is_problem(await viewer.post(f"{path}/undo"), 403, "forbidden")
    assert (await editor.post(f"{path}/undo")).status_code == 202
    await smear_batch(pool)
    assert (await viewer.get(path)).json()["undone"] == 30
    is_problem(await editor.post(f"{path}/undo"), 409, "wrong-state")
    assert (await viewer.get("/forecast")).json()["peak"] == 30
    actions = {entry["action"] for entry in (await admin.get("/audit-log", params={"limit": 200})).json()}
    assert {"apply_advice", "smear_job", "undo_smear", "undo_smear_job"} <= actions


async def test_attention_says_what_is_wrong_and_what_comes_next(admin: Caller) -> None:
    assert (await admin.get("/attention")).json()["needs"] == []
    job = await admin.create(**DAILY, name="nightly")
    (coming,) = (await admin.get("/attention")).json()["next"]
    assert (coming["job_id"], coming["name"], coming["due_at"]) == (job["job_id"], "nightly", job["next_run_at"])
