"""Remote workers as real processes, killed and cut off from their server."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from cli.processes import Evertick, evertick
from engine import PATIENCE_SECONDS, until
from evertick import Run
from evertick.client import AsyncClient
from evertick.contract.workers import OutcomeReport
from evertick.domain.access import KeyRole
from evertick.sdk.remote import Worker
from sdk.proxies import Gate
from sdk.served import Served, worker_target

APP = """
import asyncio

from evertick import App

app = App(name="shop", queue="default")


@app.handler()
async def greet(run, who):
    print("hello", who, flush=True)


@app.handler()
async def hold(run):
    print(run.fencing_token, flush=True)
    await asyncio.Event().wait()
"""
SHORT_LEASES = pytest.mark.parametrize("lease_seconds", [6.0])
"""For tests in which one runs out, and others may stand still for some seconds."""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's module is, and no database is named."""
    (tmp_path / "remote_tasks.py").write_text(APP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERTICK_DATABASE_URL", raising=False)
    return tmp_path


async def ready(worker: Evertick) -> None:
    assert "a remote worker of shop on queue default" in await worker.ready()


async def test_the_command_works_for_a_server_elsewhere(directory: Path, house: Served, client: AsyncClient) -> None:
    key = await house.key(KeyRole.WORKER)
    async with (
        evertick("worker", "remote_tasks:app", "--url", house.url, EVERTICK_API_KEY=key) as told,
        evertick("worker", "remote_tasks:app", EVERTICK_API_KEY=key, EVERTICK_URL=house.url) as set_up,
    ):
        await ready(told)
        await ready(set_up)
        assert await set_up.stop() == 0
        job = await client.jobs.create(schedule="now", target=worker_target("greet"), payload={"who": "world"})
        assert await told.line() == "hello world\n"
        assert await told.stop() == 0
    assert [run.status async for run in client.runs.list() if run.job_id == job.job_id] == ["success"]
    assert await house.pool.fetchval("SELECT count(*) FROM leases") == 0


@SHORT_LEASES
async def test_what_a_killed_worker_held_is_redelivered_under_a_larger_token_and_its_outcome_is_stale(
    directory: Path, house: Served, client: AsyncClient
) -> None:
    key = await house.key(KeyRole.WORKER)
    tokens: list[str] = []

    async def hold(run: Run) -> None:
        tokens.append(run.fencing_token)

    async with evertick("worker", "remote_tasks:app", "--url", house.url, EVERTICK_API_KEY=key) as killed:
        await ready(killed)
        job = await client.jobs.create(schedule="manual", target=worker_target("hold"), retry_delay_seconds=0.1)
        run = await client.jobs.trigger(job.job_id)
        old = (await killed.line()).strip()
        await killed.kill()
    async with Worker({"hold": hold}, house.url, key).running():
        detail = await house.until_run(client, run.run_id, "success")
    first, *more, last = detail.attempts
    # A machine that stands still for a lease loses an attempt of the second worker, too.
    assert {each.result for each in more} <= {"lost"}
    assert (first.token, first.result, last.token, last.result) == (old, "lost", tokens[-1], "success")
    assert [_seq(each.token) for each in detail.attempts] == sorted({_seq(each.token) for each in detail.attempts})
    assert first.worker_id is not None
    late = await client.workers.record(first.worker_id, [OutcomeReport(token=old, result="success")])
    assert (late.recorded, late.stale) == (0, (old,))


async def test_a_worker_outlives_an_outage_and_tells_its_outcome_once(house: Served, client: AsyncClient) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(run: Run) -> int:
        began.set()
        await go_on.wait()
        return 42

    gate = Gate(house.url)
    async with gate as url, Worker({"handle": handle}, url, house.api_key).running() as worker:
        job = await client.jobs.create(schedule="manual", target=worker_target())
        run = await client.jobs.trigger(job.job_id)
        await began.wait()
        gate.close()
        go_on.set()

        async def has_tried() -> bool:
            return gate.refused > 2

        await until(has_tried)
        gate.open()
        detail = await house.until_run(client, run.run_id, "success")
        assert [attempt.result for attempt in detail.attempts] == ["success"]
        again = await client.jobs.trigger(job.job_id)
        await house.until_run(client, again.run_id, "success")
    assert (worker.counters.succeeded, worker.counters.stale) == (2, 0)


@SHORT_LEASES
async def test_what_was_leased_in_an_answer_that_got_lost_is_redelivered_while_the_worker_lives(
    house: Served, client: AsyncClient
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(run: Run) -> None:
        began.set()
        await go_on.wait()

    # With all its hands full, the worker asks for no more: what is leased under its name, it never hears of.
    async with Worker({"handle": handle}, house.url, house.api_key, concurrency=1).running() as worker:
        job = await client.jobs.create(schedule="manual", target=worker_target(), retry_delay_seconds=0)
        held = await client.jobs.trigger(job.job_id)
        await began.wait()
        lost = await client.jobs.trigger(job.job_id)
        (first,) = (await client.workers.lease("default", worker.name)).attempts
        (again,) = (await client.workers.lease("default", "other")).attempts
        assert (first.run_id, again.run_id, again.attempt) == (lost.run_id, lost.run_id, 2)
        go_on.set()
        detail = await house.until_run(client, held.run_id, "success")
    assert [attempt.result for attempt in detail.attempts] == ["success"], "what the worker held it kept"


@SHORT_LEASES
async def test_a_worker_that_was_cut_off_for_too_long_stops_what_is_not_its_own(
    house: Served, client: AsyncClient
) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    async def handle(run: Run) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    gate = Gate(house.url)
    async with gate as url, Worker({"handle": handle}, url, house.api_key).running(timedelta(0)) as worker:
        job = await client.jobs.create(schedule="manual", target=worker_target(), max_retries=0)
        run = await client.jobs.trigger(job.job_id)
        await began.wait()
        gate.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await stopped.wait()
        gate.open()
        detail = await house.until_run(client, run.run_id, "dead")
    assert [attempt.result for attempt in detail.attempts] == ["lost"]
    assert worker.counters.lost == 1


@pytest.mark.parametrize(
    ("arguments", "key", "code", "words"),
    [
        (("--url", "http://127.0.0.1:1"), "evt_x", 3, "Error: no answer from http://127.0.0.1:1"),
        (("--url", "http://127.0.0.1:1"), "", 2, "set EVERTICK_API_KEY"),
        (("--url", "http://127.0.0.1:1", "--database-url", "postgresql://127.0.0.1:1/x"), "", 2, "exclude each other"),
    ],
)
async def test_a_worker_that_cannot_begin_says_why(
    directory: Path, arguments: tuple[str, ...], key: str, code: int, words: str
) -> None:
    async with evertick("worker", "remote_tasks:app", *arguments, EVERTICK_API_KEY=key) as worker:
        await worker.logged(words)
        assert await worker.ended() == code


def _seq(token: str) -> int:
    return int(token.partition(".")[2])
