"""An app from its declarations to runs, on a real database."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from engine import PATIENCE_SECONDS, until
from evertick import App, Run
from evertick.domain.errors import InvalidFields
from evertick.domain.states import RunStatus
from evertick.sdk.submitting import Submitted
from evertick.store.migrate import SchemaMismatch
from postgres import Server


async def ended(submitted: Submitted[Any], status: RunStatus) -> None:
    async def has_ended() -> bool:
        return await submitted.status() is status

    await until(has_ended)


async def test_a_submitted_run_reaches_its_handler_with_its_payload(database_url: str) -> None:
    app = App(database_url=database_url)
    seen: list[tuple[str, str]] = []

    @app.handler()
    def send_invoice(run: Run, customer: str) -> None:
        seen.append((run.run_id, customer))

    async with app.running():
        by_name = await app.submit("send_invoice", {"customer": "c1"})
        await ended(by_name, RunStatus.SUCCESS)
        by_function = await app.submit(send_invoice, {"customer": "c2"}, timeout_seconds=10)
        await ended(by_function, RunStatus.SUCCESS)
    assert seen == [(by_name.run_id, "c1"), (by_function.run_id, "c2")]


async def test_a_run_is_pending_until_its_time_comes(database_url: str) -> None:
    async with App(database_url=database_url) as app:
        submitted = await app.submit("anything", delay="3d")
        assert await submitted.status() is RunStatus.PENDING


async def test_an_app_keeps_to_its_tenants_shortest_interval(database_url: str, connection: asyncpg.Connection) -> None:
    await connection.execute("UPDATE tenants SET shortest_interval_seconds = 3600")
    app = App(database_url=database_url)

    @app.schedule("*/5 * * * *")
    def refresh() -> None: ...

    with pytest.raises(InvalidFields, match="more often than the allowed 1:00:00"):
        async with app.running():
            pass


async def test_what_is_wrong_with_a_submission_is_said_at_once(database_url: str) -> None:
    async with App(database_url=database_url) as app:
        with pytest.raises(InvalidFields, match="max_retries"):
            await app.submit("anything", max_retries=-1)


async def test_a_declared_job_fires_and_keeps_its_id_over_restarts(
    database_url: str, connection: asyncpg.Connection
) -> None:
    ids: set[str] = set()
    for _ in range(2):
        app = App(database_url=database_url)
        ran = asyncio.Event()

        @app.every("1s")
        async def refresh(run: Run, done: asyncio.Event = ran) -> None:
            ids.add(run.job_id)
            done.set()

        async with app.running(), asyncio.timeout(PATIENCE_SECONDS):
            await ran.wait()
    assert len(ids) == 1
    assert await connection.fetchval("SELECT spec_version FROM jobs WHERE name = 'refresh'") == 1


async def test_jobs_that_the_code_declares_no_more_are_named(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = App(database_url=database_url)
    first.every("1h", name="old")(lambda: None)
    async with first.running():
        pass
    second = App(database_url=database_url)
    with caplog.at_level(logging.WARNING, "evertick.app"):
        async with second.running():
            pass
    assert "any more, and go on until they are deleted: old" in caplog.text


async def test_code_that_is_not_async_submits_too(database_url: str) -> None:
    app = App(database_url=database_url)
    later: list[str] = []

    @app.handler()
    def parent(run: Run) -> None:
        later.append(app.submit_sync("child").run_id)

    @app.handler()
    async def child(run: Run) -> None: ...

    async with app.running():
        await ended(await app.submit("parent"), RunStatus.SUCCESS)
        await ended(app.submitted(later[0]), RunStatus.SUCCESS)


async def test_submit_sync_refuses_to_block_an_event_loop(database_url: str) -> None:
    with pytest.raises(RuntimeError, match=r"use `await app.submit\(...\)`"):
        App(database_url=database_url).submit_sync("anything")


def test_submit_sync_works_where_no_loop_runs(data_dir: Path) -> None:
    app = App(data_dir=data_dir)
    assert app.submit_sync("anything", delay=timedelta(days=1)).run_id.startswith("run_")
    app.close_sync()


async def test_an_app_does_not_submit_to_a_database_that_was_not_migrated(postgres_server: Server) -> None:
    async with postgres_server.database(empty=True) as url:
        app = App(database_url=url)
        with pytest.raises(SchemaMismatch, match="run `evertick migrate`"):
            await app.submit("anything")
        await app.close()
