"""Ctrl-C, once and twice, in every process that runs handlers or delivers; and the log lines of users' own code."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import asyncpg
import pytest
from aiohttp import web

from cli.processes import Evertick, evertick
from engine import PATIENCE_SECONDS, until
from evertick import App
from evertick.config.reading import ConfigInvalid, read_settings

TASKS = """
import asyncio, logging, time
from evertick import App

app = App(name="shop")
log = logging.getLogger("shop.invoices")


@app.handler
async def wait(run):
    log.info("customer %s waits", run.payload["who"])
    log.debug("in detail")
    logging.getLogger("httpx").info("noise")
    print("running", flush=True)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        log.warning("has to go")
        raise


@app.handler
def block(run):
    log.info("it blocks")
    log.debug("in detail")
    print("running", flush=True)
    time.sleep(60)


if __name__ == "__main__":
    app.run()
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop_tasks.py").write_text(TASKS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def submit(database_url: str, handler: str) -> None:
    async with App(name="shop", database_url=database_url) as app:
        await app.submit(handler, {"who": "c1"})


async def interrupt_twice(process: Evertick) -> int:
    """Interrupt it, and again until it hands back: what comes within a second is the same request."""
    process.send(signal.SIGINT)
    await process.logged("waiting for 1 run, at most")
    handing_back = asyncio.create_task(process.logged("handing back 1 run"))
    while not handing_back.done():
        process.send(signal.SIGINT)
        await asyncio.wait([handing_back], timeout=0.3)
    return await process.ended()


async def hands_back(process: Evertick, connection: asyncpg.Connection) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await process.line() == "running\n"
        assert await interrupt_twice(process) == 0
    assert "Traceback" not in "".join(process.log)
    assert [row["result"] for row in await connection.fetch("SELECT result::text FROM outcomes")] == ["deferred"]
    assert await connection.fetchval("SELECT count(*) FROM leases WHERE worker IS NOT NULL") == 0


async def test_a_worker_hands_runs_back_at_a_second_interrupt_and_logs_what_users_log(
    directory: Path, database_url: str, connection: asyncpg.Connection
) -> None:
    settings = {
        "EVERTICK_LOG_LEVEL": "DEBUG",
        "EVERTICK_LOG_FORMAT": "json",
        "EVERTICK_DATABASE_URL": database_url,
    }
    scheduler = App(name="elsewhere", database_url=database_url)
    async with scheduler.running(), evertick("worker", "shop_tasks:app", **settings) as process:
        await process.ready()
        await submit(database_url, "wait")
        await hands_back(process, connection)
    lines = [json.loads(line) for line in process.log]
    told = {line["message"]: (line["logger"], line["level"]) for line in lines}
    assert told["customer c1 waits"] == ("shop.invoices", "info")
    assert told["in detail"] == ("shop.invoices", "debug")
    assert "waiting for 1 run, at most 30 s; Ctrl-C again to hand it back" in told
    assert "noise" not in told


async def test_an_app_hands_runs_back_at_a_second_interrupt_and_logs_what_users_log(
    directory: Path, database_url: str, connection: asyncpg.Connection
) -> None:
    program = (sys.executable, "shop_tasks.py")
    async with evertick(program=program, EVERTICK_DATABASE_URL=database_url) as process:
        await submit(database_url, "block")
        await hands_back(process, connection)
    text = "".join(process.log)
    assert "INFO    shop.invoices: it blocks" in text
    assert "in detail" not in text


async def test_up_hands_deliveries_back_at_a_second_interrupt(
    database_url: str, connection: asyncpg.Connection
) -> None:
    arrived, over = asyncio.Event(), asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        arrived.set()
        await over.wait()
        return web.Response()

    receiver = web.Application()
    receiver.router.add_post("/", hang)
    runner = web.AppRunner(receiver, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    environment = {"EVERTICK_EGRESS_ALLOW": "127.0.0.0/8", "EVERTICK_EGRESS_ALLOW_HTTP": "true"}
    async with evertick("up", "--database-url", database_url, **environment) as up:
        await up.ready()
        async with App(database_url=database_url) as app, asyncio.timeout(PATIENCE_SECONDS):
            connected = await app.connection()
            from evertick.usecases.jobs.create import create  # noqa: PLC0415

            await create(connected.tenant, {"schedule": "now", "target": {"type": "http", "url": url}})
            await arrived.wait()
            assert await interrupt_twice(up) == 0
        assert "Traceback" not in "\n".join(up.log)
    over.set()
    await runner.cleanup()
    assert await connection.fetchval("SELECT count(*) FROM leases WHERE worker IS NOT NULL") == 0


def test_a_level_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTICK_LOG_LEVEL", "loud")
    with pytest.raises(ConfigInvalid, match="must be one of debug, info, warning, error"):
        read_settings()


async def test_a_run_that_ends_in_time_is_waited_for(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "evertick.worker")
    app = App(name="shop", database_url=database_url)
    running, go_on = asyncio.Event(), asyncio.Event()

    @app.handler
    async def wait() -> str:
        running.set()
        await go_on.wait()
        return "done"

    async with app.running():
        submitted = await app.submit("wait")
        await running.wait()

        async def is_told() -> bool:
            return "again to hand it back" in caplog.text

        until_told = asyncio.create_task(until(is_told))
        until_told.add_done_callback(lambda _: go_on.set())
    await until_told
    async with app:
        assert await submitted.result() == "done"
