"""What a program does with jobs and runs by its App, and idempotency keys of what it submits."""

import asyncio
from typing import Any, NamedTuple

import asyncpg
import psycopg
import pytest

from engine import PATIENCE_SECONDS
from evertick import App, InvalidInput, Run
from evertick.contract.runs import Run as RunView
from evertick.usecases.errors import JobNotFound, NameTaken, SubmissionInFlight


class Shop(NamedTuple):
    app: App
    report: Any
    clean: Any


def make_app(database_url: str) -> App:
    return make_shop(database_url).app


def make_shop(database_url: str) -> Shop:
    app = App(name="shop", database_url=database_url)

    @app.cron("0 9 * * 1", payload={"day": "Monday"})
    def report(run: Run, day: str) -> str:
        return day

    @app.every("1h", name="often")
    @app.every("2h", name="seldom")
    def clean() -> None: ...

    return Shop(app, report, clean)


async def test_a_program_controls_its_jobs(database_url: str) -> None:
    app, report, _ = make_shop(database_url)
    async with app.running(), asyncio.timeout(PATIENCE_SECONDS):
        paused = await app.pause(report, "for the holidays")
        assert (paused.name, paused.status, paused.pause_reason) == ("report", "paused", "for the holidays")
        assert [job.name for job in await app.list_jobs(status="paused")] == ["report"]
        assert (await app.resume("report", missed="run_once")).status == "active"
        assert {job.name for job in await app.list_jobs(labels={"app": "shop"})} == {"report", "often", "seldom"}
        assert len(await app.list_jobs(limit=2)) == 2
        run = await app.trigger(paused.job_id)
        assert await run.result() == "Monday"
        other = await app.trigger("report", {"day": "Friday"}, force=True)
        assert await other.result() == "Friday"
        newest, before = await app.history("report", status="success")
        assert isinstance(newest, RunView)
        assert isinstance(before, RunView)
        assert (newest.run_id, before.run_id, newest.reason) == (other.run_id, run.run_id, "manual")
        assert len(await app.history(limit=1)) == 1


async def test_sync_code_controls_jobs_too(database_url: str) -> None:
    async with make_app(database_url).running():
        app = make_app(database_url)

        def use() -> None:
            assert app.pause_sync("often").status == "paused"
            assert app.resume_sync("often").status == "active"
            run = app.trigger_sync("report", {"day": "Sunday"})
            assert run.result(PATIENCE_SECONDS) == "Sunday"
            assert [job.name for job in app.list_jobs_sync(name_prefix="rep")] == ["report"]
            later = app.submit_sync("report", {"day": "x"}, delay="3d")
            app.cancel_sync(later.run_id)
            (entry,) = app.history_sync("report")
            assert entry.run_id == run.run_id
            app.close_sync()

        await asyncio.to_thread(use)


async def test_what_names_no_job_or_several_is_said(database_url: str) -> None:
    app, _, clean = make_shop(database_url)
    async with app.running():
        with pytest.raises(JobNotFound, match="there is no job 'reports'"):
            await app.pause("reports")
        with pytest.raises(InvalidInput, match="job: 'clean' has several jobs, seldom, often: name one"):
            await app.pause(clean)
        with pytest.raises(InvalidInput, match="status: must be one of active, paused, finished, not 'idle'"):
            await app.list_jobs(status="idle")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"use `await app.pause\(...\)`"):
        app.pause_sync("report")


async def test_a_submission_with_a_key_is_made_once(database_url: str) -> None:
    async with make_app(database_url) as app:
        first = await app.submit("report", {"day": "a"}, delay="1h", idempotency_key="order-1")
        again = await app.submit("report", {"day": "a"}, delay="1h", idempotency_key="order-1")
        assert (again.job_id, again.run_id, again.fire_at) == (first.job_id, first.run_id, first.fire_at)
        with pytest.raises(InvalidInput, match="idempotency_key: was used for another submission"):
            await app.submit("report", {"day": "b"}, delay="1h", idempotency_key="order-1")
        with pytest.raises(InvalidInput, match="idempotency_key: must be 1 to 255 visible ASCII characters"):
            await app.submit("report", {"day": "a"}, idempotency_key="ö")
        together = [app.submit("report", {"day": "c"}, idempotency_key="order-2") for _ in range(5)]
        assert len({each.run_id for each in await asyncio.gather(*together)}) == 1
        assert await app.submit("report", {"day": "c"}, idempotency_key="order-3") is not None
        assert len(await app.list_jobs()) == 3
        by_name = {"name": "once", "idempotency_key": "order-4"}
        with pytest.raises(InvalidInput):
            await app.submit("report", {"day": 3}, **by_name)  # type: ignore[arg-type]
        kept = await app.submit("report", {"day": "d"}, **by_name)  # type: ignore[arg-type]
        assert kept.run_id, "what was refused may be corrected"
        with pytest.raises(NameTaken):
            await app.submit("report", {"day": "d"}, name="once", idempotency_key="order-5")


async def test_a_key_is_kept_by_the_transaction_of_the_application(
    database_url: str, connection: asyncpg.Connection
) -> None:
    async with make_app(database_url) as app:

        async def submit(on: Any, day: str = "a") -> str:
            return (await app.submit("report", {"day": day}, idempotency_key="order-1", connection=on)).run_id

        transaction = connection.transaction()
        await transaction.start()
        lost = await submit(connection)
        other = await asyncpg.connect(database_url)
        async with other.transaction():
            with pytest.raises(SubmissionInFlight, match="'order-1': try again when it is over"):
                await submit(other)
        await transaction.rollback()
        async with connection.transaction():
            first = await submit(connection)
            assert await submit(connection) == first
        assert first != lost, "which was never there"
        async with other.transaction():
            assert await submit(other) == first
            with pytest.raises(InvalidInput, match="was used for another submission"):
                await submit(other, "b")
        await other.close()
        own = await app.submit("report", {"day": "a"}, idempotency_key="order-1")
        assert own.run_id == first, "whichever way it is submitted"
        assert len(await app.list_jobs()) == 1

        def use() -> str:
            with psycopg.connect(database_url) as session:
                return app.submit_sync("report", {"day": "a"}, idempotency_key="order-1", connection=session).run_id

        assert await asyncio.to_thread(use) == first
