"""Sinks of events that are brokers: one message for each event, in the order of its job, at least once."""

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from typing import Any

import asyncpg
import nats
import pytest
from redis.asyncio import Redis

from engine import until
from evertick.contract.events import EventStreamRequest, NatsSink, RedisStreamSink, Sink, SinkStatus
from evertick.roles.dispatcher import Dispatcher
from evertick.roles.dispatcher.event_messages import MAX_OF_KEY
from evertick.store.database import Pool
from evertick.store.tenants import broker_connections
from evertick.store.tenants.broker_connections import ConnectionKey, Content
from evertick.targets.egress.guard import EgressPolicy
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.lifecycle import pause, resume
from evertick.usecases.tenants.events import get_stream, put_stream, read
from redis_server import RedisServer, redis_server
from roles.dispatching import SEAL
from roles.test_event_sinks import JOB, created, dispatching, send
from servers.nats import NatsServer

STREAM = "evertick-events"
TO_REDIS = RedisStreamSink(connection="warehouse", stream=STREAM, headers={"X-Team": "audit"})


@pytest.fixture
def tenant(pool: Pool) -> TenantContext:
    return TenantContext(pool, 1)


@pytest.fixture
async def dispatcher(database_url: str) -> AsyncIterator[Dispatcher]:
    async with dispatching(database_url) as made:
        yield made


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with redis_server(is_durable=True) as server:
        yield server


async def connect(tenant: TenantContext, kind: str, settings: dict[str, Any]) -> None:
    content = Content(kind, json.dumps({"tls": False, **settings}), {})
    assert await broker_connections.add(tenant.pool, ConnectionKey(tenant.tenant_id, "warehouse"), content, SEAL)


async def sink_to_redis(tenant: TenantContext, server: RedisServer, **more: Any) -> None:
    await connect(tenant, "redis_stream", {"host": "127.0.0.1", "port": server.port})
    await put_stream(tenant, EventStreamRequest(sink=TO_REDIS, **more))


async def sink_to(tenant: TenantContext, sink: Sink) -> None:
    await put_stream(tenant, EventStreamRequest(sink=sink))


async def entries(server: RedisServer) -> list[dict[str, str]]:
    async with Redis.from_url(server.url, decode_responses=True) as client:
        found: Any = await client.xrange(STREAM)
    return [fields for _, fields in found]


async def status_of(tenant: TenantContext) -> SinkStatus:
    status = (await get_stream(tenant)).status
    assert status is not None
    return status


async def try_again(connection: asyncpg.Connection, dispatcher: Dispatcher) -> int:
    await connection.execute("UPDATE event_sinks SET next_try_at = clock_at()")
    await dispatcher.connections.refresh()
    return await send(dispatcher)


