"""Who may do what, over every operation that there is: roles, and other tenants' ids."""

from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from api.callers import JOB, ON_SHARED_SERVER, Caller, Callers
from engine import until
from evertick.api.app import operations
from evertick.api.operations import Operation
from evertick.domain.access import KeyRole, allows
from evertick.domain.ids import Prefix, format_id

GUARDED = [operation for operation in operations() if operation.role is not None]
WITH_IDS = [
    operation
    for operation in GUARDED
    if {"job_id", "run_id", "key_id", "tenant_id", "connection"} & set(operation.parameters)
    and operation.name != "put_connection"  # which creates one of its own
]
CONNECTION = {"type": "nats", "settings": {"servers": ["nats.example.invalid"]}}

BODIES: dict[str, Any] = {
    "create_job": JOB,
    "edit_job": {"max_retries": 1},
    "put_job": JOB,
    "put_queue": {"max_running": 5},
    "put_target": {"rate_limit": 5},
    "create_connection": {"name": "orders", **CONNECTION},
    "put_connection": CONNECTION,
    "put_alert_target": {"url": "https://hooks.example.invalid/alerts"},
    "create_jobs": [JOB],
    "preview_schedule": {"schedule": "@daily"},
    "apply_advice": {"rules": ["0" * 16], "jitter_seconds": 300},
    "lease": {"worker_id": "w", "wait_seconds": 0},
    "record_outcomes": {"worker_id": "w", "outcomes": []},
    "create_tenant": {"name": "new"},
    "create_key": {"role": "viewer"},
}
NOBODYS = {
    "job_id": format_id(Prefix.JOB, 1 << 8),
    "run_id": f"run_{'0' * 26}",
    "replay_id": format_id(Prefix.REPLAY, 999_999),
    "smear_id": format_id(Prefix.SMEAR, 999_999),
    "key_id": format_id(Prefix.API_KEY, 999_999),
    "tenant_id": format_id(Prefix.TENANT, 999_999),
    "name": "some-name",
    "queue": "billing",
    "worker_id": "w",
    "host": "api.example.com",
    "connection": "orders",
}


async def _call(caller: Caller, operation: Operation, ids: dict[str, str]) -> int:
    path = operation.path.removeprefix("/api/v1").format(**ids)
    body = BODIES.get(operation.name, {}) if operation.body is not None else None
    answer = await caller.request(operation.method, path, json=body)
    return answer.status_code


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def by_role(shared_callers: Callers) -> dict[KeyRole, Caller]:
    return {role: await shared_callers.make(role) for role in KeyRole}


@ON_SHARED_SERVER
@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.name)
async def test_each_role_may_do_what_it_may_and_nothing_else(
    shared_callers: Callers, by_role: dict[KeyRole, Caller], operation: Operation
) -> None:
    assert operation.role is not None
    assert await _call(shared_callers.of(None), operation, NOBODYS) == 401
    for role, caller in by_role.items():
        status = await _call(caller, operation, NOBODYS)
        assert status not in {401, 422, 500}, (role, status)
        assert (status != 403) == allows(role, operation.role), (role, status)


@pytest.mark.parametrize(
    ("held", "allowed"),
    [
        (KeyRole.VIEWER, {KeyRole.VIEWER}),
        (KeyRole.OPERATOR, {KeyRole.VIEWER, KeyRole.OPERATOR}),
        (KeyRole.EDITOR, {KeyRole.VIEWER, KeyRole.OPERATOR, KeyRole.EDITOR, KeyRole.APP}),
        (KeyRole.ADMIN, set(KeyRole)),
        (KeyRole.WORKER, {KeyRole.WORKER}),
        (KeyRole.APP, {KeyRole.WORKER, KeyRole.APP}),
    ],
)
def test_roles_grow_and_workers_and_apps_are_apart(held: KeyRole, allowed: set[KeyRole]) -> None:
    assert {needed for needed in KeyRole if allows(held, needed)} == allowed


