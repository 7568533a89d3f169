"""The API as users start it."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from click.testing import CliRunner

from cli.processes import evertick
from evertick.cli.main import app
from evertick.usecases.tenants.keys import create_first


async def test_up_says_where_it_is_and_shows_the_key_once(data_dir: Path) -> None:
    where = ("--data-dir", str(data_dir), "--port", "0")
    async with evertick("up", *where) as up:
        said = re.fullmatch(r"Evertick is ready at (http://127\.0\.0\.1:\d+)\n", await up.ready())
        shown = re.fullmatch(r"API key: (evt_[0-9A-Za-z]{28})\n", await up.line())
        assert said
        assert shown
        headers = {"Authorization": f"Bearer {shown[1]}"}
        async with httpx.AsyncClient(base_url=said[1], headers=headers, trust_env=False, timeout=120) as client:
            assert (await client.get("/readyz")).json()["ready"] is True
            job = {"schedule": "now", "target": {"type": "worker", "handler": "h"}}
            assert (await client.post("/api/v1/jobs", json=job)).status_code == 201
            leased = await client.post("/api/v1/queues/default/lease", json={"worker_id": "w"})
            assert len(leased.json()["attempts"]) == 1
        assert await up.stop() == 0
    async with evertick("up", *where) as again:
        await again.ready()
        assert await again.stop() == 0
        assert await again.line() == "", "the key is shown this once"


async def test_a_port_that_is_taken_ends_it_with_a_line(data_dir: Path) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, evertick("up", "--data-dir", str(data_dir), "--port", str(port)) as up:
        assert f"cannot listen on 127.0.0.1 port {port}" in await up.logged("Error")
        assert await up.ended() == 1


async def test_two_who_start_at_once_get_one_first_key_between_them(database_url: str) -> None:
    async def first() -> object:
        connection = await asyncpg.connect(database_url, server_settings={"search_path": "evertick"})
        try:
            async with connection.transaction():
                return await create_first(connection, 1)
        finally:
            await connection.close()

    made = await asyncio.gather(*(first() for _ in range(5)))
    assert sum(key is not None for key in made) == 1


class Cli:
    """Commands on one database, each in a thread: it has an event loop of its own."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __call__(self, *arguments: str, code: int = 0) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--database-url", self._url])
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self(*arguments, "--json"))


@pytest.fixture
def cli(database_url: str) -> Cli:
    return Cli(database_url)


async def test_tenants_are_made_listed_and_changed_from_the_command_line(cli: Cli) -> None:
    made = await cli.json("tenants", "create", "acme", "--jobs-quota", "5")
    assert (made["name"], made["jobs_quota"]) == ("acme", 5)
    assert made["api_key"].startswith("evt_")
    assert [tenant["name"] for tenant in await cli.json("tenants", "list")] == ["default", "acme"]
    assert (await cli.json("tenants", "edit", "acme", "--weight", "3"))["weight"] == 3
    assert "acme" in await cli("tenants", "list")
    assert "taken by another tenant" in await cli("tenants", "create", "acme", code=1)
    assert "weight: must be from 1 to 1000" in await cli("tenants", "edit", "acme", "--weight", "0", code=2)


async def test_keys_are_made_listed_rotated_and_revoked_from_the_command_line(
    cli: Cli, connection: asyncpg.Connection
) -> None:
    made = await cli.json("keys", "create", "--role", "worker", "--name", "billing")
    assert (made["role"], made["name"]) == ("worker", "billing")
    rotated = await cli.json("keys", "rotate", made["key_id"], "--grace-seconds", "60")
    assert rotated["key_id"] != made["key_id"]
    assert f"Revoked {rotated['key_id']}." in await cli("keys", "revoke", rotated["key_id"])
    listed = {key["key_id"]: key for key in await cli.json("keys", "list")}
    assert listed[made["key_id"]]["expires_at"]
    assert listed[rotated["key_id"]]["revoked_at"]
    assert all("api_key" not in key for key in listed.values())
    assert "there is no API key" in await cli("keys", "revoke", rotated["key_id"], code=1)
    assert "expires_at" in await cli("keys", "create", "--expires-at", "soon", code=2)
    actions = await connection.fetch("SELECT actor, action FROM audit_log ORDER BY entry_id")
    assert [tuple(row) for row in actions] == [
        ("command line", "create_key"),
        ("command line", "rotate_key"),
        ("command line", "revoke_key"),
    ]
