"""A primary and its standby from the embedded programs: streaming replication, fail-over, and commits that get lost.

Both listen on loopback, each on a port of its own, and run where the end of the test run finds and removes them.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from evertick.store.database import connect
from evertick.store.migrate import migrate
from evertick.store.server.embedded import DATABASE, SUPERUSER
from evertick.store.server.programs import Programs, find_programs
from ports import free_port

START_SECONDS = 300
TIMEOUT_SECONDS = 300
"""For what takes a moment on a machine of any speed."""
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "wal_level": "replica",
    "hot_standby": "on",
    "jit": "off",
    "fsync": "off",  # processes are killed here, not the machine
    "full_page_writes": "off",
}


class Server:
    """One server of the pair."""

    def __init__(self, data_dir: Path, programs: Programs) -> None:
        self.data_dir = data_dir
        self.cluster = data_dir / "postgres"
        self.port = free_port()
        self._programs = programs
        data_dir.mkdir()
        data_dir.chmod(0o711)
        programs.own(data_dir)

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, database: str = DATABASE) -> str:
        return f"postgresql://{SUPERUSER}@{self.place}/{database}"

    def init(self) -> None:
        options = ("-U", SUPERUSER, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        self._programs.run_checked("initdb", "-D", str(self.cluster), *options, cwd=self.data_dir)

    async def create(self, *, empty: bool = False) -> None:
        """Start a new server with an up-to-date database, or an empty one."""
        self.init()
        self.start()
        await self.ask(f"CREATE DATABASE {DATABASE}", database="postgres")
        if not empty:
            connection = await connect(self.url())
            await migrate(connection)
            await connection.close()

    def copy(self, primary: "Server") -> None:
        """Become its standby, as it is now."""
        source = ("-h", "127.0.0.1", "-p", str(primary.port), "-U", SUPERUSER)
        options = ("--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync")
        self._programs.run_checked("pg_basebackup", "-D", str(self.cluster), *source, *options, cwd=self.data_dir)

    def start(self) -> None:
        settings = _SETTINGS | {"port": str(self.port), "unix_socket_directories": str(self.cluster)}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        log = ("-l", str(self.cluster / "server.log"))
        arguments = ("-D", str(self.cluster), "-w", "-t", str(START_SECONDS), *log, "-o", options)
        self._programs.run_checked("pg_ctl", "start", *arguments, cwd=self.data_dir)

    def freeze(self) -> None:
        """Let all its processes stand still: connections stay, new ones are accepted by the kernel, nobody answers."""
        self._signal(signal.SIGSTOP)

    def kill(self) -> None:
        """As a machine that loses its power."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # The postmaster first, so that it starts no others.
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _processes(self) -> list[psutil.Process]:
        with suppress(FileNotFoundError, psutil.NoSuchProcess):
            lines = (self.cluster / "postmaster.pid").read_text(encoding="utf-8").split("\n")
            postmaster = psutil.Process(int(lines[0]))
            if str(self.cluster) in postmaster.cmdline():
                return [postmaster, *postmaster.children(recursive=True)]
        return []

    async def ask(self, query: str, *arguments: Any, database: str = DATABASE) -> Any:
        """The first value that a statement of its own connection answers with."""
        connection = await asyncpg.connect(self.url(database), server_settings={"search_path": "evertick"})
        try:
            return await connection.fetchval(query, *arguments)
        finally:
            await connection.close()


class Pair:
    """A primary and its standby."""

    def __init__(self, primary: Server, standby: Server) -> None:
        self.primary = primary
        self.standby = standby

    def url(self, *, standby_first: bool = False) -> str:
        """Both hosts, of which the primary is wanted."""
        hosts = (self.standby, self.primary) if standby_first else (self.primary, self.standby)
        places = ",".join(host.place for host in hosts)
        return f"postgresql://{SUPERUSER}@{places}/{DATABASE}?target_session_attrs=read-write"

    async def make_synchronous(self) -> None:
        """From now on a commit is answered when the standby has it."""
        await self.primary.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
        await self.primary.ask("SELECT pg_reload_conf()")
        await _until(self._is_synchronous, "the standby is synchronous")

    async def part(self) -> None:
        """Let the standby receive nothing any more: what the primary commits from now on is lost when it falls."""
        await self.standby.ask("ALTER SYSTEM SET primary_conninfo = ''")
        await self.standby.ask("SELECT pg_reload_conf()")
        await _until(self._is_parted, "the standby receives nothing")

    async def promote(self) -> None:
        """Make the standby the primary."""
        assert await self.standby.ask("SELECT pg_promote(true, $1)", TIMEOUT_SECONDS)

    async def is_streaming(self) -> bool:
        return bool(await self.primary.ask("SELECT count(*) > 0 FROM pg_stat_replication WHERE state = 'streaming'"))

    async def _is_synchronous(self) -> bool:
        query = "SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
        return bool(await self.primary.ask(query))

    async def _is_parted(self) -> bool:
        return bool(await self.standby.ask("SELECT count(*) = 0 FROM pg_stat_wal_receiver"))


@asynccontextmanager
async def replicated(data_dir: Path) -> AsyncIterator[Pair]:
    """A pair with an up-to-date database, the standby streaming; `data_dir` is the beginning of both directories."""
    programs = find_programs(data_dir.parent)
    pair = Pair(*(Server(data_dir.with_name(f"{data_dir.name}-{role}"), programs) for role in ("primary", "standby")))
    try:
        await pair.primary.create()
        pair.standby.copy(pair.primary)
        pair.standby.start()
        await _until(pair.is_streaming, "the standby is streaming")
        yield pair
    finally:
        pair.standby.kill()
        pair.primary.kill()


async def _until(holds: Callable[[], Coroutine[Any, Any, bool]], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not await holds():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.02)
