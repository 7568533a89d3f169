"""Rate limits of queues: over all workers and dispatchers no more starts than the rate allows."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from engine import MINUTE, Job, lease, until
from evertick.domain.rate_bucket import Rate
from evertick.runtime.queue_rates import QueueRates
from evertick.runtime.rate_slices import RateSlices
from evertick.store.database import Pool
from evertick.store.engine.rate_buckets import DatabaseBuckets
from evertick.usecases.context import TenantContext
from evertick.usecases.runs import pull_workers
from evertick.usecases.tenants import queues
from hooked_pool import Run, hooked
from redis_server import redis_server
from roles.dispatching import PostOffice, Receiver
from roles.workshop import Workshop

HARDLY = 0.001
"""Per second: no test lasts until the next token."""


async def handle() -> None:
    """Nothing to do."""


@pytest.fixture
def workshop(connection: asyncpg.Connection, database_url: str) -> Workshop:
    return Workshop(connection, database_url)


@pytest.fixture(params=["database", "redis"])
async def redis_url(request: pytest.FixtureRequest) -> AsyncIterator[str | None]:
    async with AsyncExitStack() as stack:
        yield None if request.param == "database" else (await stack.enter_async_context(redis_server())).url


async def limit(workshop: Workshop, rate_limit: float | None, burst: int | None = None, queue: str = "default") -> None:
    tenant = TenantContext(workshop.connection, 1)
    await queues.edit_queue(tenant, queue, {"rate_limit": rate_limit, "rate_burst": burst})


async def started(workshop: Workshop) -> int:
    count: int = await workshop.connection.fetchval("SELECT count(*) FROM outcomes")
    return count


async def test_two_workers_start_the_burst_together_and_no_more(workshop: Workshop, redis_url: str | None) -> None:
    job = await workshop.ready(count=60)
    await limit(workshop, HARDLY, 20)
    async with (
        workshop.started({"handle": handle}, redis_url=redis_url) as first,
        workshop.started({"handle": handle}, redis_url=redis_url) as second,
    ):
        await workshop.until_ended(job, 20)
        for worker in (first, second):
            assert await worker.source.lease(100) == 0
        assert await started(workshop) == 20
        await limit(workshop, None)
        await workshop.until_ended(job, 60)
    kept = await workshop.connection.fetchval("SELECT count(*) FROM rate_buckets")
    assert kept == (redis_url is None)


async def test_in_the_long_run_workers_start_what_the_rate_allows(workshop: Workshop) -> None:
    job = await workshop.ready(count=300)
    await limit(workshop, 40, 10)
    begun_us: int = await workshop.connection.fetchval("SELECT microseconds(clock_at())")
    async with workshop.started({"handle": handle}), workshop.started({"handle": handle}):
        await workshop.until_ended(job, 100)
        count = await started(workshop)
        seconds = (await workshop.connection.fetchval("SELECT microseconds(clock_at())") - begun_us) / 1_000_000
    assert count <= 10 + 40 * seconds


async def test_a_queue_without_a_rate_does_not_wait_for_one_that_has_none_left(workshop: Workshop) -> None:
    limited = await workshop.ready(count=30)
    await limit(workshop, HARDLY, 2)
    free = await workshop.ready(count=30)
    await workshop.connection.execute("INSERT INTO queues (tenant_id, name) VALUES (1, 'free')")
    await move(workshop, free, "free")
    async with workshop.started({"handle": handle}, queues=("default", "free")):
        await workshop.until_ended(free, 30)
    assert len(await workshop.outcomes(limited)) == 2


async def move(workshop: Workshop, job: Job, queue: str) -> None:
    """Let the attempts of a job stand in the lane of another queue."""
    lane = "lane_id_of((SELECT queue_id FROM queues WHERE name = $2), lane_partition(lane_id), 1)"
    first, last = await workshop.connection.fetchrow(  # type: ignore[misc]
        "SELECT min(seq), max(seq) FROM attempts WHERE job_id = $1", job.job_id
    )
    await workshop.connection.execute(
        "INSERT INTO lanes (lane_id, queue_id, partition, priority)"
        f" SELECT {lane}, (SELECT queue_id FROM queues WHERE name = $2), partition, 1 FROM lanes"
        " WHERE lane_id = (SELECT lane_id FROM attempts WHERE job_id = $1 LIMIT 1)",
        *(job.job_id, queue),
    )
    await workshop.connection.execute(
        f"UPDATE ready_batches SET lane_id = {lane} WHERE last_seq BETWEEN $1 AND $3", first, queue, last
    )
    await workshop.connection.execute(f"UPDATE attempts SET lane_id = {lane} WHERE job_id = $1", job.job_id, queue)


async def test_what_is_put_back_without_a_start_gives_its_token_back(workshop: Workshop) -> None:
    unknown = await workshop.ready("unknown", count=5)
    await limit(workshop, HARDLY, 5)
    async with workshop.opened({"handle": handle}) as worker:
        await worker.work_off()
        assert await started(workshop) == 0
        known = await workshop.ready("handle", count=5)
        await worker.work_off()
    assert await workshop.results(known) == ["success"] * 5
    assert await workshop.results(unknown) == []


async def test_tokens_that_a_cap_leaves_unused_are_there_for_the_next_lease(workshop: Workshop) -> None:
    job = await workshop.ready(count=9)
    await limit(workshop, HARDLY, 4)
    await workshop.connection.execute("UPDATE queues SET max_running = 1")
    async with workshop.opened({"handle": handle}) as worker:
        await worker.work_off()
    assert await workshop.results(job) == ["success"] * 4, "one after the other"


async def test_a_full_cap_uses_up_no_tokens(workshop: Workshop) -> None:
    job = await workshop.ready(count=3)
    await limit(workshop, HARDLY, 2)
    await workshop.connection.execute("UPDATE queues SET max_running = 1")
    await lease(workshop.connection, job, worker="other", most=1)
    async with workshop.opened({"handle": handle}) as worker:
        for _ in range(3):
            await worker.work_off()
    assert await workshop.connection.fetchval("SELECT count(*) FROM rate_buckets") == 0


async def test_a_lease_of_a_pull_worker_that_fails_gives_its_tokens_back(workshop: Workshop, pool: Pool) -> None:
    job = await workshop.ready(count=3)

    async def fail(_: Run, __: Mapping[str, Any]) -> None:
        raise ConnectionError

    rates, rate = QueueRates(RateSlices(DatabaseBuckets(pool))), Rate(HARDLY, 2)
    failing = TenantContext(hooked(pool, "lanes.lease", fail), 1)
    with pytest.raises(ConnectionError):
        await pull_workers.lease(failing, job.queue_id, "w", 3, MINUTE, rate=rate, rates=rates)
    working = TenantContext(pool, 1)
    leased = await pull_workers.lease(working, job.queue_id, "w", 3, MINUTE, rate=rate, rates=rates)
    assert len(leased.attempts) == 2


async def test_a_queue_without_work_uses_up_no_tokens(workshop: Workshop) -> None:
    await workshop.ready()
    await limit(workshop, HARDLY, 3)
    async with workshop.opened({"handle": handle}) as worker:
        for _ in range(5):
            await worker.work_off()
    assert await workshop.connection.fetchval("SELECT units FROM rate_buckets") == 2_000_000


async def test_a_bucket_that_cannot_be_asked_stops_its_queue_alone(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    job = await workshop.ready(count=2)
    await limit(workshop, 10)
    await workshop.connection.execute("ALTER TABLE rate_buckets RENAME TO rate_buckets_away")
    async with workshop.started({"handle": handle}):

        async def is_told() -> bool:
            return "nothing is leased" in caplog.text

        await until(is_told)
        assert await started(workshop) == 0
        await workshop.connection.execute("ALTER TABLE rate_buckets_away RENAME TO rate_buckets")
        await workshop.until_ended(job, 2)


async def test_dispatchers_keep_to_the_rate_of_a_tenants_queue_and_other_tenants_do_not_wait(
    office: PostOffice, receiver: Receiver
) -> None:
    other = await office.add_tenant("other")
    limited = await office.posted(receiver.url, count=40)
    free = await office.posted(receiver.url, count=40, tenant_id=other)
    await office.connection.execute("UPDATE queues SET rate_limit = 0.001, rate_burst = 7 WHERE tenant_id = 1")
    dispatchers = [office.dispatcher() for _ in range(2)]
    for dispatcher in dispatchers:
        await dispatcher.start()
    await office.until_ended(free, 40)
    await office.until_ended(limited, 7)
    await asyncio.gather(*(dispatcher.stop() for dispatcher in dispatchers))
    assert len(await office.outcomes(limited)) == 7
