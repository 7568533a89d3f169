"""A rolling deploy that adds, renames and removes handlers while jobs come in: no run is lost, and none is dead."""

import itertools
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

from cli.commands import Cli
from cli.processes import Evertick, evertick
from engine import until

HANDLERS = {"v1": ("keep", "old_name", "removed"), "v2": ("keep", "new_name", "added")}
MODULE = """
from evertick import App

app = App(name="shop", queue="shop")
for name in {names!r}:
    app.handler(name)(lambda run: None)
"""


class Deploy:
    """Workers of two versions, and jobs for both."""

    def __init__(self, cli: Cli, connection: asyncpg.Connection, database_url: str, stack: AsyncExitStack) -> None:
        self._cli = cli
        self.connection = connection
        self._where = ("--database-url", database_url)
        self._stack = stack
        self._numbers = itertools.count()
        self.submitted = 0

    async def start(self, version: str) -> Evertick:
        worker = await self._stack.enter_async_context(evertick("worker", f"deploy_{version}:app", *self._where))
        await worker.ready()
        return worker

    async def start_scheduler(self) -> Evertick:
        scheduler = await self._stack.enter_async_context(evertick("scheduler", *self._where))
        await scheduler.ready()
        return scheduler

    async def submit(self, count: int, *handlers: str) -> None:
        """So many one-offs for each handler, due now."""
        jobs = [
            {
                "name": f"{handler}-{next(self._numbers)}",
                "schedule": "now",
                "target": {"type": "worker", "queue": "shop", "handler": handler},
                "max_retries": 0,
            }
            for handler in handlers
            for _ in range(count)
        ]
        self.submitted += len(jobs)
        await self._cli("jobs", "import", "-", stdin="\n".join(map(json.dumps, jobs)))

    async def until_succeeded(self, count: int) -> None:
        query = "SELECT count(*) >= $1 FROM outcomes WHERE result = 'success'"
        await until(lambda: self.connection.fetchval(query, count))

    async def statuses(self) -> set[str]:
        return {row["result"] for row in await self.connection.fetch("SELECT result FROM outcomes")}


async def roll(deploy: Deploy, count: int) -> None:
    """One deploy, worker by worker; runs of handlers that the old version lacks wait for the new one."""
    old = [await deploy.start("v1"), await deploy.start("v1")]
    await deploy.submit(count, "keep", "old_name", "removed", "new_name", "added")
    first = await deploy.start("v2")
    await deploy.submit(count, "keep", "old_name", "added")
    assert await old.pop().stop() == 0
    second = await deploy.start("v2")
    await deploy.submit(count, "keep", "new_name", "removed")
    # What the removed handlers still have to do is done before the last worker with them stops.
    await deploy.until_succeeded(deploy.submitted)
    assert await old.pop().stop() == 0
    await deploy.submit(count, "keep", "old_name")
    await deploy.until_succeeded(deploy.submitted - count)
    await _back(deploy, [first, second])


async def _back(deploy: Deploy, new: list[Evertick]) -> None:
    """The rename is taken back: runs under the old name have waited for it."""
    assert [await worker.stop() for worker in new] == [0, 0]
    restored = await deploy.start("v1")
    await deploy.until_succeeded(deploy.submitted)
    assert await restored.stop() == 0


async def deployed(  # noqa: PLR0917 - where, and how much
    cli: Cli, connection: asyncpg.Connection, url: str, folder: Path, count: int, times: int
) -> None:
    for version, names in HANDLERS.items():
        (folder / f"deploy_{version}.py").write_text(MODULE.format(names=names), encoding="utf-8")
    async with AsyncExitStack() as stack:
        deploy = Deploy(cli, connection, url, stack)
        scheduler = await deploy.start_scheduler()
        for _ in range(times):
            await roll(deploy, count)
        assert await scheduler.stop() == 0
        assert await connection.fetchval("SELECT count(*) FROM dead_letters") == 0
        assert await connection.fetchval("SELECT count(*) FROM outcomes WHERE result = 'success'") == deploy.submitted
        assert await deploy.statuses() == {"success"}, "nothing was lost, failed or handed back after its start"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return tmp_path


async def test_a_rolling_deploy_that_renames_and_removes_handlers_loses_no_run(
    cli: Cli, connection: asyncpg.Connection, database_url: str, folder: Path
) -> None:
    await deployed(cli, connection, database_url, folder, count=10, times=1)


@pytest.mark.campaign
async def test_many_rolling_deploys_under_load_lose_no_run(
    cli: Cli, connection: asyncpg.Connection, database_url: str, folder: Path
) -> None:
    await deployed(cli, connection, database_url, folder, count=1000, times=5)
