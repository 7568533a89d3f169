"""Webhooks from the outside: `evertick up`, its commands, and a receiver."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner
from standardwebhooks import Webhook

from cli.commands import Cli
from cli.processes import evertick
from evertick.cli.main import app
from evertick.store.tenants.secrets import Seal
from roles.dispatching import Receiver, receiving

KEY = "a key of at least thirty-two characters"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def run(*arguments: str) -> str:
    """A command in a process of its own, to its end; what it prints."""
    async with evertick(*arguments) as command:
        lines = ""
        while line := await command.line():
            lines += line
        assert await command.ended() == 0
        return lines


async def test_up_on_its_own_server_delivers_to_this_machine_and_says_so(data_dir: Path, receiver: Receiver) -> None:
    where = ("--data-dir", str(data_dir))
    async with evertick("up", *where) as up:
        await up.ready()
        assert "loopback" in await up.logged("webhooks may go to")
        await run("jobs", "add", "hello", "now", "--target-url", receiver.url, "--payload", '{"who": "world"}', *where)
        await receiver.until_received(1)
        shown = json.loads(await run("secrets", "show", "--json", *where))
        assert await up.stop() == 0
    (received,) = receiver.received
    assert Webhook(shown["current"]).verify(received.body, received.headers) == {"who": "world"}
    assert (data_dir / "secret.key").stat().st_mode & 0o077 == 0


async def test_up_on_a_url_keeps_a_key_of_its_own_and_says_who_else_needs_it(database_url: str, data_dir: Path) -> None:
    places = {"EVERTICK_DATA_DIR": str(data_dir), "EVERTICK_SECRET_KEY": ""}
    async with evertick("up", "--roles", "dispatcher", "--database-url", database_url, **places) as up:
        assert "need the same one as EVERTICK_SECRET_KEY" in await up.logged("EVERTICK_SECRET_KEY")
        await up.ready()
        assert await up.stop() == 0
    assert (data_dir / "secret.key").exists()


async def test_secrets_are_shown_and_rotated_by_commands(
    database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(database_url)
    monkeypatch.setitem(os.environ, "EVERTICK_SECRET_KEY", KEY)
    first = await cli.json("secrets", "show")
    assert first["current"].startswith("whsec_")
    rotated = await cli.json("secrets", "rotate")
    assert rotated["previous"] == first["current"]
    assert "a rotation is under way" in await cli("secrets", "rotate", code=1)
    assert rotated["current"] in await cli("secrets", "show")
    dropped = await cli.json("secrets", "rotate", "--drop-previous")
    assert (dropped["current"], dropped["previous"]) == (rotated["current"], None)
    log = await connection.fetch("SELECT actor, action FROM audit_log ORDER BY entry_id")
    assert [tuple(row) for row in log] == [
        ("command line", "rotate_webhook_secret"),
        ("command line", "drop_webhook_secret"),
    ]


async def test_a_key_that_seals_secrets_is_replaced_by_commands(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(database_url)
    old, new = KEY, KEY[::-1]
    monkeypatch.setitem(os.environ, "EVERTICK_SECRET_KEY", old)
    first = await cli.json("secrets", "show")
    monkeypatch.setitem(os.environ, "EVERTICK_SECRET_KEY", new)
    refused = await cli("secrets", "show", code=1)
    assert f"sealed with the key {Seal(old).key_ids[0]}" in refused
    assert old not in refused
    assert new not in refused
    monkeypatch.setitem(os.environ, "EVERTICK_SECRET_KEY", f"{new}, {old}")
    resealed = await cli.run("secrets", "reseal")
    assert "1 of 1 tenants" in resealed.stderr
    assert f"remove these: {Seal(old).key_ids[0]}" in resealed.stdout
    monkeypatch.setitem(os.environ, "EVERTICK_SECRET_KEY", new)
    assert await cli.json("secrets", "show") == first
    assert (await cli.json("secrets", "reseal"))["tenants"] == 0


def test_settings_of_webhooks_are_checked_and_the_key_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"SECRET_KEY": "sh0rt", "EGRESS_ALLOW": "10.0.0.1/8", "EGRESS_ALLOW_HTTP": "maybe"}
    for name, value in wrong.items():
        monkeypatch.setenv(f"EVERTICK_{name}", value)
    result = CliRunner().invoke(app, ["secrets", "show"])
    assert result.exit_code == 2
    for words in ("at least 32 characters", "10.0.0.1/8 has host bits set", "must be true or false"):
        assert words in result.stderr
    assert "sh0rt" not in result.output
