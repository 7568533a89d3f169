"""What an executor promises, by whichever source its attempts come."""

import asyncio
import threading
from datetime import timedelta

from engine import PATIENCE_SECONDS, until
from evertick.executor.handlers.run import Run
from executor.conftest import LEASE_SECONDS, Site
from sdk.served import submitted, worker_target


async def within_patience(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await event.wait()


async def test_an_attempt_is_leased_run_and_recorded(site: Site) -> None:
    async def greet(run: Run, who: str) -> str:
        return f"hello {who}"

    async with site.running({"greet": greet}) as executor:
        run_id = await submitted(site.client, "greet", {"who": "world"})
        detail = await site.house.until_run(site.client, run_id, "success")
    assert detail.attempts[0].excerpt == '"hello world"'
    assert (executor.counters.leased, executor.counters.succeeded, await site.leases()) == (1, 1, 0)


async def test_a_failure_is_retried_by_the_jobs_policy(site: Site) -> None:
    def handle(run: Run) -> None:
        if run.attempt == 1:
            raise ValueError("not yet")

    async with site.running({"handle": handle}):
        run_id = await submitted(site.client, "handle", retry_delay_seconds=0.05)
        await site.house.until_run(site.client, run_id, "success")
    assert await site.results(run_id) == [(1, "failed"), (2, "success")]


async def test_what_has_no_handler_here_goes_to_an_executor_that_has_it(site: Site) -> None:
    async def handle(run: Run) -> None: ...

    async with site.running({"other": handle}) as stranger:
        run_id = await submitted(site.client, "handle", max_retries=0)
        async with site.running({"handle": handle}):
            await site.house.until_run(site.client, run_id, "success")
    assert (await site.results(run_id))[-1] == (1, "success")
    assert stranger.counters.executed == 0


async def test_an_outcome_that_comes_after_its_attempt_was_ended_by_others_counts_for_nothing(site: Site) -> None:
    began, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def handle(run: Run) -> None:
        loop.call_soon_threadsafe(began.set)
        release.wait(PATIENCE_SECONDS)

    async with site.running({"handle": handle}) as executor:
        run_id = await submitted(site.client, "handle")
        await within_patience(began)
        await site.client.runs.cancel(run_id)
        release.set()

        async def is_known() -> bool:
            return executor.counters.stale + executor.counters.lost + executor.written_off > 0

        await until(is_known)
    assert await site.results(run_id) == [(1, "cancelled")]


async def test_a_handler_that_blocks_the_loop_for_longer_than_its_lease_keeps_it(site: Site) -> None:
    over = threading.Event()

    async def blocks(run: Run) -> None:
        threading.Event().wait(1.25 * LEASE_SECONDS)

    executor = site.executor({"handle": blocks})

    async def work() -> None:
        await executor.start()
        await asyncio.to_thread(over.wait, PATIENCE_SECONDS)
        await executor.stop()

    # On a loop of its own: the server is on this one.
    working = asyncio.create_task(asyncio.to_thread(asyncio.run, work()))
    run_id = await submitted(site.client, "handle")
    await site.house.until_run(site.client, run_id, "success")
    over.set()
    await working
    assert await site.results(run_id) == [(1, "success")]
    assert executor.counters.lost == 0


async def test_a_cancelled_run_stops_its_handler(site: Site) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    async def handle(run: Run) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with site.running({"handle": handle}):
        run_id = await submitted(site.client, "handle")
        await within_patience(began)
        await site.client.runs.cancel(run_id)
        await within_patience(stopped)
    assert await site.results(run_id) == [(1, "cancelled")]


async def test_what_a_stopping_executor_does_not_finish_runs_elsewhere_under_the_same_number(site: Site) -> None:
    began = asyncio.Event()

    async def hang(run: Run) -> None:
        began.set()
        await asyncio.Event().wait()

    async def handle(run: Run) -> None: ...

    async with site.running({"handle": hang}, concurrency=1) as executor:
        started = await submitted(site.client, "handle", max_retries=0)
        await within_patience(began)
        waiting = await submitted(site.client, "handle", max_retries=0)
    assert executor.counters.handed_back >= 1
    async with site.running({"handle": handle}):
        await site.house.until_run(site.client, started, "success")
        await site.house.until_run(site.client, waiting, "success")
    assert await site.results(started) == [(1, "deferred"), (1, "success")]
    assert (await site.results(waiting))[-1] == (1, "success")


async def test_every_run_of_many_is_recorded_once(site: Site) -> None:
    calls: list[str] = []

    async def handle(run: Run) -> None:
        calls.append(run.run_id)
        await asyncio.sleep(0)

    jobs = [{"schedule": "now", "target": worker_target()} for _ in range(200)]
    async with site.running({"handle": handle}, timedelta(seconds=10), concurrency=20) as executor:
        await site.client.jobs.create_many(jobs)

        async def all_done() -> bool:
            return executor.counters.succeeded == len(jobs)

        await until(all_done)
    assert len(calls) == len(set(calls)) == len(jobs)
    assert executor.counters.stale == 0
    recorded = await site.house.pool.fetch("SELECT result::text, count(*) FROM outcomes GROUP BY result")
    assert [tuple(row) for row in recorded] == [("success", len(jobs))]
    assert await site.leases() == 0
