"""Creating jobs: one at a time and many, and what is refused."""

import asyncio
import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from engine import until
from evertick.contract.job_reading import read_spec
from evertick.domain.errors import InvalidFields
from evertick.domain.ids import partition_of
from evertick.domain.stable_hash import jitter_offset
from evertick.store.database import Pool
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import NameTaken
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.create_many import LineResult, create_many
from evertick.usecases.jobs.edit import edit
from evertick.usecases.jobs.reading import get, get_by_name
from usecases.world import WORKER, World, at, key_of

HOURLY = {"schedule": "@hourly", "target": WORKER}


async def test_a_job_is_created_with_its_version_and_its_first_timer(world: World, tenant: TenantContext) -> None:
    job = await create(tenant, {**HOURLY, "name": "report", "payload": {"n": [1, 2.5, None]}, "labels": {"a": "b"}})
    assert (job.name, job.status, job.spec_version) == ("report", "active", 1)
    assert (job.next_run_at, job.created_at) == (at(60), at(0, 30))
    assert job.misfire_grace_seconds == 3600
    assert await get(tenant, job.job_id) == job
    version = await world.connection.fetchrow("SELECT * FROM job_versions")
    assert version is not None
    assert (version["job_id"], version["effective_at"], version["handler"]) == (key_of(job), at(0, 30), "send")
    assert (version["key_template"], version["timeout_seconds"]) == (None, 300)
    assert json.loads(version["retry"]) == {
        "max_retries": 3,
        "backoff": "exponential",
        "delay_seconds": 10,
        "max_delay_seconds": 3600,
    }
    assert "payload" not in json.loads(version["spec"])
    assert await world.timers_of(job) == [("tick", at(60), True)]
    assert world.woken == [key_of(job)]


async def test_a_created_job_fires(world: World) -> None:
    job = await world.minutely(priority="high", payload={"to": "x"})
    await world.set_clock(at(1))
    assert await world.fire() == 1
    (leased,) = await world.lease()
    assert (leased.job_id, leased.fire_at, leased.name) == (key_of(job), at(1), job.name)
    assert json.loads(leased.payload or "") == {"to": "x"}
    assert leased.lane_id & 3 == 0


async def test_a_job_without_a_name_is_called_by_its_handler_and_its_id(tenant: TenantContext) -> None:
    job = await create(tenant, HOURLY)
    assert job.name == f"send-{job.job_id.removeprefix('job_')}"
    assert await get_by_name(tenant, job.name) == job
    delivered = await create(tenant, HOURLY | {"target": {"type": "http", "url": "https://example.com/"}})
    assert delivered.name == delivered.job_id


async def test_a_specification_is_as_good_as_fields(tenant: TenantContext) -> None:
    job = await create(tenant, read_spec({**HOURLY, "name": "spec"}))
    assert await get_by_name(tenant, "spec") == job


async def test_a_manual_job_has_no_timer(world: World, tenant: TenantContext) -> None:
    job = await create(tenant, {"schedule": "manual", "target": WORKER})
    assert (job.status, job.next_run_at, job.misfire_grace_seconds) == ("active", None, None)
    assert await world.timers_of(job) == []


async def test_jitter_moves_the_due_time_and_not_the_next_run(world: World, tenant: TenantContext) -> None:
    job = await create(tenant, {**HOURLY, "jitter_seconds": 600})
    assert job.next_run_at == at(60)
    due_at = await world.connection.fetchval("SELECT due_at FROM timers")
    assert timedelta(0) < due_at - at(60) < timedelta(minutes=10)


async def test_jobs_of_one_batch_have_each_its_own_jitter(world: World, tenant: TenantContext) -> None:
    await create_many(tenant, [{**HOURLY, "jitter_seconds": 600}] * 3 + [HOURLY])
    rows = await world.connection.fetch("SELECT job_id, fire_at, due_at FROM timers ORDER BY job_id")
    assert {row["fire_at"] for row in rows} == {at(60)}
    offsets = [jitter_offset(row["job_id"], timedelta(minutes=10)) for row in rows[:3]]
    assert len(set(offsets)) == 3
    assert [row["due_at"] - at(60) for row in rows] == [*offsets, timedelta(0)]


async def test_faults_are_all_told_and_nothing_is_written(world: World, tenant: TenantContext) -> None:
    with pytest.raises(InvalidFields) as refused:
        await create(tenant, {"schedule": "never", "target": {"type": "worker"}, "prio": 1})
    assert {fault.pointer for fault in refused.value.faults} == {"/schedule", "/target/handler", "/prio"}
    with pytest.raises(InvalidFields, match="past"):
        await create(tenant, {"schedule": "2020-01-01T00:00:00Z", "target": WORKER})
    assert await world.count("jobs", "job_versions", "timers") == [0, 0, 0]


async def test_a_name_is_unique_among_the_jobs_of_a_tenant_that_exist(world: World, tenant: TenantContext) -> None:
    await world.connection.execute("INSERT INTO tenants (name) VALUES ('other')")
    await create(tenant, {**HOURLY, "name": "one"})
    with pytest.raises(NameTaken, match="'one' is taken"):
        await create(tenant, {**HOURLY, "name": "one"})
    await create(world.tenant(2), {**HOURLY, "name": "one"})
    assert await world.count("jobs", "job_versions", "timers") == [2, 2, 2]


