"""Connections to message brokers, from the API to the message: made, shown without secrets, tested, used, removed."""

import json
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from redis.asyncio import Redis

from api.callers import Caller, Callers, is_problem, pointers
from engine import until
from evertick.api.server import ApiServer
from evertick.config.settings import Settings
from evertick.roles.dispatcher import Dispatcher
from evertick.roles.dispatcher.settings import Egress, seal_of
from evertick.roles.scheduler import Scheduler
from evertick.store.tenants import tenants
from redis_server import RedisServer, babbling_server, redis_server
from roles.dispatching import LOOPBACK

PASSWORD = "never to be seen"
SETTINGS = Settings(
    port=0,
    secret_key=("a key of at least thirty-two characters",),
    egress_allow=LOOPBACK.opened,
    egress_allow_http=True,
)


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[ApiServer]:
    server = ApiServer(database_url, SETTINGS, connections=8)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with redis_server(PASSWORD) as server:
        yield server


def to_redis(server: RedisServer, password: str = PASSWORD, **settings: Any) -> dict[str, Any]:
    return {
        "type": "redis_stream",
        "settings": {"host": "127.0.0.1", "port": server.port, "tls": False, **settings},
        "secrets": {"password": password},
    }


def to_nats(**fields: Any) -> dict[str, Any]:
    return {"name": "orders", "type": "nats", "settings": {"servers": ["nats.example.invalid"]}, **fields}


async def test_a_connection_is_shown_with_its_settings_and_the_names_of_its_secrets(admin: Caller) -> None:
    made = await admin.post("/connections", json=to_nats(secrets={"token": PASSWORD}))
    assert made.status_code == 201
    assert made.headers["location"] == "/api/v1/connections/orders"
    shown = (await admin.get("/connections/orders")).json()
    assert shown == made.json()
    assert (shown["name"], shown["type"], shown["secrets"]) == ("orders", "nats", ["token"])
    assert shown["settings"] == {
        "servers": ["nats.example.invalid"],
        "username": None,
        "tls": True,
        "tls_ca": None,
    }
    assert (await admin.get("/connections")).json() == [shown]


async def test_a_name_is_given_once_and_unknown_fields_are_refused(admin: Caller) -> None:
    assert (await admin.post("/connections", json=to_nats())).status_code == 201
    is_problem(await admin.post("/connections", json=to_nats()), 409, "name-taken")
    for body, pointer in (
        ({}, "/type"),
        (to_nats(type="natz"), "/type"),
        (to_nats(name=None), "/name"),
        (to_nats(name="Orders"), "/name"),
        (to_nats(settings={}), "/settings/servers"),
        (to_nats(settings={"servers": ["a"], "user": "x"}), "/settings/user"),
        (to_nats(secrets={"pasword": PASSWORD}), "/secrets/pasword"),
        (to_nats(secrets={"password": 7}), "/secrets/password"),
    ):
        answer = await admin.post("/connections", json=body)
        assert pointers(answer) == [pointer], body
        assert PASSWORD not in answer.text


async def test_a_replaced_connection_keeps_the_secrets_that_are_not_given(
    admin: Caller, connection: asyncpg.Connection, redis: RedisServer
) -> None:
    first = to_redis(redis)
    assert (await admin.put("/connections/events", json=first)).status_code == 201
    changed = await admin.put("/connections/events", json={**first, "secrets": {}})
    assert (changed.status_code, changed.json()["secrets"]) == (200, ["password"])
    assert (await admin.post("/connections/events:test")).json()["is_usable"]
    cleared = await admin.put("/connections/events", json={**first, "secrets": {"password": ""}})
    assert cleared.json()["secrets"] == []
    found = (await admin.post("/connections/events:test")).json()
    assert (found["is_usable"], "refused" in found["detail"]) == (False, True)
    stored = await connection.fetchval("SELECT sum(connection_bytes(settings::text, secrets)) FROM broker_connections")
    audited = await connection.fetchval("SELECT count(*) * audit_bytes() FROM audit_log")
    assert (await tenants.stored(connection, 1)).bytes == stored + audited


@pytest.mark.parametrize("moved", [{"servers": ["other.example.invalid"]}, {"tls": False}])
async def test_a_connection_to_another_server_needs_its_secrets_again(admin: Caller, moved: dict[str, Any]) -> None:
    """Who may edit a connection must not learn its secrets from a server of theirs."""
    first = to_nats(secrets={"token": PASSWORD})
    made = await admin.put("/connections/orders", json=first)
    other = to_nats(settings={**first["settings"], **moved})
    refused = await admin.put("/connections/orders", json=other)
    assert pointers(refused) == ["/secrets/token"]
    assert (await admin.get("/connections/orders")).json() == made.json()
    for given in (PASSWORD, ""):
        assert (await admin.put("/connections/orders", json={**other, "secrets": {"token": given}})).status_code == 200
    renamed = to_nats(settings={**other["settings"], "username": "evertick"})
    assert (await admin.put("/connections/orders", json=renamed)).status_code == 200


