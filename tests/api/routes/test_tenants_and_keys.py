import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from api.callers import JOB, Caller, Callers, is_problem, pointers
from engine import PATIENCE_SECONDS, until
from evertick.domain.access import KEYSPACE, digest_of, is_well_formed, write_key
from evertick.store.database import Pool
from evertick.usecases.tenants import keys
from evertick.usecases.tenants.keys import KeyRing
from hooked_pool import Run, hook_every_pool


async def test_the_host_makes_a_tenant_whose_first_key_is_shown_once(admin: Caller, callers: Callers) -> None:
    answer = await admin.post("/tenants", json={"name": "acme", "jobs_quota": 10})
    tenant = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/api/v1/tenants/{tenant['tenant_id']}"
    assert (tenant["name"], tenant["jobs_quota"], tenant["submit_burst"]) == ("acme", 10, 10_000)
    first = callers.of(tenant["api_key"])
    assert [each["name"] for each in (await first.get("/tenants")).json()] == ["acme"]
    shown = (await admin.get(f"/tenants/{tenant['tenant_id']}")).json()
    assert shown == {name: value for name, value in tenant.items() if name != "api_key"}
    is_problem(await admin.post("/tenants", json={"name": "acme"}), 409, "name-taken")


async def test_a_tenants_limits_can_be_changed_by_the_host_alone(admin: Caller, callers: Callers) -> None:
    tenant = (await admin.post("/tenants", json={"name": "acme"})).json()
    own = callers.of(tenant["api_key"])
    path = f"/tenants/{tenant['tenant_id']}"
    assert (await own.patch(path, json={"jobs_quota": 1})).status_code == 403
    assert (await own.post("/tenants", json={"name": "mine"})).status_code == 403
    assert (await admin.patch(path, json={"jobs_quota": 1, "weight": 5})).json()["jobs_quota"] == 1
    await own.create()
    assert (await own.post("/jobs", json=JOB)).status_code == 429, "it holds at once"
    assert pointers(await admin.patch(path, json={"weight": 0})) == ["/weight"]
    assert (await admin.patch(path, json={"http_timeout_max_seconds": 3600})).json()["http_timeout_max_seconds"] == 3600
    for seconds in (0, 3601):
        refused = await admin.patch(path, json={"http_timeout_max_seconds": seconds})
        assert pointers(refused) == ["/http_timeout_max_seconds"]


async def test_the_host_cannot_make_its_own_schedules_unfit_by_a_slip(admin: Caller) -> None:
    (own,) = (await admin.get("/tenants")).json()
    path = f"/tenants/{own['tenant_id']}"
    is_problem(await admin.patch(path, json={"shortest_interval_seconds": 3600}), 409, "wrong-state")
    assert (await admin.patch(path, json={"jobs_quota": 7})).json()["jobs_quota"] == 7


async def test_a_key_is_made_listed_and_revoked(admin: Caller, callers: Callers) -> None:
    answer = await admin.post("/api-keys", json={"role": "viewer", "name": "wall"})
    new = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/api/v1/api-keys/{new['key_id']}"
    assert new["api_key"].startswith(new["prefix"])
    viewer = callers.of(new["api_key"])
    assert (await viewer.get("/jobs")).status_code == 200
    listed = {key["key_id"]: key for key in (await admin.get("/api-keys")).json()}
    assert listed[new["key_id"]]["last_used_at"] is not None
    assert all("api_key" not in key for key in listed.values())
    assert (await admin.delete(f"/api-keys/{new['key_id']}")).status_code == 204
    is_problem(await viewer.get("/jobs"), 401, "unauthenticated")
    listed = {key["key_id"]: key for key in (await admin.get("/api-keys")).json()}
    assert listed[new["key_id"]]["revoked_at"] is not None
    is_problem(await admin.get(f"/api-keys/{new['key_id']}"), 404, "not-found")
    is_problem(await admin.delete(f"/api-keys/{new['key_id']}"), 404, "not-found")


async def test_the_key_in_use_cannot_be_revoked(admin: Caller) -> None:
    (own,) = (await admin.get("/api-keys")).json()
    is_problem(await admin.delete(f"/api-keys/{own['key_id']}"), 409, "wrong-state")
    assert (await admin.get("/jobs")).status_code == 200


