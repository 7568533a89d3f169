"""How attempts end on a remote worker, and what it does with those that are not its own any more."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from engine import PATIENCE_SECONDS
from evertick import DoNotRetry, RetryLater, Run
from evertick.client import AsyncClient
from evertick.contract.runs import RunDetail
from sdk.served import Served, submitted, worker_of

NO_GRACE = timedelta(0)
LEASE_SECONDS = 9.0
"""So long that a machine may stand still for some seconds."""


async def within_patience(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await event.wait()


def _fails(_: Run) -> None:
    raise ValueError("broken \x00")


def _gives_up(_: Run) -> None:
    raise DoNotRetry("never")


def _waits(_: Run) -> None:
    raise RetryLater(3600)


async def _hangs(_: Run) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("handler", "ends"),
    [
        (_fails, ("retrying", "failed", "ValueError: broken")),
        (_gives_up, ("dead", "failed", "DoNotRetry: never")),
        (_waits, ("retrying", "failed", "RetryLater")),
        (_hangs, ("retrying", "timed_out", "not finished after 1 s")),
    ],
)
async def test_what_follows_a_failure_is_decided_by_the_jobs_policy(
    house: Served, client: AsyncClient, handler: Callable[..., Any], ends: tuple[str, str, str]
) -> None:
    status, result, words = ends
    async with (await worker_of(house, {"handle": handler})).running(NO_GRACE):
        seconds = 1 if handler is _hangs else 60
        run_id = await submitted(client, "handle", timeout_seconds=seconds, retry_delay_seconds=60)
        detail = await house.until_run(client, run_id, status)
    assert detail.attempts[0].result == result
    assert words in (detail.attempts[0].error or "")
    due = await house.pool.fetchval(
        "SELECT extract(epoch FROM due_at - clock_at())::float FROM timers WHERE kind = 'retry'"
    )
    least = {_fails: 50, _hangs: 50, _waits: 3500}.get(handler)
    assert due is None if least is None else least < due <= 1.3 * least + 60


@pytest.mark.parametrize("lease_seconds", [LEASE_SECONDS])
async def test_a_handler_that_blocks_the_loop_for_longer_than_its_lease_keeps_it(
    house: Served, client: AsyncClient
) -> None:
    over = threading.Event()

    async def blocks_the_loop(run: Run) -> None:
        threading.Event().wait(1.25 * LEASE_SECONDS)

    worker = await worker_of(house, {"handle": blocks_the_loop})

    async def work() -> None:
        async with worker.running():
            await asyncio.to_thread(over.wait)

    # On a loop of its own: the server is on this one.
    working = asyncio.create_task(asyncio.to_thread(asyncio.run, work()))
    run_id = await submitted(client, "handle")
    detail = await house.until_run(client, run_id, "success")
    over.set()
    await working
    assert [attempt.result for attempt in detail.attempts] == ["success"]
    assert worker.counters.lost == 0


async def test_a_cancelled_run_is_stopped(house: Served, client: AsyncClient) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(run: Run) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with (await worker_of(house, {"handle": handle})).running(NO_GRACE) as worker:
        run_id = await submitted(client, "handle")
        await within_patience(began)
        await client.runs.cancel(run_id)
        await within_patience(cancelled)
        assert (await client.runs.get(run_id)).status == "cancelled"
        assert worker.counters.lost == 1


async def test_a_stopping_worker_hands_back_what_it_does_not_finish(house: Served, client: AsyncClient) -> None:
    began, done = asyncio.Event(), asyncio.Event()

    async def first(run: Run) -> None:
        began.set()
        await asyncio.Event().wait()

    async def second(run: Run) -> None:
        done.set()

    async with (await worker_of(house, {"handle": first})).running(NO_GRACE):
        run_id = await submitted(client, "handle", max_retries=0)
        await within_patience(began)
    async with (await worker_of(house, {"handle": second})).running():
        detail = await house.until_run(client, run_id, "success")
    assert [(each.attempt, each.result) for each in detail.attempts] == [(1, "deferred"), (1, "success")]
    assert _sequence(detail) == sorted(_sequence(detail))


def _sequence(detail: RunDetail) -> list[int]:
    return [int(attempt.token.partition(".")[2]) for attempt in detail.attempts]
