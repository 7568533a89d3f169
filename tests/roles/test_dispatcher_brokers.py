"""Attempts that go to a message broker over a connection of their tenant, here to streams of a real Redis."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from redis.asyncio import Redis

from engine import Job, until
from evertick.domain.breaker import MIN_CALLS, TenantHost
from evertick.domain.ids import Prefix, format_id
from evertick.store.tenants import broker_connections, target_hosts
from evertick.store.tenants.broker_connections import ConnectionKey, Content
from evertick.store.tenants.secrets import Seal
from evertick.targets.brokers.target import PER_CONNECTION
from evertick.targets.egress.guard import EgressPolicy
from redis_server import RedisServer, babbling_server, redis_server
from roles.dispatching import SEAL, Receiver
from roles.test_dispatcher_circuits import CircuitOffice

PASSWORD = "correct horse"
HOST = "redis_stream:orders"


class StreamOffice(CircuitOffice):
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
        own = ("headers", "max_length", "circuit_breaker")
        fields: dict[str, Any] = {name: options.pop(name) for name in own if name in options}
        target: dict[str, Any] = {"type": "redis_stream", "connection": connection, "stream": stream, **fields}
        return await self.addressed(target, **options)

    async def entries(self, stream: str = "invoices") -> list[dict[str, str]]:
        async with Redis.from_url(self.redis.url, decode_responses=True) as client:
            found: Any = await client.xrange(stream)
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
    assert {"ce_time", "ce_subject", "ce_idempotencykey", "ce_reason"} <= entry.keys()
    assert entry["traceparent"] == entry["ce_traceparent"]
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


async def test_a_redis_without_memory_is_tried_again(office: StreamOffice) -> None:
    await office.connect()
    async with Redis.from_url(office.redis.url) as client:
        await client.config_set("maxmemory", 1)
    job = await office.streamed()
    await office.deliver()
    outcome = await office.outcome(job)
    assert (outcome.result, outcome.is_final, outcome.error) == ("failed", False, "Redis is out of memory")


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


async def test_a_broker_that_is_down_is_left_alone_until_a_probe_finds_it_and_nothing_is_lost(
    office: StreamOffice, receiver: Receiver
) -> None:
    await office.connect()
    await office.redis.stop()
    failing = await office.streamed(count=MIN_CALLS)
    dispatcher = office.dispatcher()
    await dispatcher.open()
    await dispatcher.work_off()
    await dispatcher.circuits.report()
    await office.watch_for_long()
    await dispatcher.close()
    assert await office.states() == {HOST: "open"}
    await office.put_off_probe()
    errors = {(each.result, each.is_final, each.error) for each in await office.outcomes(failing)}
    refused = f"cannot connect to 127.0.0.1:{office.redis.port}: Connection refused"
    assert errors == {("failed", False, refused)}
    later = await office.streamed(count=30)
    posted = await office.posted(receiver.url, count=30)
    async with office.delivering() as dispatcher:
        await office.until_put_back(30)
        assert len(await office.until_ended(posted, 30)) == 30, "its tenant's other targets go on"
        assert await office.outcomes(later) == []
        await office.redis.start()
        await office.pass_time(dispatcher)

        async def is_closed() -> bool:
            return await office.states() == {HOST: "closed"}

        await until(is_closed)
        await office.pass_time()
        outcomes = await office.until_ended(later, 30)
    assert {(each.result, each.attempt) for each in outcomes} == {("success", 1)}
    keys = [entry["ce_idempotencykey"] for entry in await office.entries()]
    assert len(keys) == len(set(keys)) == 30


async def test_a_rolled_password_is_used_within_seconds(office: StreamOffice) -> None:
    async with redis_server(PASSWORD) as office.redis:
        await office.connect(password="wrong")
        first = await office.streamed()
        async with office.delivering() as dispatcher:
            (refused,) = await office.until_ended(first)
            assert refused.error == "Redis refused the user name or password"
            assert not refused.is_final
            await office.connect(password=PASSWORD)
            await dispatcher.connections.refresh()
            second = await office.streamed()
            (taken,) = await office.until_ended(second)
            assert taken.result == "success"
            await dispatcher.publishers.close_unused()
            assert len(dispatcher.publishers) == 1, "the one of the old password is closed"


async def test_a_broker_that_hangs_leaves_its_tenants_other_targets_their_slots(
    office: StreamOffice, receiver: Receiver
) -> None:
    async with hanging_server() as port:
        await office.connect(port=port)
        await office.streamed(count=300, timeout_seconds=30)
        async with office.delivering() as dispatcher:

            async def are_held() -> bool:
                return dispatcher.slots.total - dispatcher.slots.free >= PER_CONNECTION

            await until(are_held)
            posted = await office.posted(receiver.url, count=20)
            outcomes = await office.until_ended(posted, 20)
            assert {each.result for each in outcomes} == {"success"}


async def test_a_broker_that_talks_nonsense_counts_as_down(office: StreamOffice) -> None:
    async with babbling_server() as port:
        await office.connect(port=port)
        job = await office.streamed()
        await office.deliver()
    outcome = await office.outcome(job)
    assert outcome.result == "failed"
    assert outcome.error == "Redis sent what cannot be read"


async def test_what_this_dispatcher_has_no_client_for_is_left_to_others(
    office: StreamOffice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "evertick.dispatcher")
    monkeypatch.setitem(sys.modules, "evertick.targets.brokers.redis_stream", None)
    await office.connect()
    job = await office.streamed()
    await office.deliver()
    assert await office.outcomes(job) == []
    assert len(await office.put_back()) == 1
    assert "pip install 'evertick[redis]'" in caplog.text


async def test_a_target_of_an_unknown_type_is_left_to_newer_dispatchers(office: StreamOffice) -> None:
    job = await office.addressed({"type": "nats", "connection": "orders", "subject": "s"})
    await office.connection.execute(
        "UPDATE job_versions SET spec = $2 WHERE job_id = $1", job.job_id, json.dumps({"target": {"type": "pulsar"}})
    )
    await office.deliver()
    assert await office.outcomes(job) == []
    assert len(await office.put_back()) == 1


async def test_a_rate_limit_of_a_connection_defers_what_is_over_it(office: StreamOffice) -> None:
    await office.connect()
    await target_hosts.limit(office.connection, TenantHost(1, HOST), 0.001, 2)
    job = await office.streamed(count=5)
    await office.deliver()
    assert await office.results(job) == ["success"] * 2
    assert len(await office.put_back()) == 3


@asynccontextmanager
async def hanging_server() -> AsyncIterator[int]:
    """Accepts connections, and answers nothing."""
    writers = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()
