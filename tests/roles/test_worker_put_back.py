"""Attempts that a worker cannot start: they are put back, reach one that can, and count as no try."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from engine import Job, until
from evertick.executor.handlers.run import Run
from hooked_pool import Run as Statement, hook_every_pool
from roles.workshop import Workshop, within_patience

ONE_TRY = '{"max_retries": 0, "backoff": "fixed", "delay_seconds": 10, "max_delay_seconds": 10}'


def nothing() -> None: ...


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def attempts_of(workshop: Workshop, job: Job) -> list[int]:
    rows = await workshop.connection.fetch("SELECT attempt FROM attempts WHERE job_id = $1", job.job_id)
    return [row[0] for row in rows]


async def test_what_one_worker_has_no_handler_for_is_run_by_another(workshop: Workshop) -> None:
    job = await workshop.ready("send", count=3, retry=ONE_TRY)
    await workshop.work_off({"mail": nothing})
    assert (await workshop.results(job), await workshop.free()) == ([], ["send"] * 3)
    await workshop.work_off({"send": nothing})
    assert await workshop.results(job) == ["success"] * 3
    assert await attempts_of(workshop, job) == [1, 1, 1]
    assert (await workshop.leases(), await workshop.retries(job), await workshop.dead_letters(job)) == (0, [], [])


async def test_a_worker_does_not_lease_again_what_it_has_no_handler_for(workshop: Workshop) -> None:
    await workshop.ready("send", count=5)
    async with workshop.opened({"mail": nothing}) as worker:
        assert await worker.work_off() == 5
        assert await worker.work_off() == 0
    assert worker.counters.handed_back == 5


async def test_a_handler_that_is_not_here_is_warned_of_once(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    async with workshop.opened({"mail": nothing}) as worker:
        for count in (12, 1):
            await workshop.ready("send", count=count)
            await worker.work_off()
    assert warnings_in(caplog) == ["no handler 'send' on queue 'default': 12 attempts wait for a worker that has it"]


async def test_a_worker_that_runs_gets_what_another_puts_back(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, may_lease = asyncio.Event(), asyncio.Event()

    async def send(run: Run) -> None:
        ran.set()

    worker = workshop.worker({"send": send})

    async def lease_later(lease: Statement, values: Mapping[str, Any]) -> Any:
        if values["worker"] == worker.name:
            await may_lease.wait()  # until the other has put the attempt back
        return await lease()

    hook_every_pool(monkeypatch, "lanes.lease", lease_later)
    async with workshop.running(worker):
        job = await workshop.ready("send")
        await workshop.work_off({"mail": nothing})
        assert await workshop.free() == ["send"]
        may_lease.set()
        await within_patience(ran)
        await workshop.until_ended(job)
    assert await workshop.results(job) == ["success"]


async def test_the_last_try_is_marked_before_its_handler_begins(workshop: Workshop) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    async def handle(run: Run) -> None:
        began.set()
        await release.wait()

    plain = await workshop.ready()
    last = await workshop.ready(retry=ONE_TRY)
    async with workshop.started({"handle": handle}):
        await within_patience(began)

        async def is_marked() -> bool:
            return bool(await workshop.connection.fetchval("SELECT sum(cardinality(started)) FROM leases"))

        await until(is_marked)
        marked = await workshop.connection.fetchval("SELECT job_id FROM attempts, leases WHERE seq = ANY(started)")
        assert marked == last.job_id
        release.set()
        await workshop.until_ended(last)
        await workshop.until_ended(plain)
    assert await workshop.leases() == 0


async def test_a_last_try_that_was_lost_meanwhile_is_not_started(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    marks: list[int] = []
    job = await workshop.ready(retry=ONE_TRY)

    async def late(mark: Statement, _: object) -> Any:
        await workshop.connection.execute("UPDATE leases SET worker = 'another'")
        marks.append(1)
        return await mark()

    hook_every_pool(monkeypatch, "lanes.mark_started", late)
    await workshop.work_off({"handle": lambda: calls.append(1)})
    assert (calls, marks, await workshop.results(job)) == ([], [1], [])
