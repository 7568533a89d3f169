import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import httpx
import pytest
from aiohttp import web
from click.testing import CliRunner

import postgres
from cli.commands import Cli
from cli.processes import TIMEOUT_SECONDS, evertick
from engine import until
from evertick.cli.main import app
from evertick.store.database import connect
from evertick.store.errors import DatabaseUnreachable
from evertick.store.server.embedded import EmbeddedServer
from roles.dispatching import receiving

NOWHERE = "postgresql://jane:s3cret@127.0.0.1:1/jobs"


@pytest.fixture
async def empty_url(postgres_server: postgres.Server) -> AsyncIterator[str]:
    async with postgres_server.database(empty=True) as url:
        yield url


async def members(connection: asyncpg.Connection) -> list[str]:
    return [row["node"] for row in await connection.fetch("SELECT node FROM nodes")]


async def test_up_brings_its_own_database_and_takes_it_down_again(data_dir: Path) -> None:
    async with evertick("up", "--data-dir", str(data_dir)) as up:
        await up.logged(f"on the embedded server in {data_dir}")
        await up.ready()
        assert (data_dir / "postgres" / "postmaster.pid").exists()
        assert await up.stop() == 0
    assert not (data_dir / "postgres" / "postmaster.pid").exists()


async def test_up_migrates_the_database_of_a_url_and_joins_as_a_node(empty_url: str) -> None:
    async with evertick("up", "--database-url", empty_url) as up:
        line = await up.logged("on database test_")
        await up.ready()
        connection = await asyncpg.connect(empty_url, server_settings={"search_path": "evertick"})
        (node,) = await members(connection)
        assert f"node {node} on database test_" in line
        assert await up.stop(signal.SIGINT) == 0
        assert await members(connection) == [], "it has left in order"
        assert await connection.fetchval("SELECT count(*) FROM partitions WHERE holder IS NOT NULL") == 0
        await connection.close()


async def test_a_stop_hands_partitions_over_while_a_delivery_takes_its_time(
    connection: asyncpg.Connection, database_url: str
) -> None:
    arrived, may_answer = asyncio.Event(), asyncio.Event()

    async def hang() -> web.StreamResponse:
        arrived.set()
        await may_answer.wait()
        return web.Response()

    settings = {
        "EVERTICK_SECRET_KEY": "a key of at least thirty-two characters",
        "EVERTICK_EGRESS_ALLOW": "127.0.0.0/8",
        "EVERTICK_EGRESS_ALLOW_HTTP": "true",
    }
    async with receiving() as receiver, evertick("up", "--database-url", database_url, **settings) as up:
        receiver.will(hang)
        await up.ready()
        await Cli(database_url)("jobs", "add", "hello", "now", "--target-url", receiver.url)
        await asyncio.wait_for(arrived.wait(), TIMEOUT_SECONDS)
        stopping = asyncio.create_task(up.stop())

        async def are_given_up() -> bool:
            return await members(connection) == []

        await until(are_given_up)
        assert await connection.fetchval("SELECT count(*) FROM partitions WHERE holder IS NOT NULL") == 0
        assert not stopping.done()
        may_answer.set()
        assert await stopping == 0
    assert await connection.fetchval("SELECT result FROM outcomes") == "success"


async def test_after_a_kill_it_starts_again_on_the_same_data(data_dir: Path) -> None:
    async with evertick("up", "--data-dir", str(data_dir)) as up:
        await up.ready()
        assert (await up.line()).startswith("API key: evt_")
        await up.kill()
    async with evertick("up", "--data-dir", str(data_dir)) as again:
        await again.ready()
        await again.logged("For another: evertick keys create --role admin")
        assert await again.stop() == 0


async def test_up_brings_back_an_embedded_server_that_was_killed(data_dir: Path) -> None:
    pid_file = data_dir / "postgres" / "postmaster.pid"
    async with evertick("up", "--data-dir", str(data_dir)) as up:
        await up.ready()
        await up.logged("took 256 partitions")
        os.kill(int(pid_file.read_text(encoding="utf-8").split("\n", 1)[0]), signal.SIGKILL)
        await up.logged("starting it again")
        await _beats_on(data_dir)
        assert await up.stop() == 0
    assert not pid_file.exists()


async def _connected(url: str) -> asyncpg.Connection | None:
    try:
        return await connect(url)
    except DatabaseUnreachable:
        return None


