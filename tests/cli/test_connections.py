import shlex
from pathlib import Path

import asyncpg
import pytest

from cli.commands import Cli
from redis_server import redis_server

pytestmark = pytest.mark.parametrize("backend", ["database", "api"])

PASSWORD = "never to be seen"


async def test_a_connection_is_added_tested_listed_and_removed(
    cli: Cli, connection: asyncpg.Connection, tmp_path: Path, backend: str
) -> None:
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n", encoding="utf-8")
    assert await cli("connections", "list") == "No connections.\n"
    async with redis_server(PASSWORD) as redis:
        settings = ["--set", "host=127.0.0.1", "--set", f"port={redis.port}", "--set", "tls=false"]
        words = ["connections", "add", "events", "redis_stream", *settings]
        added = await cli.json(*words, "--secret-file", f"password={secret}")
        assert (added["name"], added["secrets"]) == ("events", ["password"])
        assert "is taken" in await cli(*words, code=1)
        replaced = await cli.json(*words, "--replace", "--set", "database=1")
        assert (replaced["settings"]["database"], replaced["secrets"]) == (1, ["password"])
        shown = await cli("connections", "list")
        assert all(word in shown for word in ("events", "redis_stream", "password"))
        assert (await cli.json("connections", "show", "events"))["settings"]["port"] == redis.port
        # A server that listens on loopback may call this machine; a command on a database that others use may not.
        tested = await cli.run("connections", "test", "events")
        assert tested.exit_code == int(backend == "database")
        assert ("EVERTICK_EGRESS_ALLOW" if backend == "database" else "It can be used: Redis ") in tested.stdout
    assert await cli("connections", "remove", "events") == "Connection events is removed.\n"
    assert "there is no connection 'events'" in await cli("connections", "show", "events", code=1)
    changes = await connection.fetch("SELECT actor, action FROM audit_log WHERE action LIKE '%connection'")
    assert [change["action"] for change in changes] == ["create_connection", "put_connection", "delete_connection"]
    assert {change["actor"] == "command line" for change in changes} == {backend == "database"}


async def test_a_secret_that_a_broker_does_not_have_is_refused(cli: Cli, tmp_path: Path, backend: str) -> None:
    secret = tmp_path / "token"
    secret.write_text(PASSWORD, encoding="utf-8")
    words = ["connections", "add", "events", "kafka", "--set", 'bootstrap_servers=["a:9092"]']
    assert (await cli.run(*words, "--secret-file", f"token={secret}")).exit_code == 2
    assert (await cli.run(*words, "--secret-file", f"password={tmp_path / 'none'}")).exit_code == 2


async def test_the_examples_of_the_help_can_be_typed_as_they_are(cli: Cli, tmp_path: Path, backend: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD, encoding="utf-8")
    shown = (await cli.run("connections", "add", "--help")).stdout.partition("Examples:\n")[2]
    examples = shown.replace("\\\n", "").replace("/run/secrets/kafka", str(secret)).splitlines()
    assert len(examples) == 2
    for _, *words in map(shlex.split, examples):
        assert "is ready to be tested" in await cli(*words, stdin=PASSWORD)
