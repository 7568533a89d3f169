"""Idempotency keys where the answer holds a secret: it comes again, and nobody can read it in the database."""

from typing import Any

import asyncpg
import pytest

from api.callers import Caller, Callers, is_problem

KEY = {"Idempotency-Key": "bootstrap"}


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
