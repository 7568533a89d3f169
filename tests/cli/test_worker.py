import sys
from pathlib import Path

import asyncpg
import pytest
from typer.testing import CliRunner

from cli.commands import Cli
from cli.processes import evertick
from evertick.cli.main import app

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


def test_a_worker_without_a_database_says_where_it_looked(directory: Path) -> None:
    result = CliRunner().invoke(app, ["worker", "shop_tasks:app", "--database-url", "postgresql://127.0.0.1:1/jobs"])
    assert result.exit_code == 3
    assert result.stderr.startswith("Error: cannot reach database jobs at 127.0.0.1:1")
