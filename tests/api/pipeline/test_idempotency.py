import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from api.callers import JOB, Caller, Callers, is_problem
from api.processes import served
from engine import until
from evertick.roles.janitor import Janitor
from evertick.store.tenants import tenants as quotas

KEY = {"Idempotency-Key": "order-66"}


async def _jobs(caller: Caller) -> int:
    return len((await caller.get("/jobs")).json())


async def test_the_same_key_and_body_get_the_first_answer_again(admin: Caller) -> None:
    first = await admin.post("/jobs", json=JOB, headers=KEY)
    again = await admin.post("/jobs", json=JOB, headers=KEY)
    assert (again.status_code, again.content) == (201, first.content)
    for header in ("location", "etag", "content-type"):
        assert again.headers[header] == first.headers[header]
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert await _jobs(admin) == 1


async def test_another_body_or_path_with_the_same_key_is_refused(admin: Caller) -> None:
    job = (await admin.post("/jobs", json=JOB, headers=KEY)).json()
    other = await admin.post("/jobs", json={**JOB, "max_retries": 1}, headers=KEY)
    is_problem(other, 422, "idempotency-key-reused")
    elsewhere = await admin.post(f"/jobs/{job['job_id']}/pause", headers=KEY)
    is_problem(elsewhere, 422, "idempotency-key-reused")
    assert await _jobs(admin) == 1


async def test_while_the_first_is_in_flight_the_second_is_told_so(
    admin: Caller, connection: asyncpg.Connection
) -> None:
    await admin.create(name="first")  # so that rules, queues and lanes are there
    async with connection.transaction():
        await connection.execute("LOCK TABLE audit_log IN EXCLUSIVE MODE")
        first = asyncio.create_task(admin.post("/jobs", json=JOB, headers=KEY))

        async def is_held() -> bool:
            second = await admin.post("/jobs", json=JOB, headers=KEY)
            is_problem(second, 409, "in-flight")
            assert second.headers["retry-after"] == "1"
            return True

        await _until_waiting(connection)
        await is_held()
    assert (await first).status_code == 201
    assert (await admin.post("/jobs", json=JOB, headers=KEY)).content == (await first).content


async def test_every_change_by_post_can_be_repeated(admin: Caller) -> None:
    job = await admin.create(schedule="manual")
    path = f"/jobs/{job['job_id']}/trigger"
    first, again = [await admin.post(path, headers=KEY) for _ in range(2)]
    assert (first.status_code, again.json()) == (202, first.json())
    assert len((await admin.get(f"/jobs/{job['job_id']}/runs")).json()) == 1


async def test_a_refused_request_may_be_mended_and_sent_with_the_same_key(admin: Caller) -> None:
    assert (await admin.post("/jobs", json={**JOB, "schedule": "nonsense"}, headers=KEY)).status_code == 422
    assert (await admin.post("/jobs", json=JOB, headers=KEY)).status_code == 201


async def test_keys_of_two_tenants_are_two(admin: Caller, callers: Callers) -> None:
    other = await callers.make("editor", await callers.tenant())
    first, second = await admin.post("/jobs", json=JOB, headers=KEY), await other.post("/jobs", json=JOB, headers=KEY)
    assert first.json()["job_id"] != second.json()["job_id"]


@pytest.mark.parametrize("key", ["x" * 256, "é"])
async def test_a_key_that_cannot_be_is_refused(admin: Caller, key: str) -> None:
    answer = await admin.post("/jobs", json=JOB, headers={b"Idempotency-Key": key.encode()})
    is_problem(answer, 422, "invalid-input")


async def test_answers_are_forgotten_after_a_day(admin: Caller, pool: asyncpg.Pool) -> None:
    await admin.post("/jobs", json=JOB, headers=KEY)
    janitor = Janitor(pool)
    await janitor.maintain()
    assert await pool.fetchval("SELECT count(*) FROM idempotency_keys") == 1
    assert (await quotas.stored(pool, 1)).answer_bytes > 0
    await pool.execute("UPDATE idempotency_keys SET answered_at = clock_at() - interval '25 hours'")
    assert (await janitor.maintain()).answers_forgotten == 1
    assert await pool.fetchval("SELECT count(*) FROM idempotency_keys") == 0
    assert (await quotas.stored(pool, 1)).answer_bytes == 0


