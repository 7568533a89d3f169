"""What a tenant stores is limited: bytes of jobs, of kept answers, API keys; and so is what one search looks at."""

import asyncio
import secrets

import asyncpg
import pytest

from api.callers import JOB, Caller, Callers, is_problem
from evertick.domain.admission import AdmissionRequest, Admitted, Refused, Throttled
from evertick.domain.limits import QuotaName
from evertick.roles.janitor import Janitor
from evertick.store.database import Pool
from evertick.store.jobs import job_lists
from evertick.store.tenants import tenants
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create
from evertick.usecases.tenants import keys
from evertick.usecases.tenants.quotas import Quotas

PAYLOAD = "x" * 48_000


async def _tenant(
    callers: Callers, connection: asyncpg.Connection, *, quota: int, stored: int, answers: int = 0
) -> int:
    tenant_id = await callers.tenant()
    await connection.execute("UPDATE tenants SET storage_quota_bytes = $1 WHERE tenant_id = $2", quota, tenant_id)
    await connection.execute("INSERT INTO storage_changes VALUES ($1, $2, $3)", tenant_id, stored, answers)
    return tenant_id


async def test_over_its_storage_a_tenant_can_store_no_more_but_pause_and_delete(
    callers: Callers, connection: asyncpg.Connection, pool: Pool
) -> None:
    tenant_id = await _tenant(callers, connection, quota=10_000, stored=10_000)
    job = await create(TenantContext(pool, tenant_id), {**JOB, "name": "mine"})
    editor = await callers.make("editor", tenant_id)
    path = f"/jobs/{job.job_id}"
    for answer in (
        await editor.post("/jobs", json=JOB),
        await editor.post("/jobs:batch", json=[JOB]),
        await editor.patch(path, json={"priority": "high"}),
        await editor.put("/jobs/by-name/mine", json=JOB),
        await editor.post(f"{path}/trigger"),
    ):
        problem = is_problem(answer, 429, "over-quota")
        assert (problem["quota"], problem["detail"].split(":")[0]) == ("storage", "the quota storage allows 10000")
        assert int(answer.headers["retry-after"]) > 0
    assert (await editor.post("/schedules/preview", json={"schedule": "@daily"})).status_code == 200
    assert (await editor.post(f"{path}/pause")).status_code == 200
    assert (await editor.delete(path)).status_code == 204


async def test_who_keeps_too_many_answers_is_told_so_and_may_ask_without_a_key(
    callers: Callers, connection: asyncpg.Connection
) -> None:
    tenant_id = await _tenant(callers, connection, quota=10**6, stored=0, answers=10**6)
    editor = await callers.make("editor", tenant_id)
    job = await editor.create()
    path = f"/jobs/{job['job_id']}/pause"
    refused = await editor.post(path, headers={"Idempotency-Key": "a"})
    assert is_problem(refused, 429, "over-quota")["quota"] == "kept_answers"
    assert int(refused.headers["retry-after"]) == 600
    assert (await editor.post(path)).status_code == 200


async def test_pauses_with_fresh_keys_and_edits_of_large_jobs_are_counted(
    callers: Callers, connection: asyncpg.Connection, pool: Pool
) -> None:
    tenant_id = await callers.tenant()
    editor = await callers.make("editor", tenant_id)
    job = await editor.create(payload=PAYLOAD)
    path = f"/jobs/{job['job_id']}"
    for number in range(10):
        await editor.post(f"{path}/pause", headers={"Idempotency-Key": secrets.token_hex()})
        assert (await editor.patch(path, json={"timeout_seconds": 10 + number})).status_code == 200
    before = await tenants.stored(pool, tenant_id)
    assert before.answer_bytes > 10 * len(PAYLOAD)
    assert before.bytes > 11 * len(PAYLOAD)
    report = await Janitor(pool).maintain(full=False)
    assert report.versions_emptied == 10
    after = await tenants.stored(pool, tenant_id)
    assert after.bytes < 2 * len(PAYLOAD)
    assert await connection.fetchval("SELECT count(*) FROM storage_changes") == 0, "they were summed up"


