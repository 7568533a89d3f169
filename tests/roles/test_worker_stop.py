"""A worker that stops: what runs may finish, the rest is handed back, and nothing counts as a try."""

import asyncio
import threading
from datetime import timedelta

import pytest

from engine import PATIENCE_SECONDS, until
from evertick.executor.handlers.run import Run
from hooked_pool import hook_every_pool
from roles.workshop import Workshop, within_patience

NO_GRACE = timedelta(0)


async def test_what_was_not_started_is_put_back_and_what_runs_may_finish(workshop: Workshop) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    async def handle(run: Run) -> None:
        began.set()
        await release.wait()

    job = await workshop.ready(count=3)
    # The threads have nothing to do, but the worker leases for them too.
    worker = workshop.worker({"handle": handle, "other": lambda: None}, concurrency=1, threads=3)
    await worker.start()
    await within_patience(began)

    async def has_leased_all() -> bool:
        return worker.counters.leased == 3

    await until(has_leased_all)
    stopping = asyncio.create_task(worker.stop())

    async def are_free() -> bool:
        return await workshop.free() == ["handle", "handle"]

    await until(are_free)
    release.set()
    await stopping
    assert await workshop.results(job) == ["success"]
    assert (await workshop.leases(), await workshop.retries(job)) == (2, [])
    await workshop.work_off({"handle": lambda: None})
    assert await workshop.results(job) == ["success"] * 3
    assert await workshop.leases() == 0


async def test_what_was_leased_and_could_not_be_read_is_put_back(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed = asyncio.Event()

    async def failing(*_: object) -> None:
        has_failed.set()
        raise ConnectionResetError

    job = await workshop.ready(count=3)
    worker = workshop.worker({"handle": lambda: None})
    with monkeypatch.context() as broken:
        hook_every_pool(broken, "lanes.leased", failing)
        await worker.start()
        await within_patience(has_failed)
        stopping = asyncio.create_task(worker.stop())
    await stopping
    leased = await workshop.connection.fetchval(
        "SELECT count(*) FROM attempts JOIN lanes USING (lane_id) WHERE seq <= head"
    )
    assert leased > 0
    assert (await workshop.results(job), await workshop.free()) == ([], ["handle"] * leased)
    assert worker.counters.executed == 0


async def test_what_outlasts_the_grace_is_cancelled_and_handed_back(workshop: Workshop) -> None:
    began = asyncio.Event()

    async def handle() -> None:
        began.set()
        await asyncio.Event().wait()

    job = await workshop.ready()
    worker = workshop.worker({"handle": handle})
    await worker.start()
    await within_patience(began)
    await worker.stop(NO_GRACE)
    outcome = await workshop.outcome(job)
    assert (outcome.attempt, outcome.result, outcome.is_final) == (1, "deferred", False)
    ((attempt, due_in),) = await workshop.retries(job)
    assert attempt == 1
    assert due_in <= 0
    assert (await workshop.leases(), await workshop.dead_letters(job)) == (0, [])
    assert worker.counters.handed_back == 1


async def test_a_thread_that_does_not_end_does_not_keep_the_worker(workshop: Workshop) -> None:
    loop = asyncio.get_running_loop()
    began, release = asyncio.Event(), threading.Event()

    def handle() -> None:
        loop.call_soon_threadsafe(began.set)
        release.wait(PATIENCE_SECONDS)

    job = await workshop.ready()
    worker = workshop.worker({"handle": handle})
    await worker.start()
    await within_patience(began)
    await worker.stop(NO_GRACE)
    release.set()
    assert await workshop.results(job) == ["deferred"]
    assert [attempt for attempt, _ in await workshop.retries(job)] == [1]


async def test_a_handed_back_attempt_runs_again_under_its_number(workshop: Workshop) -> None:
    began = asyncio.Event()
    attempts: list[int] = []

    async def handle(run: Run) -> None:
        attempts.append(run.attempt)
        if len(attempts) == 1:
            began.set()
            await asyncio.Event().wait()

    job = await workshop.ready()
    worker = workshop.worker({"handle": handle})
    await worker.start()
    await within_patience(began)
    await worker.stop(NO_GRACE)
    await workshop.fire_retry(job)
    await workshop.work_off({"handle": handle})
    assert attempts == [1, 1]
    assert await workshop.results(job) == ["deferred", "success"]


async def test_a_worker_waits_for_a_queue_that_does_not_exist_yet(workshop: Workshop) -> None:
    ran = asyncio.Event()

    async def handle() -> None:
        ran.set()

    async with workshop.started({"handle": handle}):
        job = await workshop.ready()
        await within_patience(ran)
        await workshop.until_ended(job)
    assert await workshop.results(job) == ["success"]
