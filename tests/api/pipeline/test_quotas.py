import asyncio
import json
from typing import Any

import asyncpg
import httpx
import pytest

from api.callers import JOB, Caller, Callers, is_problem
from engine import until
from evertick.domain.admission import AdmissionRequest, Admitted, Refused
from evertick.store.database import Pool
from evertick.store.tenants import tenants
from evertick.usecases.tenants.quotas import Quotas
from hooked_pool import Run, hook_every_pool


async def _limited(callers: Callers, connection: asyncpg.Connection, **limits: int) -> Caller:
    """An editor of a new tenant with these limits."""
    tenant_id = await callers.tenant()
    for name, limit in limits.items():
        await connection.execute(f"UPDATE tenants SET {name} = $1 WHERE tenant_id = $2", limit, tenant_id)
    return await callers.make("editor", tenant_id)


def _verdicts(answer: httpx.Response) -> list[tuple[int, int, str | None]]:
    """Line, status and quota of each."""
    assert answer.status_code == 200, answer.text
    return [(each["line"], each["status"], each.get("quota")) for each in answer.json()]


async def test_over_its_quota_of_jobs_a_tenant_is_told_which_and_when_to_try_again(
    callers: Callers, connection: asyncpg.Connection
) -> None:
    editor = await _limited(callers, connection, jobs_quota=2)
    first = await editor.create()
    await editor.create()
    refused = await editor.post("/jobs", json=JOB)
    assert is_problem(refused, 429, "over-quota")["quota"] == "jobs"
    assert int(refused.headers["retry-after"]) > 0
    await editor.delete(f"/jobs/{first['job_id']}")
    await editor.create()