async def test_storage_that_is_used_up_by_others_than_this_process_is_noticed(
    callers: Callers, connection: asyncpg.Connection, pool: Pool
) -> None:
    tenant_id = await _tenant(callers, connection, quota=1000, stored=1000, answers=1000)
    tenant = await tenants.find(pool, tenant_id)
    assert tenant is not None
    assert await Quotas(pool).admit(tenant, AdmissionRequest(jobs=1)) == Refused(QuotaName.STORAGE, 1000)
    kept = await Quotas(pool).admit(tenant, AdmissionRequest(is_stored=False, keeps_answer=True))
    assert isinstance(kept, Throttled)
    assert isinstance(await Quotas(pool).admit(tenant, AdmissionRequest(is_stored=False)), Admitted)
    await connection.execute("INSERT INTO storage_changes VALUES ($1, 1001)", tenant_id)
    assert await Quotas(pool).admit(tenant, AdmissionRequest(is_stored=False)) == Refused(QuotaName.STORAGE, 1000)
    await connection.execute("INSERT INTO storage_changes VALUES ($1, -2001, -1)", tenant_id)
    assert isinstance(await Quotas(pool).admit(tenant, AdmissionRequest(jobs=1, keeps_answer=True)), Admitted)


async def test_every_change_draws_from_the_rate_and_no_deletion_does(
    callers: Callers, connection: asyncpg.Connection, pool: Pool
) -> None:
    tenant_id = await callers.tenant()
    job = await create(TenantContext(pool, tenant_id), JOB)
    await connection.execute(
        "UPDATE tenants SET submits_per_second = 1, submit_burst = 1 WHERE tenant_id = $1", tenant_id
    )
    editor = await callers.make("editor", tenant_id)
    path = f"/jobs/{job.job_id}"
    answers = await asyncio.gather(*(editor.post(f"{path}/pause") for _ in range(10)))
    assert 429 in [answer.status_code for answer in answers]
    assert (await editor.delete(path)).status_code == 204


async def test_a_tenant_has_a_limited_number_of_keys(
    admin: Caller, monkeypatch: pytest.MonkeyPatch, connection: asyncpg.Connection
) -> None:
    monkeypatch.setattr(keys, "MAX_KEYS", 3)
    made = await asyncio.gather(*(admin.post("/api-keys", json={"role": "viewer"}) for _ in range(6)))
    assert sorted(answer.status_code for answer in made) == [201, 201, 429, 429, 429, 429]
    refused = next(answer for answer in made if answer.status_code == 429)
    assert is_problem(refused, 429, "over-quota")["quota"] == "api_keys"
    key_id = next(answer.json()["key_id"] for answer in made if answer.status_code == 201)
    rotated = await admin.post(f"/api-keys/{key_id}/rotate")
    assert rotated.status_code == 201, "the old one ends"
    await admin.delete(f"/api-keys/{rotated.json()['key_id']}")
    assert (await admin.post("/api-keys", json={"role": "viewer"})).status_code == 201


async def test_keys_and_changes_are_forgotten_after_the_history_but_the_last_key(
    admin: Caller, connection: asyncpg.Connection, pool: Pool
) -> None:
    for _ in range(3):
        made = (await admin.post("/api-keys", json={"role": "viewer"})).json()
        await admin.delete(f"/api-keys/{made['key_id']}")
    await connection.execute("UPDATE api_keys SET revoked_at = clock_at() - interval '91 days'")
    await connection.execute("UPDATE audit_log SET changed_at = clock_at() - interval '366 days'")
    assert (await Janitor(pool).maintain()).rows_pruned == 3 + 6
    assert await connection.fetchval("SELECT count(*) FROM api_keys") == 1
    assert await keys.create_first(connection, 1) is None, "it had one"
    assert (await tenants.stored(pool, 1)).bytes == 0


async def test_a_search_looks_at_a_limited_number_of_jobs_and_goes_on_in_the_next_page(
    admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_lists, "MAX_LOOKED_AT", 4)
    for number in range(10):
        await admin.create(name=f"job-{number}", labels={"team": "rare" if number in {5, 9} else "common"})
    found: list[list[str]] = []
    path: str | None = "/jobs?label=team:rare&limit=50"
    while path is not None:
        answer = await admin.get(path)
        found.append([job["name"] for job in answer.json()])
        path = answer.links["next"]["url"].removeprefix("/api/v1") if "next" in answer.links else None
    assert found == [[], ["job-5"], ["job-9"]]
    assert len((await admin.get("/jobs?limit=4")).json()) == 4