def by_job(events: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The ids of events by their job, each where it came first."""
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for key, event_id in events:
        found[key].setdefault(event_id)
    return {key: list(ids) for key, ids in found.items()}


async def test_an_event_is_a_message_that_has_its_attributes_and_its_data(
    dispatcher: Dispatcher, tenant: TenantContext, redis: RedisServer
) -> None:
    await sink_to_redis(tenant, redis)
    (job_id,) = await created(tenant, 1)
    assert await send(dispatcher) == 1
    (entry,) = await entries(redis)
    (event,) = (await read(tenant)).events
    assert {name: text for name, text in entry.items() if name != "data"} == {
        "ce_specversion": "1.0",
        "ce_id": event.id,
        "ce_source": "/evertick/tenants/ten_0000000000001",
        "ce_type": "evertick.job.created",
        "ce_time": event.time.isoformat().replace("+00:00", "Z"),
        "ce_subject": job_id,
        "ce_partitionkey": job_id,
        "content-type": "application/json",
        "X-Team": "audit",
    }
    assert json.loads(entry["data"])["job_id"] == job_id
    status = await status_of(tenant)
    assert (status.cursor, status.lag_seconds, status.failures) == (event.id, 0, 0)
    assert await send(dispatcher) == 0


async def test_nothing_is_lost_and_the_order_of_each_job_stays_when_the_broker_is_killed(
    dispatcher: Dispatcher, tenant: TenantContext, redis: RedisServer, connection: asyncpg.Connection
) -> None:
    await sink_to_redis(tenant, redis)
    await created(tenant, 4)
    many = 20 * MAX_OF_KEY
    await connection.execute(
        "INSERT INTO new_events (type, tenant_id, job_id, spec_version)"
        " SELECT 'job.edited', 1, job_id, 1 FROM jobs, generate_series(1, $1) AS turn ORDER BY turn, job_id",
        many,
    )
    await created(tenant, 0)
    sending = asyncio.create_task(send(dispatcher))
    async with Redis.from_url(redis.url) as client:

        async def has_many() -> bool:
            return await client.xlen(STREAM) >= many

        await until(has_many)
        await redis.kill()
    await sending
    status = await status_of(tenant)
    assert status.failures == 1, "the broker was killed when all was sent"
    await redis.start()
    before = await entries(redis)
    assert many <= len(before) < 4 * (1 + many)
    await created(tenant, 1)
    assert await try_again(connection, dispatcher) == 1
    expected = [(str(event.partitionkey), event.id) for event in await all_events(tenant)]
    after = [(entry["ce_partitionkey"], entry["ce_id"]) for entry in await entries(redis)]
    assert len(expected) == 4 * (1 + many) + 1
    assert by_job(after) == by_job(expected)
    assert (await status_of(tenant)).failing_since is None


async def all_events(tenant: TenantContext) -> list[Any]:
    found: list[Any] = []
    while True:
        page = await read(tenant, after=int(found[-1].id) if found else None)
        found += page.events
        if page.is_last:
            return found


async def test_after_a_refused_event_none_of_its_job_is_sent(
    dispatcher: Dispatcher, tenant: TenantContext, connection: asyncpg.Connection
) -> None:
    with NatsServer.running() as server:
        client = await nats.connect(f"nats://127.0.0.1:{server.port}")
        stream = client.jetstream()
        await stream.add_stream(name="events", subjects=["events"], max_msg_size=2000)
        await connect(tenant, "nats", {"servers": [f"127.0.0.1:{server.port}"]})
        await sink_to(tenant, NatsSink(connection="warehouse", subject="events"))
        job = await create(tenant, JOB)
        await pause(tenant, job.job_id, "x" * 2500)
        await resume(tenant, job.job_id)
        await created(tenant, 0)
        await send(dispatcher)
        assert (await stream.stream_info("events")).state.messages == 1, "the first event of the job"
        status = await status_of(tenant)
        assert "message size exceeds maximum allowed" in str(status.last_error)
        await stream.update_stream(name="events", subjects=["events"], max_msg_size=5000)
        await try_again(connection, dispatcher)
        found = [await stream.get_msg("events", number) for number in (1, 2, 3)]
        state = (await stream.stream_info("events")).state
        await client.close()
    kinds = [each.headers["ce-type"] for each in found if each.headers is not None]
    assert kinds == ["evertick.job.created", "evertick.job.paused", "evertick.job.resumed"]
    assert state.messages == 3, "the stream recognised what came twice"


async def test_the_sink_says_why_it_fails(
    dispatcher: Dispatcher,
    tenant: TenantContext,
    redis: RedisServer,
    connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await sink_to_redis(tenant, redis)
    await created(tenant, 1)

    async def reason() -> str:
        assert await try_again(connection, dispatcher) == 1
        return str((await status_of(tenant)).last_error)

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "evertick.targets.brokers.redis_stream", None)
        assert "pip install 'evertick[redis]'" in await reason()
    async with Redis.from_url(redis.url) as client:
        await client.set(STREAM, "not a stream")
        assert "WRONGTYPE" in await reason()
        await client.delete(STREAM)
    await connection.execute("UPDATE broker_connections SET name = 'another'")
    assert await reason() == "not sent: there is no connection 'warehouse' of type redis_stream"
    await connection.execute("UPDATE broker_connections SET name = 'warehouse'")
    await connection.execute("""UPDATE event_sinks SET target = '{"type": "pulsar"}'""")
    assert "this version cannot send to it" in await reason()
    assert await entries(redis) == []


async def test_nothing_connects_to_an_address_that_is_not_open(
    database_url: str, tenant: TenantContext, redis: RedisServer
) -> None:
    await sink_to_redis(tenant, redis)
    await created(tenant, 1)
    async with dispatching(database_url, EgressPolicy()) as dispatcher:
        await send(dispatcher)
    assert "EVERTICK_EGRESS_ALLOW" in str((await status_of(tenant)).last_error)
    assert await entries(redis) == []


async def test_the_sink_of_the_host_gets_the_events_of_all_tenants_over_its_own_connection(
    dispatcher: Dispatcher, tenant: TenantContext, redis: RedisServer, connection: asyncpg.Connection, pool: Pool
) -> None:
    await connection.execute("INSERT INTO tenants (tenant_id, name, weight) VALUES (2, 'other', 1)")
    await sink_to_redis(tenant, redis, all_tenants=True)
    await created(TenantContext(pool, 2), 1)
    await created(tenant, 1)
    await send(dispatcher)
    sources = {entry["ce_source"] for entry in await entries(redis)}
    assert sources == {"/evertick/tenants/ten_0000000000002", "/evertick/tenants/ten_0000000000001"}