async def test_many_requests_over_the_quota_do_not_count_the_jobs_many_times_at_once(
    callers: Callers, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most = 0, 0

    async def counted(run: Run, _: object) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await run()
        finally:
            under_way -= 1

    hook_every_pool(monkeypatch, "tenants.count_jobs", counted)
    editor = await _limited(callers, connection, jobs_quota=0)
    answers = await asyncio.gather(*(editor.post("/jobs", json=JOB) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {429}
    assert most == 1


async def test_many_at_once_do_not_pass_the_quota_of_jobs(callers: Callers, connection: asyncpg.Connection) -> None:
    editor = await _limited(callers, connection, jobs_quota=5)
    answers = await asyncio.gather(*(editor.post("/jobs", json=JOB) for _ in range(20)))
    assert sorted({answer.status_code for answer in answers}) == [201, 429]
    assert len((await editor.get("/jobs")).json()) <= 5


async def test_what_was_refused_does_not_count_as_a_job(callers: Callers, connection: asyncpg.Connection) -> None:
    editor = await _limited(callers, connection, jobs_quota=2)
    for _ in range(5):
        assert (await editor.post("/jobs", json={**JOB, "schedule": "nonsense"})).status_code == 422
    await editor.put("/jobs/by-name/a", json=JOB)
    for retries in range(5):
        assert (await editor.put("/jobs/by-name/a", json={**JOB, "max_retries": retries})).status_code == 200
    await editor.create()


async def test_the_first_jobs_of_a_batch_are_created_up_to_the_quota(
    callers: Callers, connection: asyncpg.Connection
) -> None:
    editor = await _limited(callers, connection, jobs_quota=2)
    answer = await editor.post("/jobs:batch", json=[JOB, JOB, JOB])
    assert _verdicts(answer) == [(1, 201, None), (2, 201, None), (3, 429, "jobs")]
    assert int(answer.headers["retry-after"]) > 0
    assert "the quota jobs allows 2" in answer.json()[2]["errors"][0]["detail"]
    assert len((await editor.get("/jobs")).json()) == 2
    refused = await editor.post("/jobs:batch", json=[JOB])
    assert is_problem(refused, 429, "over-quota")["quota"] == "jobs"


async def test_what_a_batch_did_not_get_is_not_reserved(callers: Callers, connection: asyncpg.Connection) -> None:
    editor = await _limited(callers, connection, jobs_quota=4, submit_burst=2, submits_per_second=1)
    answer = await editor.post("/jobs:batch", json=[JOB] * 5)
    assert _verdicts(answer)[1:3] == [(2, 201, None), (3, 429, "submit_rate")]

    async def is_let_in() -> bool:
        return (await editor.post("/jobs", json=JOB)).status_code == 201

    await until(is_let_in)
    await until(is_let_in)


@pytest.mark.parametrize("media_type", ["application/json", "application/x-ndjson"])
async def test_the_first_jobs_of_a_batch_are_created_as_far_as_the_rate_goes(
    callers: Callers, connection: asyncpg.Connection, media_type: str
) -> None:
    editor = await _limited(callers, connection, submits_per_second=1, submit_burst=400)
    lines = [json.dumps({**JOB, "name": f"job {number}"}) for number in range(1000)]
    text = "\n".join(lines) if media_type == "application/x-ndjson" else f"[{','.join(lines)}]"
    answer = await editor.post("/jobs:batch", content=text, headers={"content-type": media_type})
    found = [json.loads(line) for line in answer.text.splitlines()] if "ndjson" in media_type else answer.json()
    assert [verdict["line"] for verdict in found] == list(range(1, 1001))
    created = [verdict["status"] for verdict in found].count(201)
    assert [verdict["status"] for verdict in found] == [201] * created + [429] * (1000 - created)
    assert {verdict.get("quota") for verdict in found[created:]} == {"submit_rate"}
    # The rate adds one a second, and the test may take some.
    assert 400 <= created < 500
    assert await connection.fetchval("SELECT count(*) FROM jobs") == created


async def test_over_its_rate_a_tenant_waits_as_long_as_it_is_told(
    callers: Callers, connection: asyncpg.Connection
) -> None:
    editor = await _limited(callers, connection, submits_per_second=1, submit_burst=2)
    answers = await asyncio.gather(*(editor.post("/jobs", json=JOB) for _ in range(20)))
    assert [answer.status_code for answer in answers].count(201) >= 2
    refused = next(answer for answer in answers if answer.status_code != 201)
    assert is_problem(refused, 429, "over-quota")["quota"] == "submit_rate"
    assert refused.headers["retry-after"] == "1"

    async def is_let_in() -> bool:
        return (await editor.post("/jobs", json=JOB)).status_code == 201

    await until(is_let_in)


async def test_runs_due_at_once_are_limited(callers: Callers, connection: asyncpg.Connection) -> None:
    editor = await _limited(callers, connection, running_quota=0)
    job = await editor.create()
    for answer in (
        await editor.post(f"/jobs/{job['job_id']}/trigger"),
        await editor.post("/jobs", json={**JOB, "schedule": "now"}),
    ):
        assert is_problem(answer, 429, "over-quota")["quota"] == "running"


async def test_a_job_can_be_replaced_when_no_more_may_be_created(
    callers: Callers, connection: asyncpg.Connection
) -> None:
    editor = await _limited(callers, connection, jobs_quota=1)
    await editor.create(name="mine")
    assert (await editor.put("/jobs/by-name/mine", json={**JOB, "priority": "high"})).status_code == 200
    refused = await editor.put("/jobs/by-name/other", json=JOB)
    assert is_problem(refused, 429, "over-quota")["quota"] == "jobs"


@pytest.mark.parametrize("schedule", ["now", "NOW", " now ", "in 0s", "2020-01-01T00:00:00Z", "20200101T000000Z"])
async def test_runs_due_at_once_are_limited_however_they_are_written(
    callers: Callers, connection: asyncpg.Connection, schedule: str
) -> None:
    editor = await _limited(callers, connection, running_quota=0)
    job = {**JOB, "schedule": schedule}
    later = await editor.create()
    for answer in (
        await editor.post("/jobs", json=job),
        await editor.put("/jobs/by-name/a", json=job),
        await editor.patch(f"/jobs/{later['job_id']}", json={"schedule": schedule}),
        await editor.post("/jobs:batch", json=[JOB, job]),
    ):
        assert is_problem(answer, 429, "over-quota")["quota"] == "running"


async def test_many_at_once_do_not_pass_the_quota_of_ready_runs(
    callers: Callers, connection: asyncpg.Connection
) -> None:
    editor = await _limited(callers, connection, ready_quota=3)
    job = await editor.create(schedule="manual", concurrent_policy="ALLOW", max_concurrent=100)
    answers = await asyncio.gather(*(editor.post(f"/jobs/{job['job_id']}/trigger") for _ in range(20)))
    assert sum(answer.status_code == 202 for answer in answers) == 3
    batch = [{**JOB, "schedule": "now"}] * 4
    assert is_problem(await editor.post("/jobs:batch", json=batch), 429, "over-quota")["quota"] == "ready"


async def test_a_batch_whose_runs_are_refused_uses_up_nothing_of_the_rate(
    callers: Callers, connection: asyncpg.Connection
) -> None:
    editor = await _limited(callers, connection, ready_quota=3, submits_per_second=1, submit_burst=10)
    for _ in range(3):
        refused = await editor.post("/jobs:batch", json=[{**JOB, "schedule": "now"}] * 9)
        assert is_problem(refused, 429, "over-quota")["quota"] == "ready"


async def test_jobs_that_come_to_be_during_a_count_are_not_forgotten(
    pool: Pool, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connection.execute("UPDATE tenants SET jobs_quota = 2")
    (tenant,) = await tenants.all_tenants(connection)
    quotas, counted, goes_on = Quotas(pool), asyncio.Event(), asyncio.Event()

    async def slow(run: Run, _: object) -> Any:
        found = await run()
        counted.set()
        await goes_on.wait()
        return found

    for _ in range(2):
        assert isinstance(await quotas.admit(tenant, AdmissionRequest(jobs=1)), Admitted)
    hook_every_pool(monkeypatch, "tenants.count_jobs", slow)
    third = asyncio.create_task(quotas.admit(tenant, AdmissionRequest(jobs=1)))
    await counted.wait()
    for _ in range(2):
        quotas.confirm(tenant, 1, 1)
    goes_on.set()
    assert isinstance(await third, Refused)


async def test_a_tenant_with_room_does_not_wait_until_its_jobs_are_counted_again(
    pool: Pool, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connection.execute("UPDATE tenants SET jobs_quota = 3")
    (tenant,) = await tenants.all_tenants(connection)
    monkeypatch.setattr("evertick.usecases.tenants.quotas.COUNT_SECONDS", 0)
    monkeypatch.setattr("evertick.usecases.tenants.quotas.SHARE_OF_COUNTING", 0)
    quotas, counting, goes_on = Quotas(pool), asyncio.Event(), asyncio.Event()
    assert isinstance(await quotas.admit(tenant, AdmissionRequest(jobs=1)), Admitted)

    async def slow(run: Run, _: object) -> Any:
        counting.set()
        await goes_on.wait()
        return await run()

    hook_every_pool(monkeypatch, "tenants.count_jobs", slow)
    for _ in range(2):
        assert isinstance(await quotas.admit(tenant, AdmissionRequest(jobs=1)), Admitted)
    await counting.wait()
    # Without room, the answer waits for the count.
    fourth = asyncio.create_task(quotas.admit(tenant, AdmissionRequest(jobs=1)))
    goes_on.set()
    assert isinstance(await fourth, Refused)


async def test_a_repeated_request_is_answered_even_over_the_quota(
    callers: Callers, connection: asyncpg.Connection
) -> None:
    editor = await _limited(callers, connection, jobs_quota=1)
    headers = {"Idempotency-Key": "one"}
    first, again = [await editor.post("/jobs", json=JOB, headers=headers) for _ in range(2)]
    assert (again.status_code, again.json()) == (201, first.json())


async def test_a_tenants_shortest_interval_is_kept(callers: Callers, connection: asyncpg.Connection) -> None:
    editor = await _limited(callers, connection, shortest_interval_seconds=60)
    assert (await editor.post("/jobs", json={**JOB, "schedule": "every 30s"})).status_code == 422
    await editor.create(schedule="every 60s")


async def test_one_tenants_quota_is_not_anothers(
    admin: Caller, callers: Callers, connection: asyncpg.Connection
) -> None:
    editor = await _limited(callers, connection, jobs_quota=0)
    assert (await editor.post("/jobs", json=JOB)).status_code == 429
    await admin.create()
