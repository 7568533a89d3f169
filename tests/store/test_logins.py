"""Logins as managed services want them: checked TLS, and passwords from a file or a command that change."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from evertick.config.settings import Settings
from evertick.store import location
from evertick.store.database import connect, is_transient, open_pool
from evertick.store.errors import DatabaseUnreachable
from evertick.store.location import Location, location_of
from evertick.store.migrate import check_schema, migrate
from secured_server import SecuredServer, secured_server, write_certificates

FIRST, SECOND = "first secret", "second secret"


@pytest.fixture
async def server(data_dir: Path) -> AsyncIterator[SecuredServer]:
    async with secured_server(data_dir, FIRST) as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(f"{FIRST}\n", encoding="utf-8")
    return file


def _write(file: Path, content: bytes | None) -> None:
    """Change the file, or remove it."""
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


def _located(url: str, **settings: object) -> Location:
    found = location_of(Settings(database_url=url, **settings))  # type: ignore[arg-type]
    assert found is not None
    return found


async def test_the_certificate_of_the_server_is_checked(server: SecuredServer, tmp_path: Path) -> None:
    url = server.url("first%20secret")
    connection = await connect(url)
    assert await connection.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    await connection.close()
    stranger = tmp_path / "stranger.pem"
    write_certificates(stranger, tmp_path / "unused.pem", tmp_path / "unused.key")
    for refused in (
        server.url("first%20secret", authority=stranger),
        server.url("first%20secret", host="127.0.0.1"),
    ):
        with pytest.raises(DatabaseUnreachable, match=r"certificate verify failed") as caught:
            await connect(refused)
        assert "secret" not in str(caught.value)


async def test_a_role_that_owns_only_its_database_can_migrate_it(server: SecuredServer) -> None:
    connection = await connect(server.url("first%20secret"))
    assert not await connection.fetchval(
        "SELECT rolsuper OR rolcreatedb OR rolcreaterole FROM pg_roles WHERE rolname = current_user"
    )
    assert await migrate(connection) > 0
    await check_schema(connection)
    await connection.close()


@pytest.mark.parametrize("kind", ["file", "command"])
async def test_a_password_that_changes_is_read_for_each_connection(
    server: SecuredServer, file: Path, kind: str
) -> None:
    command = f"{sys.executable} -c \"print(open('{file}').read())\""
    given = {"database_password_file": file} if kind == "file" else {"database_password_command": command}
    located = _located(server.url(), **given)
    async with await open_pool(located) as pool:
        assert await pool.fetchval("SELECT 1") == 1
        await server.change_password(SECOND)
        assert await pool.fetchval("SELECT 1") == 1  # on a connection that has logged in
        await pool.expire_connections()
        with pytest.raises(DatabaseUnreachable, match="password authentication failed") as caught:
            await pool.fetchval("SELECT 1")
        assert is_transient(caught.value)  # the file may follow
        assert FIRST not in str(caught.value)
        _write(file, SECOND.encode())
        assert await pool.fetchval("SELECT 1") == 1


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("sh -c 'echo hunter2; exit 3'", "the password command sh failed with exit code 3"),
        ("sh -c 'sleep 600 # hunter2'", "the password command sh took longer than 0 seconds"),
        ("true hunter2", "the password command true: is empty"),
        ("/no/such/program hunter2", "the password command /no/such/program: No such file or directory"),
    ],
)
async def test_a_command_that_has_no_password_is_passing_trouble(
    command: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "PASSWORD_SECONDS", 0.2)
    with pytest.raises(DatabaseUnreachable) as caught:
        await connect(_located("postgresql://jane@127.0.0.1:1/jobs", database_password_command=command))
    assert str(caught.value) == f"cannot reach database jobs at 127.0.0.1:1: {reason}"
    assert is_transient(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file or directory"), (b"", "is empty"), (b"\xff", "is not UTF-8")]
)
async def test_a_file_that_has_no_password_is_passing_trouble(file: Path, content: bytes | None, reason: str) -> None:
    _write(file, content)
    with pytest.raises(DatabaseUnreachable) as caught:
        await connect(_located("postgresql://jane@127.0.0.1:1/jobs", database_password_file=file))
    assert str(caught.value) == f"cannot reach database jobs at 127.0.0.1:1: the password file {file}: {reason}"
    assert is_transient(caught.value)


def test_a_location_does_not_show_its_password(file: Path) -> None:
    located = _located(
        "postgresql://jane:hunter2@127.0.0.1:1/jobs", database_direct_url="postgresql://jane:hunter2@h/jobs"
    )
    assert "hunter2" not in repr(located)