async def test_secrets_are_sealed_and_in_no_log(
    admin: Caller, connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await admin.post("/connections", json=to_nats(secrets={"token": PASSWORD}))
    rows = await connection.fetch("SELECT to_jsonb(broker_connections)::text FROM broker_connections")
    assert PASSWORD not in str(rows)
    stored: bytes = await connection.fetchval("SELECT secrets FROM broker_connections")
    assert PASSWORD.encode() not in stored
    assert PASSWORD not in caplog.text
    assert PASSWORD not in (await admin.get("/audit-log")).text


async def test_a_test_says_what_answers_or_why_not(admin: Caller, redis: RedisServer) -> None:
    async def found(name: str, fields: dict[str, Any]) -> tuple[bool, str]:
        assert (await admin.put(f"/connections/{name}", json=fields)).status_code in {200, 201}
        answer = await admin.post(f"/connections/{name}:test")
        assert answer.status_code == 200, answer.text
        return answer.json()["is_usable"], answer.json()["detail"]

    usable, detail = await found("well", to_redis(redis))
    assert (usable, detail.startswith("Redis ")) == (True, True)
    assert await found("denied", to_redis(redis, "wrong")) == (False, "Redis refused the user name or password")
    refused = (False, "cannot connect to 127.0.0.1:1024: Connection refused")
    assert await found("refused", to_redis(redis, port=1024)) == refused
    secured: dict[str, Any] = {"tls": True, "tls_ca": "no certificate"}
    assert await found("strange", to_redis(redis, **secured)) == (False, "tls_ca has no certificate that can be read")
    usable, detail = await found("private", to_redis(redis, host="10.0.0.1"))
    assert (usable, "EVERTICK_EGRESS_ALLOW" in detail) == (False, True)
    async with babbling_server() as port:
        told = (False, "Redis sent what cannot be read")
        assert await found("babbling", to_redis(redis, "", port=port)) == told
    is_problem(await admin.post("/connections/none:test"), 404, "not-found")


async def test_a_test_says_what_the_connection_does_not_use(admin: Caller, redis: RedisServer) -> None:
    fields = to_redis(redis, username="evertick", tls_ca="a certificate")
    await admin.put("/connections/events", json={**fields, "secrets": {}})
    found = (await admin.post("/connections/events:test")).json()
    assert found == {
        "is_usable": False,
        "detail": "Redis refused the user name or password; tls_ca is not used without tls;"
        " username is not used without password",
    }


async def test_a_job_names_a_connection_that_there_is_of_its_type(admin: Caller) -> None:
    await admin.post("/connections", json=to_nats())
    target = {"type": "nats", "connection": "ordres", "subject": "invoices"}
    job = {"schedule": "@daily", "target": target}
    refused = await admin.post("/jobs", json=job)
    assert pointers(refused) == ["/target/connection"]
    assert "did you mean 'orders'?" in refused.text
    kafka = {"type": "kafka", "connection": "orders", "topic": "invoices"}
    assert "is a connection of type nats" in (await admin.post("/jobs", json={**job, "target": kafka})).text
    batch = [job, {**job, "target": {**target, "connection": "orders"}}]
    verdicts = (await admin.post("/jobs:batch", json=batch)).json()
    assert [verdict["status"] for verdict in verdicts] == [422, 201]
    changed = await admin.patch(f"/jobs/{verdicts[1]['job_id']}", json={"target": target})
    assert pointers(changed) == ["/target/connection"]


async def test_a_connection_in_use_is_neither_removed_nor_made_another_one(admin: Caller) -> None:
    await admin.post("/connections", json=to_nats())
    target = {"type": "nats", "connection": "orders", "subject": "invoices"}
    job = await admin.create(target=target)
    refused = is_problem(await admin.delete("/connections/orders"), 409, "wrong-state")
    assert "it is used by 1 job: " in refused["detail"]
    other = {"type": "redis_stream", "settings": {"host": "redis.example.invalid"}}
    is_problem(await admin.put("/connections/orders", json=other), 409, "wrong-state")
    assert (await admin.delete(f"/jobs/{job['job_id']}")).status_code == 204
    assert (await admin.put("/connections/orders", json=other)).json()["type"] == "redis_stream"
    assert (await admin.delete("/connections/orders")).status_code == 204
    is_problem(await admin.get("/connections/orders"), 404, "not-found")


async def test_a_connection_of_the_sink_of_events_is_neither_removed_nor_made_another_one(admin: Caller) -> None:
    await admin.post("/connections", json=to_nats())
    sink = {"type": "nats", "connection": "orders", "subject": "events"}
    assert (await admin.put("/events/stream", json={"sink": sink})).json()["sink"] == sink
    refused = is_problem(await admin.delete("/connections/orders"), 409, "wrong-state")
    assert "the sink of events names it" in refused["detail"]
    other = {"type": "redis_stream", "settings": {"host": "redis.example.invalid"}}
    is_problem(await admin.put("/connections/orders", json=other), 409, "wrong-state")
    await admin.put("/events/stream", json={})
    assert (await admin.delete("/connections/orders")).status_code == 204


async def test_a_sink_of_events_needs_a_connection_of_its_type(admin: Caller) -> None:
    await admin.post("/connections", json=to_nats())
    sink = {"type": "nats", "connection": "order", "subject": "events"}
    missing = await admin.put("/events/stream", json={"sink": sink})
    assert pointers(missing) == ["/sink/connection"]
    assert "did you mean 'orders'?" in missing.text
    kafka = {"type": "kafka", "connection": "orders", "topic": "events"}
    assert "is a connection of type nats" in (await admin.put("/events/stream", json={"sink": kafka})).text
    is_problem(await admin.get("/events/stream"), 404, "not-found")


async def test_connections_of_tenants_are_their_own(callers: Callers, admin: Caller) -> None:
    await admin.post("/connections", json=to_nats())
    other = await callers.make("admin", await callers.tenant())
    assert (await other.get("/connections")).json() == []
    assert (await other.post("/connections", json=to_nats(secrets={"token": "x"}))).status_code == 201
    assert (await admin.get("/connections/orders")).json()["secrets"] == []
    job = {"schedule": "@daily", "target": {"type": "nats", "connection": "mine", "subject": "s"}}
    await admin.post("/connections", json=to_nats(name="mine"))
    assert pointers(await other.post("/jobs", json=job)) == ["/target/connection"]


class Streaming:
    """A job that goes to a stream, and a dispatcher that delivers it."""

    def __init__(self, admin: Caller, redis: RedisServer) -> None:
        self._admin = admin
        self._redis = redis

    async def trigger(self, **options: Any) -> str:
        target = {"type": "redis_stream", "connection": "events", "stream": "invoices", **options}
        job = await self._admin.create(schedule="manual", target=target, payload={"account": 7})
        run_id: str = (await self._admin.post(f"/jobs/{job['job_id']}/trigger")).json()["run_id"]
        return run_id

    async def entries(self) -> list[dict[str, str]]:
        async with Redis.from_url(self._redis.url, decode_responses=True) as client:
            found: Any = await client.xrange("invoices")
        return [fields for _, fields in found]

    async def until_status(self, run_id: str, status: str) -> None:
        async def has_status() -> bool:
            return bool((await self._admin.get(f"/runs/{run_id}")).json()["status"] == status)

        await until(has_status)


@pytest.fixture
async def streaming(
    admin: Caller, redis: RedisServer, scheduler: Scheduler, database_url: str
) -> AsyncIterator[Streaming]:
    await admin.post("/connections", json={"name": "events", **to_redis(redis)})
    dispatcher = Dispatcher(database_url, seal_of(SETTINGS), lambda _: Egress(LOOPBACK, "as the test says"))
    await dispatcher.start()
    yield Streaming(admin, redis)
    await dispatcher.stop(timedelta(0))


async def test_a_job_that_was_made_over_the_api_leaves_its_message_in_the_stream(
    admin: Caller, streaming: Streaming
) -> None:
    run_id = await streaming.trigger(max_length=1000)
    await streaming.until_status(run_id, "success")
    (entry,) = await streaming.entries()
    assert (entry["ce_id"], json.loads(entry["data"])) == (run_id, {"account": 7})
    (queue,) = [each for each in (await admin.get("/queues")).json() if each["name"] == "redis_stream"]
    assert queue["ready"] == 0


async def test_a_run_that_its_consumer_reports_is_open_until_then(callers: Callers, streaming: Streaming) -> None:
    run_id = await streaming.trigger(completion="reported")

    async def is_there() -> bool:
        return len(await streaming.entries()) == 1

    await until(is_there)
    (entry,) = await streaming.entries()
    await streaming.until_status(run_id, "running")
    consumer = await callers.make("worker")

    async def is_recorded() -> bool:  # not before the dispatcher has handed it over
        done = await consumer.record({"token": entry["ce_token"], "result": "success"}, worker="consumer")
        return bool(done["recorded"])

    await until(is_recorded)
    await streaming.until_status(run_id, "success")


async def test_workers_cannot_lease_what_goes_to_brokers(admin: Caller) -> None:
    answer = await admin.post("/queues/kafka/lease", json={"worker_id": "w", "wait_seconds": 0})
    assert "'kafka' is for kafka targets, which Evertick delivers itself" in answer.text