async def _beats_on(data_dir: Path) -> None:
    """Wait until the server answers, and the scheduler has beaten since it does."""
    url = EmbeddedServer(data_dir).url
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (connection := await _connected(url)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while not await connection.fetchval("SELECT max(seen_at) > pg_postmaster_start_time() FROM nodes"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await connection.close()


async def test_several_processes_share_one_embedded_server(data_dir: Path) -> None:
    async with evertick("up", "--data-dir", str(data_dir)) as first:
        await first.ready()
        async with evertick("scheduler", "--data-dir", str(data_dir)) as second:
            await second.ready()
            assert await first.stop() == 0
            await second.logged("took")
            assert await second.stop() == 0


async def test_a_process_has_only_the_roles_it_was_given(connection: asyncpg.Connection, database_url: str) -> None:
    await connection.execute("SELECT drop_day((clock_at() AT TIME ZONE 'UTC')::date + 3)")
    async with evertick("scheduler", "--database-url", database_url, "--roles", "janitor") as janitor:
        await janitor.ready()
        assert await members(connection) == []
        missing = "SELECT to_regclass('outcomes_' || to_char(clock_at() + interval '3 days', 'YYYYMMDD')) IS NULL"
        assert not await connection.fetchval(missing), "the janitor has come round before it is ready"
        assert await janitor.stop() == 0


async def test_the_roles_of_up_may_come_from_the_environment(connection: asyncpg.Connection, database_url: str) -> None:
    async with evertick("up", EVERTICK_ROLES="janitor", EVERTICK_DATABASE_URL=database_url) as janitor:
        await janitor.ready()
        assert await members(connection) == []
        assert await janitor.stop() == 0


async def test_the_url_may_come_from_the_environment_and_its_password_is_never_shown(
    postgres_server: postgres.Server, database_url: str
) -> None:
    url = database_url.replace("postgres@", "postgres:s3cret@")
    async with evertick("scheduler", EVERTICK_DATABASE_URL=url) as scheduler:
        assert "s3cret" not in await scheduler.ready()
        assert await scheduler.stop() == 0


def test_a_scheduler_refuses_a_database_that_was_not_migrated(empty_url: str) -> None:
    result = CliRunner().invoke(app, ["scheduler", "--database-url", empty_url])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the database lacks 0001_initial")
    assert "run `evertick migrate`" in result.stderr


def test_a_scheduler_needs_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EVERTICK_DATABASE_URL", "EVERTICK_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(app, ["scheduler"])
    assert result.exit_code == 2
    assert "needs --database-url" in result.stderr


@pytest.mark.parametrize("command", ["up", "scheduler", "migrate", "doctor"])
def test_a_database_that_cannot_be_reached_is_reported_in_one_line_without_the_password(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--database-url", NOWHERE])
    assert result.exit_code == 3
    assert result.stderr.startswith("Error: cannot reach database jobs at 127.0.0.1:1: ")
    assert "s3cret" not in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["scheduler", "doctor"])
def test_commands_that_need_a_database_do_not_create_one(command: str, data_dir: Path) -> None:
    result = CliRunner().invoke(app, [command, "--data-dir", str(data_dir)])
    assert result.exit_code == 3
    assert f"there is no database in {data_dir}" in result.stderr
    assert not data_dir.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up", "--roles", "scheduler,cook"], "cook: must be among api, scheduler, janitor, dispatcher"),
        (["scheduler", "--roles", ""], "must be among"),
        (["up", "--log-level", "loud"], "must be one of debug"),
        (["up", "--nonsense"], "No such option"),
    ],
)
def test_unknown_values_and_options_are_wrong_usage(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_all_faults_of_the_settings_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTICK_HEARTBEAT_SECONDS", "often")
    monkeypatch.setenv("EVERTICK_PORT", "70000")
    result = CliRunner().invoke(app, ["up"])
    assert result.exit_code == 2
    assert "EVERTICK_HEARTBEAT_SECONDS" in result.stderr
    assert "EVERTICK_PORT" in result.stderr


def test_the_help_of_each_command_shows_an_example() -> None:
    for command in ("up", "scheduler", "migrate", "doctor"):
        shown = CliRunner().invoke(app, [command, "--help"], env=os.environ | {"COLUMNS": "200"}).stdout
        assert "Example" in shown
        assert f"evertick {command}" in shown


async def test_a_scheduler_serves_its_metrics_on_a_port_of_its_own(database_url: str) -> None:
    arguments = ("scheduler", "--database-url", database_url, "--metrics-port", "0")
    async with evertick(*arguments, EVERTICK_METRICS_KEY="a-key-for-metrics") as scheduler:
        line = await scheduler.logged("metrics are at ")
        address = line.rpartition("metrics are at ")[2].strip()
        await scheduler.ready()
        async with httpx.AsyncClient(trust_env=False, timeout=60, verify=False) as reader:
            assert (await reader.get(address)).status_code == 401
            page = (await reader.get(address, headers={"Authorization": "Bearer a-key-for-metrics"})).text
        for name in (
            "partitions_held",
            "nodes",
            "event_loop_delay_seconds_count",
            'clock_skew_seconds{role="scheduler"}',
        ):
            assert f"evertick_{name}" in page
        assert await scheduler.stop() == 0


def test_a_port_for_metrics_that_other_machines_can_reach_needs_a_key(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    monkeypatch.setenv("EVERTICK_METRICS_HOST", "0.0.0.0")
    result = CliRunner().invoke(app, ["up", "--data-dir", str(data_dir), "--metrics-port", "0"])
    assert result.exit_code != 0
    assert "metrics_port: set metrics_key, or metrics_open to true" in result.output
