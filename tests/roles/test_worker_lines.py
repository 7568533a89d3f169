"""A worker whose line to the database is slow, or silent."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from engine import AT, MINUTE, Holder, Planned, add_job, until
from evertick.executor.handlers.registry import Handlers
from evertick.roles.worker import DatabaseWorker
from evertick.store import lanes
from faults.proxy import Proxy
from roles.workshop import Workshop, within_patience

NO_GRACE = timedelta(0)
WAY_SECONDS = 0.15


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    proxy = Proxy(database_url)
    yield proxy
    proxy.stop()


async def test_over_a_slow_line_several_leases_are_under_way_at_once(
    connection: asyncpg.Connection, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = Holder(connection)
    await holder.take(*range(256))
    jobs = [await add_job(connection, partition=partition) for partition in range(100)]
    lease, under_way, most = lanes.lease, 0, 0

    async def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await lease(*arguments, **options)
        finally:
            under_way -= 1

    async def handle() -> None:
        await asyncio.sleep(2 * WAY_SECONDS)

    monkeypatch.setattr(lanes, "lease", counted)
    worker = DatabaseWorker(proxy.url, Handlers({"handle": handle}), concurrency=20)
    await worker.start()
    proxy.delay(WAY_SECONDS)
    for tick in range(4):  # not before the line is slow
        await holder.fire(*(Planned(job, policy="ALLOW", limit=1000, fire_at=job_tick(tick)) for job in jobs))

    async def are_done() -> bool:
        return bool(await connection.fetchval("SELECT count(*) = 400 FROM outcomes"))

    for _ in range(6):  # each wait is bounded, and the line is slow
        with contextlib.suppress(TimeoutError):
            await until(are_done)
            break
    proxy.heal()
    await worker.stop(NO_GRACE)
    assert most > 1
    assert await connection.fetchval("SELECT count(*) FROM outcomes WHERE result = 'success'") == 400


def job_tick(number: int) -> Any:
    return AT + number * MINUTE


async def test_a_worker_asked_to_stop_while_the_database_is_silent_ends(
    workshop: Workshop, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evertick.executor.executor.LAST_REQUESTS_SECONDS", 1.0)
    began, release = asyncio.Event(), asyncio.Event()

    async def handle() -> None:
        began.set()
        await release.wait()

    await workshop.ready(count=3)
    worker = DatabaseWorker(proxy.url, Handlers({"handle": handle, "other": lambda: None}), concurrency=1, threads=2)
    await worker.start()
    await within_patience(began)
    proxy.freeze()
    release.set()
    async with asyncio.timeout(60):  # it was minutes
        await worker.stop(NO_GRACE)


async def test_outcomes_of_an_outage_are_recorded_when_it_is_over(workshop: Workshop, proxy: Proxy) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    async def handle() -> None:
        began.set()
        await release.wait()

    job = await workshop.ready()
    worker = DatabaseWorker(proxy.url, Handlers({"handle": handle}), lease_time=timedelta(seconds=1))
    await worker.start()
    await within_patience(began)
    proxy.refuse()
    proxy.cut()
    lease = worker.held_leases.snapshot()[0]

    async def has_run_out() -> bool:
        return lease.expires < time.monotonic()

    await until(has_run_out)
    release.set()

    async def is_recorded() -> bool:
        return worker.counters.succeeded == 1

    await until(is_recorded)
    proxy.heal()
    await workshop.until_ended(job)
    await worker.stop(NO_GRACE)
    assert await workshop.results(job) == ["success"]
    assert (worker.counters.lost, worker.counters.stale, await workshop.leases()) == (0, 0, 0)