async def test_the_key_in_use_is_rotated_with_a_grace_for_the_answer_may_be_lost(admin: Caller) -> None:
    (own,) = (await admin.get("/api-keys")).json()
    path = f"/api-keys/{own['key_id']}/rotate"
    is_problem(await admin.post(path, json={"grace_seconds": 3599}), 409, "wrong-state")
    assert (await admin.post(path, json={"grace_seconds": 3600})).status_code == 201
    assert (await admin.get("/jobs")).status_code == 200


async def test_the_host_makes_keys_for_other_tenants(admin: Caller, callers: Callers) -> None:
    tenant = (await admin.post("/tenants", json={"name": "acme"})).json()
    body = {"role": "editor", "tenant_id": tenant["tenant_id"]}
    editor = callers.of((await admin.post("/api-keys", json=body)).json()["api_key"])
    await editor.create()
    assert (await admin.get("/jobs")).json() == []
    assert len((await admin.get("/api-keys", params={"tenant_id": tenant["tenant_id"]})).json()) == 2


async def test_a_rotated_key_and_its_successor_are_both_valid_for_the_grace(admin: Caller, callers: Callers) -> None:
    old = (await admin.post("/api-keys", json={"role": "viewer", "name": "wall"})).json()
    path = f"/api-keys/{old['key_id']}/rotate"
    new = (await admin.post(path, json={"grace_seconds": 3600})).json()
    assert (new["role"], new["name"]) == ("viewer", "wall")
    for secret in (old["api_key"], new["api_key"]):
        assert (await callers.of(secret).get("/jobs")).status_code == 200
    newest = (await admin.post(f"/api-keys/{new['key_id']}/rotate")).json()
    assert (await callers.of(new["api_key"]).get("/jobs")).status_code == 401
    assert (await callers.of(newest["api_key"]).get("/jobs")).status_code == 200


async def test_an_expired_key_lets_nobody_in(admin: Caller, callers: Callers, connection: asyncpg.Connection) -> None:
    new = (await admin.post("/api-keys", json={"role": "viewer", "expires_at": "2101-01-01T00:00:00Z"})).json()
    await connection.execute(
        "UPDATE api_keys SET expires_at = clock_at() - interval '1 millisecond' WHERE prefix = $1", new["prefix"]
    )
    assert (await callers.of(new["api_key"]).get("/jobs")).status_code == 401
    assert pointers(await admin.post("/api-keys", json={"role": "viewer", "expires_at": "2001-01-01T00:00:00Z"})) == [
        "/expires_at"
    ]


async def test_a_key_that_expires_while_it_is_trusted_is_not_trusted_longer(
    admin: Caller, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "TRUSTED_SECONDS", 10 * PATIENCE_SECONDS)
    soon = (datetime.now(UTC) + timedelta(seconds=10)).isoformat()
    new = (await admin.post("/api-keys", json={"role": "viewer", "expires_at": soon})).json()
    viewer = callers.of(new["api_key"])
    assert (await viewer.get("/jobs")).status_code == 200

    async def is_refused() -> bool:
        return (await viewer.get("/jobs")).status_code == 401

    await until(is_refused)


async def test_of_a_key_only_the_digest_is_kept(admin: Caller, connection: asyncpg.Connection) -> None:
    assert admin.key is not None
    row = await connection.fetchrow("SELECT * FROM api_keys")
    assert row is not None
    assert row["digest"] == digest_of(admin.key)
    assert admin.key not in str(dict(row))
    assert len(row["prefix"]) == 10


async def test_the_first_key_is_made_once(connection: asyncpg.Connection) -> None:
    first = await keys.create_first(connection, 1)
    assert first is not None
    assert first.role == "admin"
    assert await keys.create_first(connection, 1) is None


@pytest.mark.parametrize("random", [0, 1, KEYSPACE - 1, 2**128 + 12345])
def test_a_key_of_one_wrong_character_is_refused_without_a_look(random: int) -> None:
    key = write_key(random)
    assert len(key) == 32
    assert is_well_formed(key)
    for place in range(4, 32):
        wrong = "0" if key[place] != "0" else "1"
        assert not is_well_formed(key[:place] + wrong + key[place + 1 :])
    assert KEYSPACE > 2**128


