import asyncio
import signal
import sys
from pathlib import Path

import asyncpg
import httpx
import pytest
from click.testing import CliRunner

from cli.commands import Cli
from cli.processes import evertick
from engine import until
from evertick.cli.main import app
from ports import free_ports

APP = """
from evertick.sdk.app import App

app = App(name="shop")
other = "no app"


@app.handler("greet")
async def greet(run):
    print("hello", run.payload["who"], flush=True)
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's modules are."""
    (tmp_path / "shop_tasks.py").write_text(APP, encoding="utf-8")
    (tmp_path / "shop_broken.py").write_text("import shop_missing\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("EVERTICK_DATABASE_URL", "")  # the command sets it, and pytest then resets it
    return tmp_path


async def test_a_worker_runs_the_handlers_of_an_app_for_a_scheduler_elsewhere(
    directory: Path, cli: Cli, connection: asyncpg.Connection, database_url: str
) -> None:
    where = ("--database-url", database_url)
    async with evertick("scheduler", *where) as scheduler, evertick("worker", "shop_tasks:app", *where) as worker:
        await scheduler.ready()
        assert "a worker of shop on queue shop" in await worker.ready()
        await cli(
            "jobs", "add", "hello", "now", "--queue", "shop", "--handler", "greet", "--payload", '{"who": "world"}'
        )
        assert await worker.line() == "hello world\n"
        assert await worker.stop() == 0
        assert await scheduler.stop() == 0
    assert await connection.fetchval("SELECT result FROM outcomes") == "success", "recorded before it left"
    assert await connection.fetchval("SELECT count(*) FROM leases") == 0


async def test_a_worker_takes_runs_from_the_queue_of_the_option(directory: Path, database_url: str) -> None:
    arguments = ("--queue", "billing", "--concurrency", "3", "--database-url", database_url)
    async with evertick("worker", "shop_tasks", *arguments) as worker:
        assert "on queue billing" in await worker.ready()
        assert await worker.stop() == 0


async def test_several_processes_serve_several_queues_until_the_command_is_stopped(
    directory: Path, connection: asyncpg.Connection, database_url: str
) -> None:
    arguments = ("--queue", "mail", "--queue", "reports", "--processes", "2", "--database-url", database_url)
    async with evertick("worker", "shop_tasks", *arguments) as worker:
        for _ in range(2):
            assert "on queue mail, reports" in await worker.ready()
        await until(lambda: connection.fetchval("SELECT count(DISTINCT worker) = 2 FROM workers"))
        queues = await connection.fetch("SELECT DISTINCT queue FROM workers ORDER BY queue")
        assert [row["queue"] for row in queues] == ["mail", "reports"]
        assert await worker.stop() == 0
    assert await connection.fetchval("SELECT count(*) FROM workers") == 0, "both have left"


def have_files(directory: Path, *names: str) -> bool:
    return all((directory / name).exists() for name in names)


async def test_processes_have_health_files_of_their_own_and_end_when_the_terminal_hangs_up(
    directory: Path, connection: asyncpg.Connection, database_url: str
) -> None:
    (directory / "evertick.toml").write_text('health_file = "alive"\n', encoding="utf-8")
    arguments = ("--processes", "2", "--database-url", database_url)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored if the tests run under nohup, and inherited
    try:
        async with evertick("worker", "shop_tasks", *arguments) as worker:
            for _ in range(2):
                await worker.ready()
            await until(lambda: asyncio.to_thread(have_files, directory, "alive", "alive.1"))
            assert await worker.stop(signal.SIGHUP) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert await connection.fetchval("SELECT count(*) FROM workers") == 0, "both have left"


async def test_each_process_serves_its_metrics_on_the_next_port(directory: Path, database_url: str) -> None:
    port = free_ports(2)[0]
    arguments = ("--processes", "2", "--metrics-port", str(port), "--database-url", database_url)
    async with evertick("worker", "shop_tasks", *arguments) as worker:
        for _ in range(2):
            await worker.ready()
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            for each in (port, port + 1):
                answer = await client.get(f"http://127.0.0.1:{each}/metrics")
                assert answer.status_code == 200
                assert "evertick_" in answer.text
        assert await worker.stop() == 0


async def test_a_command_ends_with_the_process_that_ends_by_itself(directory: Path, database_url: str) -> None:
    arguments = ("--processes", "2", "--database-url", database_url)
    async with evertick("worker", "shop_broken", *arguments) as worker:
        assert await worker.ended() == 1
    assert any("shop_missing" in line for line in worker.log)


async def test_a_worker_starts_again_with_sources_that_changed(directory: Path, database_url: str) -> None:
    async with evertick("worker", "shop_tasks", "--reload", "--database-url", database_url) as worker:
        assert "a worker of shop on" in await worker.ready()
        (directory / "shop_tasks.py").write_text(APP.replace('"shop"', '"store"'), encoding="utf-8")
        assert "a worker of store on" in await worker.ready()
        (directory / "shop_tasks.py").write_text("def broken(", encoding="utf-8")
        await worker.logged("SyntaxError")
        (directory / "shop_tasks.py").write_text(APP, encoding="utf-8")
        assert "a worker of shop on" in await worker.ready()
        assert await worker.stop() == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shop_nowhere:app", "there is no module 'shop_nowhere'"),
        ("shop_tasks:nothing", "'shop_tasks' has no App called 'nothing'"),
        ("shop_tasks:other", "'shop_tasks' has no App called 'other'"),
        (":app", "must be MODULE:APP"),
    ],
)
def test_an_app_that_is_not_there_is_wrong_usage(directory: Path, name: str, words: str) -> None:
    result = CliRunner().invoke(app, ["worker", name])
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.replace("│", " ").split())


def test_what_the_apps_own_code_raises_is_not_hidden(directory: Path) -> None:
    result = CliRunner().invoke(app, ["worker", "shop_broken:app"])
    assert isinstance(result.exception, ModuleNotFoundError)
    assert result.exception.name == "shop_missing"


def test_a_wrong_field_of_a_declared_job_is_shown(directory: Path) -> None:
    source = "from evertick import App\napp = App()\n@app.every('5s', max_retrys=1)\ndef beat(): ...\n"
    (directory / "shop_misspelt.py").write_text(source, encoding="utf-8")
    result = CliRunner().invoke(app, ["worker", "shop_misspelt:app"])
    assert "job 'beat': max_retrys= is not a known field: did you mean 'max_retries'?" in str(result.exception)


def test_a_worker_without_a_database_says_where_it_looked(directory: Path) -> None:
    result = CliRunner().invoke(app, ["worker", "shop_tasks:app", "--database-url", "postgresql://127.0.0.1:1/jobs"])
    assert result.exit_code == 3
    assert result.stderr.startswith("Error: cannot reach database jobs at 127.0.0.1:1")
