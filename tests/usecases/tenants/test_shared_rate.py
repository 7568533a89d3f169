"""One rate of a tenant, whoever submits: API, App and command line, each as a process of its own would."""

import asyncio
import json
from typing import Any

import asyncpg
import pytest

from api.callers import JOB, Callers, is_problem
from cli.commands import Cli
from engine import stop_clock, until
from evertick import App
from evertick.api.server import ApiServer
from evertick.config.settings import Settings
from evertick.domain.admission import AdmissionRequest, Admitted, Throttled
from evertick.domain.limits import QuotaName
from evertick.store.database import Pool
from evertick.store.tenants import tenants
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import QuotaReached
from evertick.usecases.tenants.admission import TenantAdmission
from evertick.usecases.tenants.quotas import Quotas
from hooked_pool import Run, hooked

BURST = 100


@pytest.fixture
async def frozen(connection: asyncpg.Connection) -> asyncpg.Connection:
    """A database whose clock stands still: no token is added."""
    await stop_clock(connection)
    return connection


async def _limit(connection: asyncpg.Connection, per_second: int, burst: int) -> None:
    await connection.execute(
        "UPDATE tenants SET submits_per_second = $1, submit_burst = $2 WHERE tenant_id = 1", per_second, burst
    )


async def test_processes_share_the_burst_exactly(frozen: asyncpg.Connection, pool: Pool) -> None:
    await _limit(frozen, 1000, BURST)
    (tenant,) = await tenants.all_tenants(pool)
    processes = [Quotas(pool) for _ in range(4)]
    verdicts = await asyncio.gather(
        *(quotas.admit(tenant, AdmissionRequest()) for _ in range(BURST) for quotas in processes)
    )
    admitted = sum(isinstance(verdict, Admitted) for verdict in verdicts)
    refused = [verdict for verdict in verdicts if isinstance(verdict, Throttled)]
    assert {verdict.quota for verdict in refused} == {QuotaName.SUBMIT_RATE}
    # A slice has an eighth of the burst at most; what is left in slices belongs to the processes that drew it.
    assert BURST - 4 * (BURST // 8) <= admitted <= BURST


async def test_a_process_asks_the_database_seldom(frozen: asyncpg.Connection, pool: Pool) -> None:
    await _limit(frozen, 100_000, 100_000)
    (tenant,) = await tenants.all_tenants(pool)
    draws = 0

    async def counted(run: Run, _: object) -> Any:
        nonlocal draws
        draws += 1
        return await run()

    quotas = Quotas(hooked(pool, "rate_buckets.draw", counted))
    for _ in range(2000):
        assert isinstance(await quotas.admit(tenant, AdmissionRequest()), Admitted)
    assert draws < 200


async def test_a_tenant_whose_rate_is_used_up_asks_the_database_seldom(frozen: asyncpg.Connection, pool: Pool) -> None:
    await _limit(frozen, 1, 1)
    (tenant,) = await tenants.all_tenants(pool)
    draws = 0

    async def counted(run: Run, _: object) -> Any:
        nonlocal draws
        draws += 1
        return await run()

    quotas = Quotas(hooked(pool, "rate_buckets.draw", counted))
    verdicts = [await quotas.admit(tenant, AdmissionRequest()) for _ in range(1000)]
    assert sum(isinstance(verdict, Admitted) for verdict in verdicts) == 1
    assert draws < 100
    assert quotas.throttled(tenant) is not None


async def test_a_locked_bucket_is_answered_with_a_short_wait(connection: asyncpg.Connection, pool: Pool) -> None:
    (tenant,) = await tenants.all_tenants(pool)
    assert isinstance(await Quotas(pool).admit(tenant, AdmissionRequest()), Admitted)
    async with connection.transaction():
        await connection.execute("SELECT FROM rate_buckets FOR UPDATE")
        verdict = await Quotas(pool).admit(tenant, AdmissionRequest())
    assert isinstance(verdict, Throttled)
    assert verdict.retry_after_seconds == 1


async def test_api_app_and_command_line_draw_from_one_bucket(
    frozen: asyncpg.Connection, database_url: str, pool: Pool
) -> None:
    await _limit(frozen, 1, 3)
    server = ApiServer(database_url, Settings(port=0))
    await server.start()
    callers = Callers(server.address, pool)
    try:
        editor = await callers.make("editor")
        await editor.create()
        async with App(database_url=database_url) as app:
            await app.submit("anything", delay="3d")
            await Cli(database_url)("jobs", "add", "a", "@daily", "--handler", "h")
            with pytest.raises(QuotaReached, match="submit_rate") as refused:
                await app.submit("anything", delay="3d")
            assert isinstance(refused.value.verdict, Throttled)
        said = await Cli(database_url)("jobs", "add", "b", "@daily", "--handler", "h", code=1)
        assert "the quota submit_rate does not admit more for now: try again in 1 s" in said
        assert is_problem(await editor.post("/jobs", json=JOB), 429, "over-quota")["quota"] == "submit_rate"
    finally:
        await callers.close()
        await server.stop()
    assert await frozen.fetchval("SELECT count(*) FROM jobs") == 3


async def test_app_and_command_line_keep_to_the_quota_of_jobs(
    connection: asyncpg.Connection, database_url: str
) -> None:
    await connection.execute("UPDATE tenants SET jobs_quota = 2")
    cli = Cli(database_url)
    lines = "\n".join(json.dumps({**JOB, "name": name}) for name in "abc")
    said = await cli("jobs", "import", "-", stdin=lines, code=1)
    assert "the quota jobs allows 2" in said
    assert "the quota jobs allows 2" in await cli("jobs", "add", "d", "@daily", "--handler", "h", code=1)
    async with App(database_url=database_url) as app:
        with pytest.raises(QuotaReached, match="jobs allows 2"):
            await app.submit("anything", delay="3d")
    await cli("jobs", "delete", "a")
    async with App(database_url=database_url) as app:
        await app.submit("anything", delay="3d")
    assert await connection.fetchval("SELECT count(*) FROM jobs WHERE status <> 'deleted'") == 2


async def test_runs_of_app_and_command_line_are_limited_as_those_of_the_api(
    connection: asyncpg.Connection, database_url: str
) -> None:
    await Cli(database_url)("jobs", "add", "a", "@daily", "--handler", "h")
    await connection.execute("UPDATE tenants SET running_quota = 0")
    assert "quota running" in await Cli(database_url)("jobs", "trigger", "a", code=1)
    async with App(database_url=database_url) as app:
        with pytest.raises(QuotaReached, match="quota running"):
            await app.submit("anything")


async def test_what_is_drawn_for_something_that_was_undone_can_be_drawn_again(
    frozen: asyncpg.Connection, pool: Pool
) -> None:
    await _limit(frozen, 1, 3)
    admission = TenantAdmission(TenantContext(pool, 1))
    assert await admission.draw_up_to(5) == 3
    assert await admission.draw_up_to(5) == 0
    admission.give_back(2)
    assert await admission.draw_up_to(5) == 2


async def test_an_edit_of_the_limits_applies_to_an_app_that_runs(
    connection: asyncpg.Connection, database_url: str
) -> None:
    await connection.execute("UPDATE tenants SET jobs_quota = 0")
    async with App(database_url=database_url) as app:
        with pytest.raises(QuotaReached):
            await app.submit("anything", delay="3d")
        await Cli(database_url)("tenants", "edit", "default", "--jobs-quota", "5")

        async def is_let_in() -> bool:
            try:
                await app.submit("anything", delay="3d")
            except QuotaReached:
                return False
            return True

        await until(is_let_in)


async def test_an_import_goes_on_at_the_rate(connection: asyncpg.Connection, database_url: str) -> None:
    await _limit(connection, 20, 5)
    lines = "\n".join(json.dumps({**JOB, "name": f"job {number}"}) for number in range(30))
    await Cli(database_url)("jobs", "import", "-", stdin=lines)
    assert await connection.fetchval("SELECT count(*) FROM jobs") == 30
