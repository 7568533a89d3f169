"""Whether a process is alive, as containers and systemd find out."""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner

from cli.processes import evertick
from engine import until
from evertick.cli.main import app
from evertick.runtime.liveness import STALE_SECONDS


def check(file: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["health"], env={"EVERTICK_HEALTH_FILE": str(file)})
    return result.exit_code, result.output


async def test_a_scheduler_reports_from_its_start_to_its_stop(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "health"
    assert check(file) == (1, f"Error: no process has reported in {file}\n")
    async with evertick("scheduler", "--database-url", database_url, EVERTICK_HEALTH_FILE=str(file)) as scheduler:
        await scheduler.ready()

        async def is_alive() -> bool:
            return check(file)[0] == 0

        await until(is_alive)
        assert await scheduler.stop() == 0
    assert not file.exists()


def test_a_process_that_stopped_reporting_is_not_alive(tmp_path: Path) -> None:
    file = tmp_path / "health"
    file.touch()
    code, text = check(file)
    assert (code, text[:20]) == (0, "The process is alive")
    for seconds in (-STALE_SECONDS - 100, STALE_SECONDS + 100):  # the second: its clock was set back since
        os.utime(file, (0, time.time() + seconds))
        code, text = check(file)
        assert code == 1
        assert "seconds old" in text


def test_without_a_file_the_check_says_what_it_needs() -> None:
    result = CliRunner().invoke(app, ["health"], env={"EVERTICK_HEALTH_FILE": ""})
    assert result.exit_code == 2
    assert "set EVERTICK_HEALTH_FILE" in result.output


@pytest.mark.parametrize("is_abstract", [False, True])
async def test_systemd_is_told_when_it_is_ready_alive_and_stopping(
    database_url: str, tmp_path: Path, *, is_abstract: bool
) -> None:
    address = f"evertick-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{address}" if is_abstract else address)
        systemd.settimeout(0)
        variable = f"@{address}" if is_abstract else address
        async with evertick("scheduler", "--database-url", database_url, NOTIFY_SOCKET=variable) as scheduler:
            await scheduler.ready()
            assert await scheduler.stop() == 0
        told = []
        with suppress(BlockingIOError):
            while True:
                told.append(systemd.recv(100).decode())
    # It beats every few seconds: on a slow machine more than once.
    assert list(dict.fromkeys(told)) == ["READY=1", "WATCHDOG=1", "STOPPING=1"]


async def test_where_others_migrate_up_does_not_and_makes_no_key(
    database_url: str, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    options = ("--no-migrate", "--roles", "api")
    async with evertick("up", *options, "--database-url", database_url) as up:
        await up.ready()
        assert await up.stop() == 0
    assert await connection.fetchval("SELECT count(*) FROM api_keys") == 0
    empty = ("--data-dir", str(tmp_path / "data"))
    async with evertick("up", *options, *empty) as up:
        assert "there is no database in" in await up.logged("Error")
        assert await up.ended() == 3
