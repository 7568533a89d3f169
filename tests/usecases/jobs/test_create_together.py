"""Jobs of several requests in one transaction: every request has its own verdict, whatever becomes of the others."""

import asyncio
from collections.abc import Iterable

import asyncpg
import pytest

from engine import until
from evertick.contract.job import Job
from evertick.contract.job_reading import read_spec
from evertick.domain.errors import InvalidFields
from evertick.store.database import Pool, is_transient
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import NameTaken
from evertick.usecases.idempotency import Answer, InFlight, KeyedRequest, OtherRequest
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.create_together import NewJobRequest, create_together
from evertick.usecases.jobs.reading import get, list_jobs
from usecases.world import WORKER, World, key_of


def wants(name: str, schedule: str = "@hourly", key: str | None = None, digest: bytes = b"1") -> NewJobRequest:
    return NewJobRequest(
        read_spec({"name": name, "schedule": schedule, "target": WORKER}),
        actor="key_1",
        action="create_job",
        request_id=f"request for {name}",
        keyed=None if key is None else KeyedRequest(key, digest),
        answer=lambda job: Answer(201, {"Location": job.job_id}, job.name.encode()),
    )


async def names(tenant: TenantContext) -> list[str]:
    return [job.name for job in (await list_jobs(tenant)).items]


async def audited(connection: asyncpg.Connection) -> list[tuple[str, str]]:
    rows = await connection.fetch("SELECT subject, request_id FROM audit_log ORDER BY entry_id")
    return [(row["subject"], row["request_id"]) for row in rows]


def kinds(results: Iterable[object]) -> list[type]:
    return [type(result) for result in results]


async def test_all_are_created_and_seen_as_those_that_came_alone(world: World, tenant: TenantContext) -> None:
    first, second = await create_together(tenant, [wants("a"), wants("b", "0 9 * * 1")])
    assert isinstance(first, Job)
    assert isinstance(second, Job)
    assert [first, second] == [await get(tenant, first.job_id), await get(tenant, second.job_id)]
    assert sorted(world.woken) == sorted([key_of(first), key_of(second)])
    assert await audited(world.connection) == [(first.job_id, "request for a"), (second.job_id, "request for b")]


async def test_each_has_its_own_verdict(world: World, tenant: TenantContext) -> None:
    await create(tenant, {"name": "old", "schedule": "@hourly", "target": WORKER})
    lot = [wants("a"), wants("b", "0 0 30 2 *"), wants("old"), wants("c"), wants("c", "@daily")]
    results = await create_together(tenant, lot)
    assert kinds(results) == [Job, InvalidFields, NameTaken, Job, NameTaken]
    assert await names(tenant) == ["old", "a", "c"]
    assert [request for _, request in await audited(world.connection)] == ["request for a", "request for c"]


async def test_a_request_that_comes_again_gets_its_first_answer_and_another_one_is_refused(
    world: World, tenant: TenantContext
) -> None:
    (job,) = await create_together(tenant, [wants("a", key="k")])
    assert isinstance(job, Job)
    lot = [wants("a", key="k"), wants("b", key="l"), wants("c")]
    again, new, keyless = await create_together(tenant, lot)
    assert again == Answer(201, {"Location": job.job_id}, b"a")
    assert kinds([new, keyless]) == [Job, Job]
    assert kinds(await create_together(tenant, [wants("d", key="l", digest=b"2")])) == [OtherRequest]
    assert await names(tenant) == ["a", "b", "c"]
    assert len(await audited(world.connection)) == 3


async def test_of_two_with_one_key_in_a_lot_the_second_is_told_that_the_first_is_in_flight(
    tenant: TenantContext,
) -> None:
    assert kinds(await create_together(tenant, [wants("a", key="k"), wants("a", key="k")])) == [Job, InFlight]
    assert await names(tenant) == ["a"]


async def test_a_key_that_another_transaction_holds_is_in_flight_and_the_others_pass(
    world: World, tenant: TenantContext
) -> None:
    async with world.connection.transaction():
        await world.connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('k', 1))")
        assert kinds(await create_together(tenant, [wants("a", key="k"), wants("b", key="l")])) == [InFlight, Job]
    assert kinds(await create_together(tenant, [wants("a", key="k")])) == [Job]


async def test_a_refused_request_may_be_mended_and_sent_with_the_same_key(tenant: TenantContext) -> None:
    refused, _ = await create_together(tenant, [wants("a", "0 0 30 2 *", key="k"), wants("b")])
    assert isinstance(refused, InvalidFields)
    assert kinds(await create_together(tenant, [wants("a", key="k", digest=b"2")])) == [Job]


async def test_what_the_database_refuses_fails_alone(world: World, tenant: TenantContext) -> None:
    await world.connection.execute("ALTER TABLE jobs ADD CHECK (name <> 'poison')")
    lot = [wants("a", key="k"), wants("poison", key="l"), wants("b")]
    results = await create_together(tenant, lot)
    assert kinds(results) == [Job, asyncpg.CheckViolationError, Job]
    assert await names(tenant) == ["a", "b"]
    assert kinds(await create_together(tenant, [wants("a", key="k")])) == [Answer]
    with pytest.raises(asyncpg.CheckViolationError):
        await create_together(tenant, [wants("poison")])


async def test_a_connection_that_is_lost_leaves_nothing_and_all_are_told(
    world: World, tenant: TenantContext, pool: Pool
) -> None:
    await create_together(tenant, [wants("first")])
    async with world.connection.transaction():
        await world.connection.execute("LOCK TABLE audit_log IN EXCLUSIVE MODE")
        creating = asyncio.create_task(create_together(tenant, [wants("a", key="k"), wants("b")]))
        blocked = "SELECT pid FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        await until(lambda: world.connection.fetchval(blocked))
        await world.connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({blocked}) AS waiting")
        with pytest.raises(Exception) as lost:  # noqa: PT011 - the driver has several for this
            await creating
    assert is_transient(lost.value)
    assert await names(tenant) == ["first"]
    assert len(world.woken) == 1
    assert kinds(await create_together(tenant, [wants("a", key="k"), wants("b")])) == [Job, Job]
