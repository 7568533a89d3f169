"""Apps in forked children: they connect by themselves, and leave what is the parent's alone."""

import asyncio
import os
import signal
import subprocess
import sys
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from engine import PATIENCE_SECONDS, until
from evertick import App
from ports import free_port

# Newer Pythons warn of what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

SITE = """
from evertick import App

app = App(database_url={url!r}, name="site")
app.submit_sync("greet", name="by the parent")


def application(environ, start_response):
    submitted = app.submit_sync("greet")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [submitted.run_id.encode()]
"""


def in_child(work: Callable[[], None]) -> int:
    """The exit code of a forked child that does the work. It is killed if it hangs."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(PATIENCE_SECONDS))
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - the child must not return into pytest
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def names(connection: asyncpg.Connection) -> list[str]:
    return [row["name"] for row in await connection.fetch("SELECT name FROM jobs ORDER BY name")]


async def test_sync_code_submits_in_the_parent_in_children_and_in_the_parent_again(
    database_url: str, connection: asyncpg.Connection
) -> None:
    app = App(database_url=database_url)

    def child(name: str) -> int:
        def work() -> None:
            app.submit_sync("greet", name=name)
            app.close_sync()

        return in_child(work)

    def parent() -> list[int]:
        app.submit_sync("greet", name="1 parent")
        codes = [child("2 child"), child("3 child")]
        app.submit_sync("greet", name="4 parent again")
        app.close_sync()
        return codes

    assert await asyncio.to_thread(parent) == [0, 0]
    assert await names(connection) == ["1 parent", "2 child", "3 child", "4 parent again"]


async def test_async_code_submits_in_a_child_of_a_connected_parent(
    database_url: str, connection: asyncpg.Connection
) -> None:
    async with App(database_url=database_url) as app:
        await app.submit("greet", name="1 parent")

        def work() -> None:
            async def submit() -> None:
                async with app:
                    await app.submit("greet", name="2 child")

            asyncio.run(submit())

        assert await asyncio.to_thread(in_child, work) == 0
        await app.submit("greet", name="3 parent again")
    assert await names(connection) == ["1 parent", "2 child", "3 parent again"]


def test_a_child_that_closes_its_app_leaves_the_embedded_server_to_the_parent(data_dir: Path) -> None:
    app = App(data_dir=data_dir)
    app.submit_sync("greet", name="parent")

    def work() -> None:
        app.submit_sync("greet", name="child")
        app.close_sync()

    assert in_child(work) == 0
    assert in_child(app.close_sync) == 0  # one that has not used it
    app.submit_sync("greet", name="parent again")
    app.close_sync()
    assert not (data_dir / "postgres" / "postmaster.pid").exists()


async def test_workers_of_gunicorn_that_forked_after_loading_the_app_submit(
    database_url: str, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    (tmp_path / "site_of_shop.py").write_text(SITE.format(url=database_url))
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers=2", f"--bind={address}", "site_of_shop"]
    with subprocess.Popen(command, cwd=tmp_path) as server:  # noqa: ASYNC220 - it returns at once
        try:
            await until(lambda: asyncio.to_thread(answers, address))
            for _ in range(6):
                assert await asyncio.to_thread(answers, address)
        finally:
            server.terminate()
    assert await connection.fetchval("SELECT count(*) FROM jobs") == 8


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=PATIENCE_SECONDS) as answer:
            return bool(answer.read().startswith(b"run_"))
    except OSError:
        return False