@pytest.fixture
async def victims(callers: Callers, scheduler: object) -> dict[str, str]:
    """The ids of what another tenant has: a job, a dead run, a key, itself."""
    tenant_id = await callers.tenant()
    owner = await callers.make("admin", tenant_id)
    await owner.create(schedule="now", max_retries=0, name="theirs")
    (attempt,) = await owner.lease()
    await owner.record({"token": attempt["token"], "result": "failed"})
    key = (await owner.get("/api-keys")).json()[0]

    async def is_dead() -> bool:
        return bool((await owner.get("/dead-letters")).json())

    await until(is_dead)
    assert (await owner.post("/connections", json={"name": "theirs", **CONNECTION})).status_code == 201
    replay = await owner.post("/dead-letters:replay", json={"background": True})
    await owner.create(schedule="@daily")
    (hot,) = (await owner.get("/forecast", params={"hottest": 1})).json()["hottest"]
    advice = {"rules": [hot["rules"][0]["rule_id"]], "jitter_seconds": 300}
    smear = await owner.post("/forecast/advice:apply", json=advice)
    return {
        "job_id": attempt["job_id"],
        "run_id": attempt["run_id"],
        "replay_id": replay.json()["replay_id"],
        "smear_id": smear.json()["smear_id"],
        "key_id": key["key_id"],
        "tenant_id": key["tenant_id"],
        "connection": "theirs",
        "owner": str(owner.key),
    }


async def test_another_tenants_ids_look_as_if_they_did_not_exist_on_every_route(
    callers: Callers, victims: dict[str, str]
) -> None:
    stranger = await callers.make("admin", await callers.tenant())
    statuses = {operation.name: await _call(stranger, operation, {**NOBODYS, **victims}) for operation in WITH_IDS}
    assert len(statuses) >= 20
    assert {name: status for name, status in statuses.items() if status != 404} == {}
    owner = callers.of(victims["owner"])
    assert (await owner.get(f"/jobs/{victims['job_id']}")).json()["spec_version"] == 1
    assert (await owner.get(f"/runs/{victims['run_id']}")).json()["status"] == "dead"
    assert len((await owner.get("/dead-letters")).json()) == 1


async def test_lists_hold_nothing_of_another_tenant(callers: Callers, victims: dict[str, str]) -> None:
    tenant_id = await callers.tenant()
    stranger = await callers.make("admin", tenant_id)
    for path in ("/jobs", "/runs", "/dead-letters", "/replays", "/smears", "/alerts", "/connections"):
        assert (await stranger.get(path)).json() == []
    assert [tenant["tenant_id"] for tenant in (await stranger.get("/tenants")).json()] == [
        format_id(Prefix.TENANT, tenant_id)
    ]
    assert {key["tenant_id"] for key in (await stranger.get("/api-keys")).json()} == {
        format_id(Prefix.TENANT, tenant_id)
    }
    stats = (await stranger.get("/stats")).json()
    assert (stats["fired_per_second"], stats["ready"], stats["running"]) == (0, 0, 0)


async def test_stats_tell_nothing_of_another_tenants_timers(callers: Callers, connection: asyncpg.Connection) -> None:
    owner, stranger = [await callers.make("editor", await callers.tenant()) for _ in range(2)]
    await owner.create()
    await stranger.create()
    # Neighbours on one partition: the owner's timer is overdue there, and no other.
    await connection.execute("UPDATE timers SET partition = 7")
    await connection.execute("UPDATE lanes SET partition = 7")
    await connection.execute(
        "UPDATE timers SET due_at = clock_at() - interval '1 hour'"
        " WHERE tenant_id = (SELECT min(tenant_id) FROM timers)"
    )
    theirs = (await stranger.get("/stats")).json()
    assert (theirs["oldest_due_at"], theirs["oldest_due_seconds"]) == (None, 0.0)
    own = (await owner.get("/stats")).json()
    assert own["oldest_due_at"] is not None
    assert 3600 <= own["oldest_due_seconds"] < 3700


async def test_what_names_another_tenant_in_query_or_body_is_not_found_either(
    callers: Callers, victims: dict[str, str]
) -> None:
    stranger = await callers.make("admin", await callers.tenant())
    other = victims["tenant_id"]
    assert (await stranger.get("/api-keys", params={"tenant_id": other})).status_code == 404
    assert (await stranger.post("/api-keys", json={"role": "viewer", "tenant_id": other})).status_code == 404
    assert (await stranger.get("/dead-letters", params={"job_id": victims["job_id"]})).json() == []
    replayed = await stranger.post("/dead-letters:replay", json={"filter": {"job_id": victims["job_id"]}})
    assert replayed.json()["replayed"] == 0


async def test_two_tenants_may_use_the_same_names(callers: Callers, victims: dict[str, str]) -> None:
    stranger = await callers.make("editor", await callers.tenant())
    answer = await stranger.put("/jobs/by-name/theirs", json=JOB)
    assert (answer.status_code, answer.json()["job_id"] != victims["job_id"]) == (201, True)
