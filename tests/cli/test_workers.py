"""`evertick workers`, `evertick queues list` and `evertick doctor` say who serves what."""

from pathlib import Path

import asyncpg
import pytest

from cli.commands import Cli
from cli.processes import evertick
from engine import until
from evertick.client import AsyncClient
from evertick.client.errors import Forbidden, Invalid

APP = """
from evertick import App

app = App(name="shop", queue="shop")


@app.handler("greet")
async def greet(run):
    pass
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "serving_tasks.py").write_text(APP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_a_worker_says_what_it_serves_and_leaves_with_its_end(
    directory: Path, cli: Cli, connection: asyncpg.Connection, database_url: str
) -> None:
    await cli("jobs", "add", "hello", "manual", "--queue", "shop", "--handler", "greet")
    await cli("jobs", "add", "gone", "manual", "--queue", "shop", "--handler", "no_more")
    async with evertick("worker", "serving_tasks:app", "--database-url", database_url) as worker:
        await worker.ready()
        await until(lambda: connection.fetchval("SELECT count(*) FROM workers"))
        (listed,) = await cli.json("workers")
        assert (listed["role"], listed["is_alive"]) == ("worker", True)
        assert listed["queues"] == [{"queue": "shop", "handlers": ["greet"]}]
        assert "greet" in await cli("workers")
        (queue,) = await cli.json("queues", "list")
        assert queue["handlers"] == [{"handler": "greet", "workers": 1}, {"handler": "no_more", "workers": 0}]
        assert "no_more" in await cli("queues", "list")
        assert "1 worker on shop" in (await cli.run("doctor")).output
        assert await worker.stop() == 0
    assert await cli.json("workers") == []
    assert "No workers." in await cli("workers")


async def test_a_worker_that_pulls_over_http_is_listed_by_its_polls_and_heartbeats(
    over_api: Cli, on_database: Cli
) -> None:
    made = await on_database.json("keys", "create", "--role", "worker")
    await over_api("jobs", "add", "hello", "manual", "--queue", "shop", "--handler", "greet")
    async with AsyncClient(over_api.options[1], made["api_key"]) as client:
        with pytest.raises(Invalid):
            await client.workers.lease("shop", "w1", wait_seconds=0, handlers=["null\x00"])
        await client.workers.lease("shop", "w1", wait_seconds=0, handlers=["greet", "grüße"])
        await client.workers.heartbeat("w2")
        (listed,) = await over_api.json("workers")
        assert (listed["worker_id"], listed["role"], listed["is_alive"]) == ("w1", "remote_worker", True)
        assert listed["queues"] == [{"queue": "shop", "handlers": ["greet"]}]
        with pytest.raises(Forbidden):
            [each async for each in client.workers.list()]
    (queue,) = await over_api.json("queues", "list")
    assert queue["handlers"] == [{"handler": "greet", "workers": 1}]