async def test_of_two_who_create_one_name_at_once_one_is_refused(world: World) -> None:
    # Two processes: neither knows the other's rules and queues.
    results = await asyncio.gather(
        *(create(world.tenant(), {**HOURLY, "name": "one"}) for _ in range(8)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["Job", *["NameTaken"] * 7]
    assert await world.count("jobs", "job_versions", "timers", "rules", "queues") == [1, 1, 1, 1, 1]


async def test_jobs_alike_share_a_rule_and_spread_over_the_partitions(world: World) -> None:
    partitions = {partition_of(key_of(await create(world.tenant(), HOURLY))) for _ in range(20)}
    assert len(partitions) == 20
    assert await world.count("rules", "queues", "lanes") == [1, 1, 20]


async def test_ticks_that_the_clocks_jump_over_before_the_first_one_are_a_gap(
    world: World, tenant: TenantContext
) -> None:
    jump = at(0).replace(year=2027, month=3, day=14, hour=7)  # 02:00 in New York
    await world.set_clock(jump - timedelta(hours=10))
    schedule = {"schedule": "30 2 * * *", "timezone": "America/New_York", "dst_gap": "skip"}
    job = await create(tenant, {**schedule, "target": WORKER})
    assert job.next_run_at == jump + timedelta(hours=23, minutes=30)
    assert await world.gaps_of(job) == [(jump, jump, 1, "dst")]
    (verdict,) = await create_many(tenant, [{**schedule, "target": WORKER}])
    assert await world.gaps_of(await get(tenant, str(verdict.job_id))) == [(jump, jump, 1, "dst")]


async def test_a_batch_keeps_the_good_lines_and_says_what_is_wrong_with_the_others(
    world: World, tenant: TenantContext
) -> None:
    await create(tenant, {**HOURLY, "name": "old"})
    world.woken.clear()
    verdicts = await create_many(
        tenant,
        [
            {**HOURLY, "name": "a"},
            {**HOURLY, "name": "b", "prio": 1},
            {**HOURLY, "name": "a"},
            {**HOURLY, "name": "old"},
            {**HOURLY, "name": "b"},
            HOURLY,
            "nonsense",
            {"schedule": "0 0 30 2 *", "target": WORKER},
        ],
    )
    assert [verdict.job_id is not None for verdict in verdicts] == [True, False, False, False, True, True, False, False]
    reasons = [fault.reason for verdict in verdicts for fault in verdict.faults]
    assert reasons[1:3] == ["is taken by line 1 of this batch", "is taken by another job"]
    jobs = [await get(tenant, verdict.job_id) for verdict in verdicts if verdict.job_id]
    assert [job.name for job in jobs] == ["a", "b", f"send-{jobs[2].job_id.removeprefix('job_')}"]
    assert sorted(world.woken) == sorted(map(key_of, jobs))
    assert await world.count("jobs", "job_versions", "timers") == [4, 4, 4]


async def test_a_batch_larger_than_its_parts_is_one_transaction(world: World, tenant: TenantContext) -> None:
    batch = [{**HOURLY, "name": f"job {number}", "schedule": f"{number % 60} * * * *"} for number in range(2100)]
    verdicts = await create_many(tenant, batch)
    assert len({verdict.job_id for verdict in verdicts}) == 2100
    names = {verdict.job_id: fields["name"] for verdict, fields in zip(verdicts, batch, strict=True)}
    for verdict in verdicts[::700]:
        job = await get(tenant, str(verdict.job_id))
        assert job.name == names[verdict.job_id]
    transactions = await world.connection.fetchval("SELECT count(DISTINCT xmin::text) FROM jobs")
    assert transactions == 1


async def test_an_empty_batch_is_fine(world: World, tenant: TenantContext) -> None:
    assert await create_many(tenant, []) == []


class WatchedBatch(list[dict[str, object]]):
    """Notes how many connections of a pool are in use whenever a job is read."""

    def __init__(self, jobs: Iterable[dict[str, object]], pool: Pool) -> None:
        super().__init__(jobs)
        self.pool = pool
        self.in_use: list[int] = []

    def __getitem__(self, index: Any) -> Any:
        self.in_use.append(self.pool.get_size() - self.pool.get_idle_size())
        return super().__getitem__(index)


async def test_schedules_are_read_before_the_transaction_that_adds_their_rules(
    tenant: TenantContext, pool: Pool
) -> None:
    """Ten thousand schedules took longer than a transaction may be idle."""
    batch = WatchedBatch([{"schedule": f"every {n + 1}h", "target": WORKER} for n in range(5)], pool)
    assert all(verdict.job_id for verdict in await create_many(tenant, batch))
    assert batch.in_use == [0] * 5


async def test_a_name_that_races_into_a_batch_costs_that_line_only(world: World, tenant: TenantContext) -> None:
    async with world.connection.transaction():
        await world.connection.execute(
            "INSERT INTO jobs (job_id, tenant_id, created_at, updated_at, spec_version, name, queue)"
            " VALUES (1, 1, clock_at(), clock_at(), 1, 'raced', 'mail')"
        )
        batch = asyncio.create_task(create_many(tenant, [{**HOURLY, "name": "raced"}, {**HOURLY, "name": "fine"}]))
        await until(
            lambda: world.pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid'")
        )
    first, second = await batch
    assert first == LineResult(None, first.faults)
    assert first.faults[0].pointer == "/name"
    assert second.job_id is not None


async def test_ids_of_what_was_undone_are_not_remembered(world: World, tenant: TenantContext) -> None:
    job = await create(tenant, {**HOURLY, "name": "one"})
    await create(tenant, {**HOURLY, "name": "two"})
    with pytest.raises(NameTaken):
        await edit(tenant, job.job_id, {"schedule": "@daily", "name": "two"})
    again = await create(tenant, {"schedule": "@daily", "target": WORKER})
    rules = await world.connection.fetchval(
        "SELECT count(*) FROM job_versions JOIN rules USING (rule_id) WHERE job_id = $1", key_of(again)
    )
    assert rules == 1
