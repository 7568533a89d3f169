"""An overloaded system refuses new work, low priority first, of the tenants that have the most waiting."""

import time
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from api.callers import JOB, Caller, Callers, is_problem
from engine import AT, PATIENCE_SECONDS, add_job
from evertick.api.server import ApiServer
from evertick.config.settings import Settings
from evertick.domain.limits import QuotaName
from evertick.store.database import Pool
from evertick.store.tenants import tenants
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import QuotaReached
from evertick.usecases.jobs import costs
from evertick.usecases.tenants import quotas
from evertick.usecases.tenants.admission import TenantAdmission
from hooked_pool import hooked

MAX_READY = 100
PRIORITIES = ("low", "normal", "high")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request looks at the load anew."""
    monkeypatch.setattr(quotas, "ACTIVITY_SECONDS", 0.0)
    monkeypatch.setattr(quotas, "SHARE_OF_LOOKING", 0)
    monkeypatch.setattr(quotas, "LOOK_WAIT_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
async def server(database_url: str, looks: None) -> AsyncIterator[ApiServer]:
    server = ApiServer(database_url, Settings(port=0, max_ready=MAX_READY), connections=4)
    await server.start()
    yield server
    await server.stop()


async def fill(connection: asyncpg.Connection, attempts: int, tenant_id: int = 1, queue: str = "billing") -> None:
    """So many attempts of a tenant wait."""
    queue_id = await connection.fetchval(
        "INSERT INTO queues (tenant_id, name) VALUES ($1, $2)"
        " ON CONFLICT (tenant_id, name) DO UPDATE SET name = excluded.name RETURNING queue_id",
        *(tenant_id, queue),
    )
    await connection.execute("DELETE FROM ready_batches WHERE lane_queue(lane_id) = $1", queue_id)
    await connection.execute(
        "INSERT INTO ready_batches SELECT lane_id_of($1, n % 256, 1), n, n, clock_at(), 1, false"
        " FROM generate_series(1, $2) AS n",
        *(queue_id, attempts),
    )


async def admitted(caller: Caller) -> list[str]:
    """The priorities of jobs that may be created."""
    return [each for each in PRIORITIES if (await caller.post("/jobs", json={**JOB, "priority": each})).is_success]


async def test_the_more_waits_the_fewer_priorities_are_admitted(admin: Caller, connection: asyncpg.Connection) -> None:
    for ready, expected in (
        (0, PRIORITIES),
        (49, PRIORITIES),
        (50, PRIORITIES[1:]),
        (80, PRIORITIES[2:]),
        (99, PRIORITIES[2:]),
        (100, ()),
        (90, ()),  # until it is clearly less
        (89, PRIORITIES[2:]),
        (72, PRIORITIES[2:]),
        (71, PRIORITIES[1:]),
        (45, PRIORITIES[1:]),
        (44, PRIORITIES),
    ):
        await fill(connection, ready)
        assert await admitted(admin) == list(expected), ready


async def test_a_refused_submission_is_told_why_and_when_to_try_again(
    admin: Caller, connection: asyncpg.Connection
) -> None:
    job = await admin.create()
    await fill(connection, MAX_READY)
    for refused in (
        await admin.post("/jobs", json=JOB),
        await admin.put("/jobs/by-name/new", json=JOB),
        await admin.post(f"/jobs/{job['job_id']}/trigger"),
        await admin.post("/jobs:batch", json=[JOB]),
        await admin.post("/dead-letters:replay", json={}),
    ):
        assert is_problem(refused, 429, "over-quota")["quota"] == "overload"
        assert int(refused.headers["retry-after"]) > 0
    assert (await admin.put(f"/jobs/by-name/{job['name']}", json=JOB)).status_code == 200  # not new
    assert (await admin.post(f"/jobs/{job['job_id']}/pause", json={})).status_code == 200
    assert (await admin.get(str(admin.base_url.copy_with(path="/readyz")))).status_code == 200


@pytest.mark.parametrize("attempts", [50, 80])
async def test_each_line_of_a_batch_is_admitted_by_its_priority(
    admin: Caller, connection: asyncpg.Connection, attempts: int
) -> None:
    await fill(connection, attempts)
    batch = [{**JOB, "priority": each} for each in ("high", "low", "normal", "low")]
    answer = await admin.post("/jobs:batch", json=batch)
    normal = (201, None) if attempts == 50 else (429, "overload")
    assert [(each["status"], each.get("quota")) for each in answer.json()] == [
        *((201, None), (429, "overload"), normal, (429, "overload"))
    ]
    assert int(answer.headers["retry-after"]) > 0


async def test_a_tenant_with_less_than_its_part_of_what_waits_is_not_refused(
    admin: Caller, callers: Callers, connection: asyncpg.Connection
) -> None:
    tenant_id = await callers.tenant()
    other = await callers.make("editor", tenant_id)
    await fill(connection, MAX_READY)
    assert await admitted(admin) == []
    assert await admitted(other) == list(PRIORITIES)
    await fill(connection, 60)
    await fill(connection, 60, tenant_id)
    assert await admitted(admin) == await admitted(other) == []
    await connection.execute("UPDATE tenants SET weight = 3 WHERE tenant_id = $1", tenant_id)
    assert await admitted(other) == list(PRIORITIES)


@pytest.mark.usefixtures("looks")
async def test_apps_and_commands_are_refused_as_well(pool: Pool, connection: asyncpg.Connection) -> None:
    await fill(connection, 50)
    admission = TenantAdmission(TenantContext(pool, 1), max_ready=MAX_READY)
    with pytest.raises(QuotaReached) as refused:
        async with admission.of(costs.of_creation({**JOB, "priority": "low"})):
            pass
    assert refused.value.quota is QuotaName.OVERLOAD
    async with admission.of(costs.of_creation(JOB)):
        pass


async def test_a_batch_that_is_refused_gives_back_no_more_than_it_drew(
    admin: Caller, connection: asyncpg.Connection
) -> None:
    await connection.execute("UPDATE tenants SET ready_quota = 0, submits_per_second = 1, submit_burst = 40")
    await fill(connection, 60)
    began = time.monotonic()
    created = await create(admin, 20)
    refused = [{**JOB, "priority": "low"}] * 10 + [{**JOB, "schedule": "now"}]
    for _ in range(5):
        assert (await admin.post("/jobs:batch", json=refused)).status_code == 429
    created += await create(admin, 40)
    assert created <= 40 + 1 + (time.monotonic() - began)  # one each second


async def create(caller: Caller, jobs: int) -> int:
    """How many of a batch are created."""
    answer = await caller.post("/jobs:batch", json=[{**JOB, "priority": "high"}] * jobs)
    return sum(each["status"] == 201 for each in answer.json())


async def test_a_look_at_the_load_that_fails_refuses_nobody(pool: Pool, connection: asyncpg.Connection) -> None:
    async def fail(*_: object) -> object:
        raise TimeoutError

    assert await quotas.Quotas(hooked(pool, "ready.load", fail)).overload(1) == frozenset()


async def test_due_timers_of_a_tenant_are_counted_behind_any_number_of_other_tenants(
    pool: Pool, connection: asyncpg.Connection
) -> None:
    await connection.execute("INSERT INTO tenants (tenant_id, name, weight) VALUES (2, 'b', 1) ON CONFLICT DO NOTHING")
    for number in range(8):
        await add_job(connection, "now", tenant_id=2, fire_at=AT - timedelta(hours=number))
    for queue in ("one", "other"):
        for priority in range(3):
            await add_job(connection, "now", queue=queue, priority=priority)
    await add_job(connection, "now", queue="one", fire_at=AT + timedelta(days=36_500))
    assert await tenants.count_due(pool, 1, 4) == 6
    assert await tenants.count_due(pool, 2, 4) == 4  # no more than so many of a lane
