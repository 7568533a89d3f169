"""Attempts that go to a message broker over a connection of their tenant, here to streams of a real Redis."""

import json
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from redis.asyncio import Redis

from engine import Job
from evertick.domain.ids import Prefix, format_id
from evertick.store.tenants import broker_connections
from evertick.store.tenants.broker_connections import ConnectionKey, Content
from evertick.store.tenants.secrets import Seal
from evertick.targets.egress.guard import EgressPolicy
from redis_server import RedisServer, redis_server
from roles.dispatching import SEAL, PostOffice

NO_GRACE = timedelta(0)
PASSWORD = "correct horse"


class StreamOffice(PostOffice):
    """An office that has connections to Redis, and reads its streams."""

    redis: RedisServer

    async def connect(self, name: str = "orders", tenant_id: int = 1, *, port: int = 0, password: str = "") -> None:
        settings = {"host": "127.0.0.1", "port": port or self.redis.port, "tls": False}
        content = Content("redis_stream", json.dumps(settings), {"password": password} if password else {})
        key = ConnectionKey(tenant_id, name)
        async with self.connection.transaction():
            if await broker_connections.lock(self.connection, key):
                await broker_connections.replace(self.connection, key, content, SEAL)
            else:
                assert await broker_connections.add(self.connection, key, content, SEAL)

    async def streamed(self, stream: str = "invoices", connection: str = "orders", **options: Any) -> Job:
        fields = {name: options.pop(name) for name in ("headers", "max_length", "circuit_breaker") if name in options}
        target = {"type": "redis_stream", "connection": connection, "stream": stream, **fields}
        return await self.addressed(target, **options)

    async def entries(self, stream: str = "invoices") -> list[dict[str, str]]:
        async with Redis.from_url(self.redis.url, decode_responses=True) as client:
            found: list[tuple[str, dict[str, str]]] = await client.xrange(stream)
        return [fields for _, fields in found]


@pytest.fixture
async def office(connection: asyncpg.Connection, database_url: str) -> AsyncIterator[StreamOffice]:
    office = StreamOffice(connection, database_url)
    async with redis_server() as office.redis:
        yield office


async def test_an_attempt_becomes_an_entry_that_says_all_about_its_run(office: StreamOffice) -> None:
    await office.connect()
    job = await office.streamed(payload={"account": 7, "name": "Ä"}, headers={"X-Team": "billing"})
    await office.deliver()
    (entry,) = await office.entries()
    job_id = format_id(Prefix.JOB, job.job_id)
    assert json.loads(entry["data"]) == {"account": 7, "name": "Ä"}
    assert entry["content-type"] == "application/json"
    assert entry["X-Team"] == "billing"
    assert entry["ce_specversion"] == "1.0"
    assert entry["ce_type"] == "evertick.run.fired"
    assert entry["ce_source"] == f"/evertick/jobs/{job_id}"
    assert entry["ce_id"].startswith("run_")
    assert entry["ce_token"].split(".")[1] == entry["ce_fencingtoken"]
    assert entry["ce_attempt"] == "1"
    assert {"ce_time", "ce_subject", "ce_idempotencykey", "ce_reason", "ce_traceparent"} <= entry.keys()
    outcome = await office.outcome(job)
    assert outcome.result == "success"
    assert outcome.excerpt is not None
    assert outcome.excerpt.startswith("stream invoices, entry ")


async def test_a_field_of_the_payload_chooses_the_stream(office: StreamOffice) -> None:
    await office.connect()
    job = await office.streamed("account-{{payload.account}}", payload={"account": 7})
    lacking = await office.streamed("account-{{payload.account}}", payload={"other": 7})
    await office.deliver()
    assert len(await office.entries("account-7")) == 1
    assert (await office.outcome(job)).result == "success"
    refused = await office.outcome(lacking)
    assert (refused.result, refused.is_final) == ("failed", True)
    assert refused.error == "not sent: the payload has no field 'account', which stream names"


async def test_many_attempts_keep_a_stream_short(office: StreamOffice) -> None:
    await office.connect()
    job = await office.streamed(count=300, max_length=100)
    await office.deliver()
    assert await office.results(job) == ["success"] * 300
    assert 100 <= len(await office.entries()) < 300


async def test_what_redis_refuses_is_dead_at_once_and_harms_no_neighbour(office: StreamOffice) -> None:
    await office.connect()
    async with Redis.from_url(office.redis.url) as client:
        await client.set("text", "not a stream")
    refused = await office.streamed("text", count=30)
    taken = await office.streamed(count=30)
    await office.deliver()
    outcomes = await office.outcomes(refused)
    assert {(each.result, each.is_final) for each in outcomes} == {("failed", True)}
    assert outcomes[0].error is not None
    assert "WRONGTYPE" in outcomes[0].error
    assert await office.results(taken) == ["success"] * 30
    assert await office.connection.fetchval("SELECT count(*) FROM target_hosts") == 0


async def test_a_job_without_its_connection_fails_for_good_and_says_why(office: StreamOffice) -> None:
    job = await office.streamed(connection="ordres")
    await office.deliver()
    outcome = await office.outcome(job)
    assert (outcome.result, outcome.is_final) == ("failed", True)
    assert outcome.error == "not sent: there is no connection 'ordres' of type redis_stream"


async def test_nothing_connects_to_an_address_that_is_not_open(office: StreamOffice) -> None:
    await office.connect()
    job = await office.streamed()
    await office.deliver(EgressPolicy())
    outcome = await office.outcome(job)
    assert (outcome.result, outcome.is_final) == ("failed", True)
    assert outcome.error is not None
    assert "EVERTICK_EGRESS_ALLOW" in outcome.error
    assert await office.entries() == []


async def test_secrets_that_cannot_be_opened_here_leave_the_attempt_to_others(
    office: StreamOffice, caplog: pytest.LogCaptureFixture
) -> None:
    await office.connect(password=PASSWORD)
    job = await office.streamed(count=3)
    await office.deliver(seal=Seal("another key of at least thirty-two characters"))
    assert await office.outcomes(job) == []
    assert len(await office.put_back()) == 3
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "messages over connection orders of tenant 1 wait" in told
    assert PASSWORD not in caplog.text