async def test_changes_are_logged_with_who_what_and_which(admin: Caller) -> None:
    job = await admin.create()
    headers = {"X-Request-Id": "req-1"}
    await admin.post(f"/jobs/{job['job_id']}/pause", headers=headers)
    await admin.post("/jobs", json={"schedule": "nonsense"})
    await admin.get("/jobs")
    await admin.delete(f"/jobs/{job['job_id']}")
    changes = (await admin.get("/audit-log")).json()
    assert [(change["action"], change["subject"]) for change in changes] == [
        ("delete_job", job["job_id"]),
        ("pause_job", job["job_id"]),
        ("create_job", job["job_id"]),
    ]
    (own,) = (await admin.get("/api-keys")).json()
    assert {change["actor"] for change in changes} == {own["key_id"]}
    assert changes[1]["request_id"] == "req-1"
    answer = await admin.get("/audit-log?limit=2")
    rest = await admin.get(str(admin.base_url).removesuffix("/api/v1/") + answer.links["next"]["url"])
    assert rest.json() == changes[2:]


async def test_a_rotation_does_not_make_a_key_outlive_its_expiry(admin: Caller) -> None:
    key = {"role": "editor", "expires_at": "2090-01-01T00:00:00Z"}
    old = (await admin.post("/api-keys", json=key)).json()
    new = (await admin.post(f"/api-keys/{old['key_id']}/rotate", json={"grace_seconds": 60})).json()
    assert new["expires_at"] == "2090-01-01T00:00:00Z"


async def test_a_key_gets_one_successor_and_none_once_it_has_ended(admin: Caller) -> None:
    old = (await admin.post("/api-keys", json={"role": "editor"})).json()
    path = f"/api-keys/{old['key_id']}/rotate"
    answers = await asyncio.gather(*(admin.post(path, json={"grace_seconds": 60}) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    other = (await admin.post("/api-keys", json={"role": "editor"})).json()
    await admin.post(f"/api-keys/{other['key_id']}/rotate")  # without a grace it has ended
    is_problem(await admin.post(f"/api-keys/{other['key_id']}/rotate"), 409, "wrong-state")


async def test_a_tenant_reads_in_its_own_log_what_the_host_did_to_it(admin: Caller, callers: Callers) -> None:
    made = (await admin.post("/tenants", json={"name": "guest"})).json()
    guest = callers.of(made["api_key"])
    key = (await admin.post("/api-keys", json={"role": "admin", "tenant_id": made["tenant_id"]})).json()
    await admin.patch(f"/tenants/{made['tenant_id']}", json={"weight": 2})
    await admin.delete(f"/api-keys/{key['key_id']}")
    actions = [change["action"] for change in (await guest.get("/audit-log")).json()]
    assert actions == ["revoke_key", "edit_tenant", "create_key", "create_tenant"]


async def test_a_key_that_is_revoked_while_it_is_looked_up_is_not_trusted_afterwards(
    admin: Caller, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = await callers.make("viewer")
    looked, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(run: Run, _: object) -> Any:
        found = await run()
        if any(key["role"] == "viewer" for key in found):
            looked.set()
            await goes_on.wait()
        return found

    hook_every_pool(monkeypatch, "keys.of_digests", slow)
    first = asyncio.create_task(viewer.get("/jobs"))
    await looked.wait()
    (key,) = [key for key in (await admin.get("/api-keys")).json() if key["role"] == "viewer"]
    await admin.delete(f"/api-keys/{key['key_id']}")
    goes_on.set()
    await first
    assert (await viewer.get("/jobs")).status_code == 401


async def test_keys_that_do_not_exist_are_looked_up_many_in_one_statement(
    callers: Callers, pool: Pool, statements: Counter[str]
) -> None:
    known = await callers.make("viewer")
    ring = KeyRing(pool)
    secrets = [write_key(number) for number in range(1000)]
    found = await asyncio.gather(*(ring.caller(secret) for secret in [*secrets, str(known.key)]))
    assert [caller is not None for caller in found] == [False] * 1000 + [True]
    assert statements["keys.of_digests"] < 10


async def test_who_changes_its_keys_does_not_make_those_of_others_be_looked_up_again(
    callers: Callers, pool: Pool, statements: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "TRUSTED_SECONDS", 3600)
    own, other = await callers.make("viewer"), await callers.make("viewer", await callers.tenant())
    ring = KeyRing(pool)
    secrets = [str(own.key), str(other.key)]
    for secret in secrets:
        assert await ring.caller(secret) is not None
    before = statements["keys.of_digests"]
    ring.forget(1)
    assert await ring.caller(str(other.key)) is not None
    assert statements["keys.of_digests"] == before
    assert await ring.caller(str(own.key)) is not None
    assert statements["keys.of_digests"] == before + 1