async def test_a_server_killed_between_create_and_answer_leaves_one_job_after_a_retry(
    admin: Caller, callers: Callers, connection: asyncpg.Connection, database_url: str, tmp_path: Path
) -> None:
    """Killed before the commit: the job was written, its answer was not, and neither is there afterwards."""
    assert admin.key is not None
    async with connection.transaction():
        await connection.execute("LOCK TABLE idempotency_keys IN EXCLUSIVE MODE")
        with served(database_url, tmp_path / "log") as process:
            doomed = Caller(process.address, admin.key)
            creating = asyncio.create_task(doomed.post("/jobs", json=JOB, headers=KEY))
            await _until_waiting(connection)
            process.kill()
            with pytest.raises(httpx.TransportError):
                await creating
            await doomed.aclose()
    await _until_answered(admin)
    assert await _jobs(admin) == 1


async def test_a_server_killed_after_the_commit_and_before_the_answer_leaves_one_job_after_a_retry(
    admin: Caller, connection: asyncpg.Connection, database_url: str, tmp_path: Path
) -> None:
    assert admin.key is not None
    with served(database_url, tmp_path / "log", "--hold-answers") as process:
        doomed = Caller(process.address, admin.key)
        creating = asyncio.create_task(doomed.post("/jobs", json=JOB, headers=KEY))

        async def is_committed() -> bool:
            return bool(await connection.fetchval("SELECT count(*) FROM idempotency_keys"))

        await until(is_committed)
        assert not creating.done()
        process.kill()
        with pytest.raises(httpx.TransportError):
            await creating
        await doomed.aclose()
    again = await admin.post("/jobs", json=JOB, headers=KEY)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (201, "true")
    assert await _jobs(admin) == 1


async def _until_waiting(connection: asyncpg.Connection) -> None:
    """Until somebody waits for the lock that this session holds."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    await until(lambda: connection.fetchval(waiting))


async def _until_answered(caller: Caller) -> None:
    """Ask again as a client does: while the dead server's session lives, its request is in flight."""

    async def is_answered() -> bool:
        answer = await caller.post("/jobs", json=JOB, headers=KEY)
        assert answer.status_code in {201, 409}, answer.text
        return answer.status_code == 201

    await until(is_answered)


@pytest.mark.parametrize(
    ("path", "body"), [("/api-keys", {"role": "viewer", "name": "wall"}), ("/tenants", {"name": "acme"})]
)
async def test_a_secret_that_was_lost_on_the_way_comes_again_and_does_not_lie_in_the_database(
    admin: Caller, callers: Callers, connection: asyncpg.Connection, path: str, body: dict[str, Any]
) -> None:
    first, again = [await admin.post(path, json=body, headers=KEY) for _ in range(2)]
    secret: str = first.json()["api_key"]
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["location"] == first.headers["location"]
    assert (await callers.of(secret).get("/jobs")).status_code == 200
    assert len([each for each in (await admin.get(path)).json() if each["name"] == body["name"]]) == 1
    row = await connection.fetchrow("SELECT * FROM idempotency_keys")
    assert row is not None
    assert secret.encode() not in row["body"]
    assert secret not in str(dict(row))


async def test_a_rotation_that_was_lost_on_the_way_is_not_repeated(admin: Caller) -> None:
    old = (await admin.post("/api-keys", json={"role": "viewer"})).json()
    first, again = [await admin.post(f"/api-keys/{old['key_id']}/rotate", headers=KEY) for _ in range(2)]
    assert (again.status_code, again.json()) == (201, first.json())


async def test_only_who_asked_first_is_told_the_secret_again(admin: Caller, callers: Callers) -> None:
    body = {"role": "viewer"}
    assert (await admin.post("/api-keys", json=body, headers=KEY)).status_code == 201
    other = await callers.make("admin")
    is_problem(await other.post("/api-keys", json=body, headers=KEY), 422, "idempotency-key-reused")
