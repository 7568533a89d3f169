"""The embedded PostgreSQL server: pip installs its programs, and a data directory holds the rest.

Any number of processes may share one. Each holds a shared lock on `users.lock` while it uses the server, and the last
one stops it. The kernel drops the locks of a killed process, so there is nothing to clean up after kill -9.
"""

import fcntl
import hashlib
import os
import pwd
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from evertick.store.server.programs import (
    EmbeddedServerError,
    Programs,
    clear_stale_pid,
    find_programs,
    names_server,
    system_account,
)

DATABASE = "evertick"
SUPERUSER = "postgres"
PORT = "5432"
START_SECONDS = 600
"""Replaying the log after a crash may take minutes; giving up in between would only start it again."""
_PLAIN = re.compile(r"[A-Za-z0-9/._-]+")
_TRUSTED_TCP = re.compile(r"^([ \t]*host\w*[ \t].*[ \t])trust[ \t]*$", re.MULTILINE)

# Other settings have their defaults, among them fsync and synchronous_commit: no commit is lost.
SETTINGS = {
    "listen_addresses": "''",  # the socket is enough, and no other user can reach it
    "port": PORT,
    "max_connections": "200",  # several processes, each with its pools
    "max_wal_size": "'4GB'",  # fewer checkpoints, so fewer full pages in the log
    "checkpoint_timeout": "'15min'",  # as max_wal_size
    "wal_buffers": "'32MB'",  # one batch of attempts is megabytes
    "autovacuum_naptime": "'10s'",  # timers are rewritten at each firing
    "autovacuum_vacuum_cost_limit": "2000",  # ten times the default, which spares spinning disks
    "random_page_cost": "1.1",  # a solid-state disk seeks for nearly nothing
    "jit": "off",  # short statements: compiling them costs more than it saves
    "log_timezone": "'UTC'",  # as everything else that Evertick writes
}


