"""Schedulers on servers that were started again, failed over or were restored. The signals are written into the row:
tests/faults/test_restore.py has real copies.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

import postgres
from engine import LEASE, add_job, scheduler
from evertick.domain.cluster_identity import RECENT, Suspicion
from evertick.roles.scheduler import Scheduler
from evertick.store.database import connect
from evertick.store.engine import identity, lanes, members
from evertick.store.engine.lanes import LeasedRange, PutBack
from evertick.usecases import cluster
from evertick.usecases.context import TenantContext

LONG = RECENT + timedelta(minutes=1)
RESTART = "UPDATE cluster_identity SET server_started_at = server_started_at - interval '1 hour'"
PROMOTE = "UPDATE cluster_identity SET timeline = timeline + 1"
TRACES = (
    "UPDATE nodes SET seen_at = seen_at - $1::interval",
    "UPDATE partitions SET taken_at = taken_at - $1::interval, released_at = released_at - $1::interval",
)


async def age_traces(connection: asyncpg.Connection, age: timedelta) -> None:
    """As if schedulers were last at work so long ago."""
    for statement in TRACES:
        await connection.execute(statement, age)


async def fail_over(connection: asyncpg.Connection, age: timedelta = timedelta(0)) -> None:
    await connection.execute(RESTART)
    await connection.execute(PROMOTE)
    await age_traces(connection, age)


async def beat(node: Scheduler) -> int:
    """A heartbeat, and what follows; how many partitions the node then holds."""
    await node.join()
    return len(node.state.ownership.epochs)


async def fire(connection: asyncpg.Connection, node: Scheduler) -> int:
    """Fire what is due, and count the attempts of all time."""
    await node.fire_due()
    attempts: int = await connection.fetchval("SELECT count(*) FROM attempts")
    return attempts


async def suspicion(connection: asyncpg.Connection) -> Suspicion | None:
    return await identity.suspicion(connection)


async def test_the_first_scheduler_confirms_a_new_database(connection: asyncpg.Connection, node: Scheduler) -> None:
    known = await identity.facts(connection)
    assert known.is_confirmed
    assert known.confirmed == known.here


async def test_after_a_restart_nothing_is_leased_until_a_scheduler_has_looked(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    job = await add_job(connection)
    assert await fire(connection, node) == 1
    await connection.execute(RESTART)

    async def lease() -> list[LeasedRange]:
        given = (connection, [job.queue_id], "worker")
        return await lanes.lease(*given, lanes=4, most_per_lane=4, rotation=0, lease_time=LEASE, tenant_id=None)

    async def lease_free() -> list[LeasedRange]:
        given = (connection, [job.queue_id], None, "worker")
        return await lanes.lease_free(*given, most=4, lease_time=LEASE, tenant_id=None)

    async def lease_by_queue() -> list[LeasedRange]:
        given = (connection, {job.queue_id: 4}, "worker")
        return await lanes.lease_by_queue(*given, lanes=4, most=4, most_per_lane=4, rotation=0, lease_time=LEASE)

    assert await lease() == await lease_by_queue() == []
    assert await beat(node) == 256
    (leased,) = await lease()
    await lanes.put_back(connection, "worker", [PutBack(leased.lane_id, leased.first_seq, "handle")])
    await connection.execute(RESTART)
    assert await lease_free() == []
    assert await beat(node) == 256
    assert len(await lease_free()) == 1


async def test_a_fail_over_goes_on_by_itself_with_schedulers_that_start_afresh(
    connection: asyncpg.Connection, database_url: str, node: Scheduler
) -> None:
    await fail_over(connection, timedelta(minutes=10))
    async with scheduler(database_url, "fresh") as fresh:
        assert await beat(fresh) == 256
    assert (await identity.facts(connection)).is_confirmed


async def test_a_restored_server_waits_for_an_operator(
    connection: asyncpg.Connection, database_url: str, node: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    await add_job(connection)
    await fail_over(connection, LONG)
    async with scheduler(database_url, "fresh") as fresh:
        with caplog.at_level(logging.ERROR, "evertick.scheduler"):
            assert await beat(fresh) == 0
            assert await beat(fresh) == 0  # its own heartbeats make nothing recent
        assert ["evertick cluster confirm" in record.message for record in caplog.records] == [True]
        assert await suspicion(connection) is Suspicion.RECOVERED
        assert await fire(connection, fresh) == 0
        await cluster.confirm(TenantContext(connection, 1), None)
        assert await suspicion(connection) is None
        assert await beat(fresh) == 256
        assert await fire(connection, fresh) == 1


async def test_a_scheduler_that_waited_through_the_outage_ends_the_suspicion_of_a_fresh_one(
    connection: asyncpg.Connection, database_url: str, node: Scheduler
) -> None:
    await fail_over(connection, LONG)
    async with scheduler(database_url, "fresh") as fresh:
        assert await beat(fresh) == 0
        remembered = await connection.fetchval("SELECT max(seen_at) FROM nodes")
        node.membership.confirming.remembered_at = remembered
        assert await beat(node) == 256
        assert await suspicion(connection) is None


async def test_a_process_that_is_led_to_an_older_state_stops(connection: asyncpg.Connection, node: Scheduler) -> None:
    """As by a name that now leads to a restored server."""
    await add_job(connection)
    await connection.execute(RESTART)
    await age_traces(connection, LONG)
    assert await fire(connection, node) == 0  # what it holds by memory does not fire, before it knows
    assert await beat(node) == 0
    assert await suspicion(connection) is Suspicion.BEHIND
    await connection.execute(RESTART)
    assert await beat(node) == 0


async def test_what_a_process_gives_up_in_an_older_state_is_no_trace_of_work(
    connection: asyncpg.Connection, node: Scheduler
) -> None:
    await connection.execute(RESTART)
    await age_traces(connection, LONG)
    await members.release(connection, node.state.node, list(node.state.ownership.epochs)[:9])  # before it knows
    assert await beat(node) == 0
    assert await suspicion(connection) is Suspicion.BEHIND


async def test_schedulers_that_start_at_once_come_to_one_decision(
    connection: asyncpg.Connection, database_url: str, node: Scheduler
) -> None:
    recent = "SELECT count(*) FROM nodes WHERE seen_at > clock_at() - $1::interval"
    for age, alive in ((timedelta(0), 5), (LONG, 0)):  # with the one that was there before
        await fail_over(connection, age)
        async with contenders(database_url, 4) as fresh:
            await asyncio.gather(*(each.membership.step() for each in fresh))
            await asyncio.gather(*(beat(each) for each in fresh))
            assert (await identity.facts(connection)).is_confirmed == bool(alive)
            assert await connection.fetchval(recent, RECENT) == alive


async def test_a_copy_beside_the_original_waits_for_an_operator(
    connection: asyncpg.Connection, database_url: str, node: Scheduler, postgres_server: postgres.Server
) -> None:
    name = await connection.fetchval("SELECT current_database()")
    await node.membership.leave()
    await node.close()
    await connection.close()
    admin = await connect(postgres_server.embedded.url)
    try:
        await admin.execute(f"CREATE DATABASE {name}_copy TEMPLATE {name}")
        copy_url = postgres_server.url(f"{name}_copy")
        async with scheduler(copy_url, "fresh") as fresh, scheduler(database_url, "original") as original:
            assert await beat(fresh) == 0
            assert await beat(original) == 256
            copy = await connect(copy_url)
            assert await suspicion(copy) is Suspicion.COPIED
            await cluster.confirm(TenantContext(copy, 1), None)
            assert await beat(fresh) == 256
            await copy.close()
    finally:
        await admin.execute(f"DROP DATABASE {name}_copy WITH (FORCE)")
        await admin.close()


@asynccontextmanager
async def contenders(url: str, count: int) -> AsyncIterator[list[Scheduler]]:
    opened = [Scheduler(url, f"fresh {number}") for number in range(count)]
    await asyncio.gather(*(each.open() for each in opened))
    try:
        yield opened
    finally:
        await asyncio.gather(*(each.close() for each in opened))
