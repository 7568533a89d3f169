"""A worker whose line to the database is slow, or silent."""

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from engine import AT, MINUTE, PATIENCE_SECONDS, Holder, Planned, add_job, until
from evertick.executor.handlers.registry import Handlers
from evertick.executor.sources.database.source import STOP_SECONDS
from evertick.roles.worker import DatabaseWorker
from faults.proxy import Proxy
from hooked_pool import Run, hook_every_pool
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
    under_way, several = 0, asyncio.Event()

    async def counted(run: Run, _: object) -> Any:
        nonlocal under_way
        under_way += 1
        if under_way > 1:
            several.set()
        try:
            return await run()
        finally:
            under_way -= 1

    async def handle() -> None:
        if not several.is_set():
            await asyncio.sleep(2 * WAY_SECONDS)

    hook_every_pool(monkeypatch, "lanes.lease", counted)
    worker = DatabaseWorker(proxy.url, Handlers({"handle": handle}), concurrency=20)
    await worker.start()
    proxy.delay(WAY_SECONDS)
    fired = 0

    async def is_enough() -> bool:
        """The worker finds out that the line is slow only after a while, and there must be more to lease then."""
        nonlocal fired
        if fired < await connection.fetchval("SELECT count(*) FROM outcomes") + 300:
            tick = job_tick(fired // len(jobs))
            await holder.fire(*(Planned(job, policy="ALLOW", limit=1000, fire_at=tick) for job in jobs))
            fired += len(jobs)
        return several.is_set()

    await until(is_enough)
    proxy.heal()  # the rest need not be slow

    async def are_done() -> bool:
        return bool(await connection.fetchval("SELECT count(*) FROM outcomes") == fired)

    await until(are_done)
    await worker.stop(NO_GRACE)
    assert await connection.fetchval("SELECT count(*) FROM outcomes WHERE result = 'success'") == fired


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
    async with asyncio.timeout(PATIENCE_SECONDS):
        await worker.stop(NO_GRACE)


@pytest.mark.campaign  # what takes the sum of two times, and what the longer one, only a clock tells
async def test_the_listener_and_the_leases_of_a_silent_database_are_given_up_together(proxy: Proxy) -> None:
    worker = DatabaseWorker(proxy.url, Handlers({"handle": lambda: None}))
    await worker.open()
    proxy.freeze()
    before = proxy.connections
    worker.run()

    async def does_the_listener_connect() -> bool:
        return proxy.connections > before

    await until(does_the_listener_connect)
    began = time.monotonic()
    await worker.source.stop_leasing()
    took = time.monotonic() - began
    proxy.heal()
    await worker.stop(NO_GRACE)
    assert STOP_SECONDS <= took < 2 * STOP_SECONDS, "one after the other they take twice as long"


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