class EmbeddedServer:
    """The server of one data directory. `settings` override `SETTINGS`; `programs` are pip's unless given."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str] | None = None, programs: Path | None = None) -> None:
        self.data_dir = data_dir.expanduser().resolve()
        self.cluster = self.data_dir / "postgres"
        self.log = self.data_dir / "postgres.log"
        self._settings = {"shared_buffers": _shared_buffers()} | SETTINGS | dict(settings or {})
        self._folder = programs
        self._users: IO[str] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={self.socket_dir}&port={PORT}"

    def start(self) -> str:
        """Start the server unless it runs, and return its URL. It keeps running until the last user stops it.

        Calling it again brings back a server that has died since.
        """
        self.check_owner()
        try:
            self._make_data_dir()
            with self._start_lock():
                if not self._users:
                    self._users = _open_private(self.data_dir / "users.lock")
                    fcntl.flock(self._users, fcntl.LOCK_SH)
                self._bring_up(find_programs(self.data_dir, self._folder))
        except BaseException as error:
            if self._users:
                self._users.close()
                self._users = None
            if isinstance(error, PermissionError):
                raise EmbeddedServerError(f"{self.data_dir} is not ours to use: {error}") from error
            raise
        return self.url

    def stop(self) -> None:
        """Release the server, and stop it if no other process uses it; also one that a killed process started."""
        if not self.data_dir.is_dir():
            return
        with self._start_lock(), self._users or _open_private(self.data_dir / "users.lock") as users:
            self._users = None
            with suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.is_running:
                    programs = find_programs(self.data_dir, self._folder)
                    arguments = ("-D", str(self.cluster), "-m", "fast", "-w", "-t", str(START_SECONDS))
                    programs.run_checked("pg_ctl", "stop", *arguments, cwd=self.data_dir)
                if self.socket_dir != self.cluster:
                    shutil.rmtree(self.socket_dir, ignore_errors=True)

    def forget(self) -> None:
        """In a forked child: give up what is the parent's. The parent keeps its lock, and the server runs on."""
        users, self._users = self._users, None
        if users is not None:
            users.close()

    def check_owner(self) -> None:
        """Refuse the directory of another user, where PostgreSQL would refuse to start."""
        is_root = os.geteuid() == 0
        directory = self.cluster if is_root else self.data_dir
        try:
            owner = directory.stat().st_uid
        except (FileNotFoundError, NotADirectoryError):
            return  # `_make_data_dir` says what is there instead
        except PermissionError as error:
            raise EmbeddedServerError(f"{self.data_dir} is not ours to use: {error}") from error
        ours = system_account().pw_uid if is_root else os.geteuid()
        if owner != ours:
            who = "root's PostgreSQL" if is_root else "this process"
            raise EmbeddedServerError(
                f"{directory} belongs to {_user(owner)}, and {who} runs as {_user(ours)}:"
                " run it as that user, or choose another directory with --data-dir or EVERTICK_DATA_DIR"
            )

    def _make_data_dir(self) -> None:
        """Make the directory, or close one to others that was made with wider permissions."""
        is_new = not self.data_dir.exists()
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedServerError(
                f"{self.data_dir} cannot be the data directory: {error.strerror or error}."
                " Choose another with --data-dir or EVERTICK_DATA_DIR"
            ) from error
        if is_new or (self.cluster.exists() and self.data_dir.stat().st_uid == os.geteuid()):
            # Root's server runs as another user, which must get in with any umask.
            self.data_dir.chmod(0o711 if os.geteuid() == 0 else 0o700)

    @contextmanager
    def _start_lock(self) -> Iterator[None]:
        """Lock starting and stopping of this server."""
        path = self.data_dir / "start.lock"
        while True:
            with _open_private(path) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if _is_file_at(path, lock):
                    yield
                    return

    def _bring_up(self, programs: Programs) -> None:
        if not self.cluster.exists():
            self._init(programs)
        socket = ("-h", str(self.socket_dir), "-p", PORT)
        deadline = time.monotonic() + START_SECONDS
        # A process that was killed while it started or stopped the server may have left it starting or stopping.
        while programs.run("pg_isready", *socket, cwd=self.data_dir).code != 0:
            if not self.is_running:
                self._launch(programs)
            if time.monotonic() > deadline:
                raise EmbeddedServerError(f"PostgreSQL does not answer; see {self.log}")
            time.sleep(0.02)
        created = programs.run("createdb", *socket, "-U", SUPERUSER, DATABASE, cwd=self.data_dir)
        if created.code and "already exists" not in created.output:
            raise EmbeddedServerError(f"createdb failed: {created.output.strip()}")

    def _init(self, programs: Programs) -> None:
        for abandoned in self.data_dir.glob("making-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        # Made apart and moved into place: a kill in between leaves nothing half made.
        with tempfile.TemporaryDirectory(dir=self.data_dir, prefix="making-") as aside:
            programs.own(Path(aside))
            made = Path(aside) / "postgres"
            # The socket's directory is the server's own. Access to it is access to the server, and there is no other.
            access = ("--auth-local=trust", "--auth-host=reject")
            options = ("-U", SUPERUSER, *access, "--encoding=UTF8", "--locale=C")
            programs.run_checked("initdb", "-D", str(made), *options, cwd=self.data_dir)
            with (made / "postgresql.conf").open("a", encoding="utf-8") as main:
                main.write("include 'evertick.conf'\n")
            made.rename(self.cluster)

    def _launch(self, programs: Programs) -> None:
        self._make_socket_dir(programs)
        self._write_settings(programs)
        self._refuse_tcp()
        for lock in (self.cluster / "postmaster.pid", self.socket_dir / f".s.PGSQL.{PORT}.lock"):
            clear_stale_pid(lock, self.cluster)
        self.log.touch(mode=0o600)
        programs.own(self.log)
        begin = self.log.stat().st_size
        arguments = ("-D", str(self.cluster), "-l", str(self.log), "-w", "-t", str(START_SECONDS))
        if programs.run("pg_ctl", "start", *arguments, cwd=self.data_dir).code == 0:
            return
        with self.log.open(encoding="utf-8", errors="replace") as log:
            log.seek(begin)
            said = log.read()
        # The children of a killed postmaster finish what they do before they leave: until then, try again.
        if "pre-existing shared memory block" not in said and not self.is_running:
            tail = "\n".join(said.splitlines()[-8:])
            raise EmbeddedServerError(f"PostgreSQL did not start; the end of {self.log} is:\n{tail}")

    def _write_settings(self, programs: Programs) -> None:
        lines = [f"{name} = {value}\n" for name, value in self._settings.items()]
        lines.append(f"unix_socket_directories = '{self.socket_dir}'\n")
        path = self.cluster / "evertick.conf"
        path.write_text("".join(lines), encoding="utf-8")
        programs.own(path)

    def _refuse_tcp(self) -> None:
        """Reject TCP clients: clusters of earlier versions trust them, should the server ever listen there."""
        path = self.cluster / "pg_hba.conf"
        given = path.read_text(encoding="utf-8")
        mended = _TRUSTED_TCP.sub(r"\1reject", given)
        if mended != given:
            path.write_text(mended, encoding="utf-8")

    @property
    def socket_dir(self) -> Path:
        # The kernel allows about 107 bytes for a socket's path, and in URLs and settings a comma separates two.
        if len(str(self.cluster)) < 90 and _PLAIN.fullmatch(str(self.cluster)):
            return self.cluster
        name = hashlib.sha256(os.fsencode(self.cluster)).hexdigest()[:16]
        return Path("/tmp") / f"evertick-{name}"  # noqa: S108 - checked to be ours before use

    def _make_socket_dir(self, programs: Programs) -> None:
        directory = self.socket_dir
        if directory == self.cluster:
            return
        directory.mkdir(mode=0o700, exist_ok=True)
        ours = {os.geteuid(), programs.account.pw_uid if programs.account else os.geteuid()}
        if directory.is_symlink() or directory.stat().st_uid not in ours:
            raise EmbeddedServerError(f"{directory} belongs to another user: remove it")
        directory.chmod(0o700)
        programs.own(directory)

    @property
    def is_running(self) -> bool:
        return names_server(self.cluster / "postmaster.pid", self.cluster)


def default_data_dir() -> Path:
    """The default directory of the server."""
    if os.geteuid() == 0:
        return Path("/var/lib/evertick")
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "evertick"


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


def _open_private(path: Path) -> IO[str]:
    """A lock file that no other user can open, and so not lock either."""
    with suppress(FileNotFoundError):
        if path.stat().st_mode & 0o077:
            path.unlink()  # others may have it open, and keep it locked
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return open(descriptor, "w", encoding="ascii")  # noqa: PTH123 - a Path cannot open a descriptor


def _is_file_at(path: Path, opened: IO[str]) -> bool:
    """Whether it is still the same file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(opened.fileno()))
    except FileNotFoundError:
        return False


def _shared_buffers() -> str:
    """A quarter of the memory, up to what ten million jobs have use for."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no limit reads "max"
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return f"'{min(memory // 4 // 2**20, 4096)}MB'"
