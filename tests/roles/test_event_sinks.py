"""Sinks of events: batches in order, at least once, by one dispatcher at a time, whatever fails."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from aiohttp import web
from standardwebhooks import Webhook

from engine import until
from evertick.contract.events import EventStreamRequest, WebhookSink
from evertick.domain.events import EventType, wait_seconds
from evertick.roles.dispatcher import Dispatcher
from evertick.roles.dispatcher.event_sinks import PAGE
from evertick.roles.dispatcher.settings import Egress
from evertick.store.database import Pool
from evertick.store.tenants import events
from evertick.targets.egress.guard import EgressPolicy
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.lifecycle import pause, resume
from evertick.usecases.tenants.events import get_stream, put_stream
from roles.dispatching import LOOPBACK, SEAL, Receiver

JOB = {"schedule": "manual", "target": {"type": "worker", "handler": "send"}}


@pytest.fixture
def tenant(pool: Pool) -> TenantContext:
    return TenantContext(pool, 1)


@asynccontextmanager
async def dispatching(url: str, policy: EgressPolicy = LOOPBACK) -> AsyncIterator[Dispatcher]:
    """A dispatcher whose steps the test drives."""
    made = Dispatcher(url, SEAL, lambda _: Egress(policy, "as the test says"))
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def dispatcher(database_url: str) -> AsyncIterator[Dispatcher]:
    async with dispatching(database_url) as made:
        yield made


async def sink_to(tenant: TenantContext, receiver: Receiver, **more: Any) -> None:
    request = EventStreamRequest(sink=WebhookSink(url=receiver.url, headers={"X-Team": "audit"}), **more)
    await put_stream(tenant, request)


async def created(tenant: TenantContext, count: int) -> list[str]:
    """The ids of so many new jobs, each with its event."""
    jobs = [await create(tenant, JOB) for _ in range(count)]
    assert isinstance(tenant.pool, Pool)
    while await events.give_positions(tenant.pool, 1000):
        pass
    return [job.job_id for job in jobs]


async def send(dispatcher: Dispatcher) -> int:
    """Send to all sinks that can be leased; how many these are."""
    leased, until = await dispatcher.event_sinks.lease()
    for sink in leased:
        await dispatcher.event_sinks.send(sink, until)
    return len(leased)


def received(receiver: Receiver) -> list[dict[str, Any]]:
    return [event for each in receiver.received for event in json.loads(each.body)]


async def test_events_are_sent_in_order_in_signed_batches(
    dispatcher: Dispatcher, tenant: TenantContext, receiver: Receiver
) -> None:
    await sink_to(tenant, receiver)
    job_ids = await created(tenant, PAGE + 3)
    assert await send(dispatcher) == 1
    assert [len(json.loads(each.body)) for each in receiver.received] == [PAGE, 3]
    assert [event["data"]["job_id"] for event in received(receiver)] == job_ids
    headers, body = receiver.received[0]
    assert headers["content-type"] == "application/cloudevents-batch+json; charset=UTF-8"
    assert headers["x-team"] == "audit"
    (secret,) = dispatcher.keyring.secrets_of(1) or ()
    assert len(Webhook(secret.text).verify(body, headers)) == PAGE
    status = (await get_stream(tenant)).status
    assert status is not None
    assert (status.cursor, status.lag_seconds, status.failures) == (received(receiver)[-1]["id"], 0, 0)
    assert await send(dispatcher) == 0


async def test_a_sink_gets_the_types_that_it_wants(
    dispatcher: Dispatcher, tenant: TenantContext, receiver: Receiver
) -> None:
    await sink_to(tenant, receiver, types=(EventType.JOB_PAUSED,))
    (job_id,) = await created(tenant, 1)
    await send(dispatcher)
    await pause(tenant, job_id)
    await resume(tenant, job_id)
    await created(tenant, 0)
    assert await send(dispatcher) == 1
    assert [event["type"] for event in received(receiver)] == ["evertick.job.paused"]
    assert await send(dispatcher) == 0  # the others count as read


async def test_a_sink_that_fails_keeps_its_place_and_is_tried_again_later(
    dispatcher: Dispatcher, tenant: TenantContext, receiver: Receiver, connection: asyncpg.Connection
) -> None:
    await sink_to(tenant, receiver)
    first = await created(tenant, 2)
    for failures in (1, 2):
        receiver.will_answer(503, "not now")
        assert await send(dispatcher) == 1
        status = (await get_stream(tenant)).status
        assert status is not None
        assert status.failures == failures
        assert "503" in str(status.last_error)
        assert status.lag_seconds > 0
        assert status.next_try_at is not None
        assert await send(dispatcher) == 0  # its time has not come
        await connection.execute("UPDATE event_sinks SET next_try_at = clock_at()")
    await created(tenant, 1)
    receiver.received.clear()
    assert await send(dispatcher) == 1
    assert [event["data"]["job_id"] for event in received(receiver)][:2] == first
    assert len(received(receiver)) == 3
    status = (await get_stream(tenant)).status
    assert status is not None
    assert (status.failures, status.failing_since, status.last_error) == (0, None, None)


async def test_a_sink_that_took_events_and_then_fails_is_tried_again_soon(
    dispatcher: Dispatcher, tenant: TenantContext, receiver: Receiver, connection: asyncpg.Connection
) -> None:
    await sink_to(tenant, receiver)
    await created(tenant, PAGE + 1)
    await connection.execute("UPDATE event_sinks SET failures = 20, failing_since = clock_at()")
    receiver.will_answer(204, "")
    receiver.will_answer(503, "not now")
    assert await send(dispatcher) == 1
    wait = "SELECT next_try_at <= clock_at() + $1::float * interval '1 second' FROM event_sinks WHERE failures = 1"
    assert await connection.fetchval(wait, wait_seconds(1))


async def test_a_dispatcher_that_dies_after_a_delivery_causes_a_repetition_with_the_same_ids(
    database_url: str, tenant: TenantContext, receiver: Receiver, connection: asyncpg.Connection
) -> None:
    await sink_to(tenant, receiver)
    await created(tenant, 2)
    held = asyncio.Event()

    async def hang() -> web.StreamResponse:
        await held.wait()
        return web.Response()

    receiver.will(hang)
    async with dispatching(database_url) as first:
        (sink,), until = await first.event_sinks.lease()
        sending = asyncio.create_task(first.event_sinks.send(sink, until))
        await receiver.until_received(1)
        sending.cancel()  # as a crash: it neither stores its position nor gives the lease back
        await asyncio.wait([sending])
        held.set()
        async with dispatching(database_url) as second:
            assert await send(second) == 0  # the lease of the first has not run out
            await connection.execute("UPDATE event_sinks SET leased_until = clock_at() - interval '1 s'")
            assert await send(second) == 1
    once, again = (json.loads(each.body) for each in receiver.received)
    assert once == again
    assert receiver.received[0].headers["webhook-id"] == receiver.received[1].headers["webhook-id"]


async def test_a_dispatcher_that_lost_its_lease_stores_nothing(
    database_url: str, tenant: TenantContext, receiver: Receiver, connection: asyncpg.Connection
) -> None:
    await sink_to(tenant, receiver)
    await created(tenant, PAGE + 1)
    async with dispatching(database_url) as slow, dispatching(database_url) as fast:
        (old,), until = await slow.event_sinks.lease()
        assert (await fast.event_sinks.lease())[0] == []
        await connection.execute("UPDATE event_sinks SET leased_until = clock_at() - interval '1 s'")
        assert await send(fast) == 1
        cursor = await connection.fetchval("SELECT cursor FROM event_sinks")
        await slow.event_sinks.send(old, until)
        assert await connection.fetchval("SELECT cursor FROM event_sinks") == cursor
        ids = [event["id"] for event in received(receiver)]
        assert len(ids) == PAGE + 1 + PAGE  # a page of the slow one came again, and no more
        assert list(dict.fromkeys(ids)) == sorted(ids[: PAGE + 1])


async def test_no_batch_is_sent_when_the_lease_may_have_run_out(
    dispatcher: Dispatcher, tenant: TenantContext, receiver: Receiver
) -> None:
    await sink_to(tenant, receiver)
    await created(tenant, 1)
    dispatcher.event_sinks.monotonic = lambda: 0.0
    (sink,), until = await dispatcher.event_sinks.lease()
    dispatcher.event_sinks.monotonic = lambda: 31.0  # counted from before the lease was asked for
    await dispatcher.event_sinks.send(sink, until)
    assert receiver.received == []


async def test_the_lease_of_a_sink_that_was_removed_is_worth_nothing_for_the_next(
    tenant: TenantContext, receiver: Receiver, pool: Pool
) -> None:
    await sink_to(tenant, receiver)
    await created(tenant, 1)
    (old,) = await events.lease_sinks(pool, 60, 1)
    await put_stream(tenant, EventStreamRequest())
    await sink_to(tenant, receiver)
    await created(tenant, 1)
    (new,) = await events.lease_sinks(pool, 60, 1)
    assert await events.advance(pool, old, old.latest, 60) is None
    assert await events.advance(pool, new, new.latest, 60) == new.latest


async def test_a_sink_that_got_all_events_missed_none_however_old_they_are(
    dispatcher: Dispatcher, tenant: TenantContext, receiver: Receiver, connection: asyncpg.Connection
) -> None:
    await sink_to(tenant, receiver)
    await created(tenant, 1)
    await send(dispatcher)
    await connection.execute("DELETE FROM events")
    await connection.execute("UPDATE event_positions SET kept_from = last_position + 1")
    await created(tenant, 1)
    await send(dispatcher)
    assert [event["type"] for event in received(receiver)] == ["evertick.job.created"] * 2


async def test_the_sink_of_the_host_gets_the_events_of_all_tenants(
    dispatcher: Dispatcher, tenant: TenantContext, receiver: Receiver, connection: asyncpg.Connection, pool: Pool
) -> None:
    await connection.execute("INSERT INTO tenants (tenant_id, name, weight) VALUES (2, 'other', 1)")
    await sink_to(tenant, receiver, all_tenants=True)
    other = TenantContext(pool, 2)
    await created(other, 1)
    await created(tenant, 1)
    await send(dispatcher)
    sources = [event["source"] for event in received(receiver)]
    assert sources == ["/evertick/tenants/ten_0000000000002", "/evertick/tenants/ten_0000000000001"]


async def test_a_sink_that_failed_for_too_long_is_told_what_it_missed(
    dispatcher: Dispatcher, tenant: TenantContext, receiver: Receiver, connection: asyncpg.Connection
) -> None:
    await sink_to(tenant, receiver)
    await created(tenant, 2)
    await connection.execute("UPDATE event_positions SET kept_from = last_position")
    await connection.execute("DELETE FROM events WHERE position < (SELECT kept_from FROM event_positions)")
    await created(tenant, 1)
    await send(dispatcher)
    kinds = [event["type"] for event in received(receiver)]
    assert kinds == ["evertick.events.lost", "evertick.job.created"]
    assert await send(dispatcher) == 0


async def test_a_running_dispatcher_sends_by_itself_and_a_removed_sink_gets_nothing(
    database_url: str, tenant: TenantContext, receiver: Receiver, connection: asyncpg.Connection
) -> None:
    dispatcher = Dispatcher(database_url, SEAL, lambda _: Egress(LOOPBACK, "as the test says"))
    await dispatcher.start()
    await sink_to(tenant, receiver)
    await created(tenant, 1)
    await receiver.until_received(1)

    async def is_stored() -> bool:
        is_behind: bool = await connection.fetchval("SELECT cursor < latest FROM event_sinks")
        return not is_behind

    await until(is_stored)
    await dispatcher.stop()
    await put_stream(tenant, EventStreamRequest())
    assert await connection.fetchval("SELECT count(*) FROM event_sinks") == 0
