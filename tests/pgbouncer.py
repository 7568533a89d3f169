"""A PgBouncer of a test's own in front of a server: transaction mode, and otherwise what it does by default."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from engine import until
from evertick.store.connections import hosts_of
from evertick.store.server.programs import system_account
from ports import free_port

STOP_SECONDS = 60


class PgBouncer:
    """A pooler for the databases of one server, whose URL it is given."""

    def __init__(self, directory: Path, server_url: str, **settings: str) -> None:
        self._port = free_port()
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        (server,) = hosts_of(server_url)
        parts = urlsplit(server_url)
        self.url = f"postgresql://{parts.username}@127.0.0.1:{self._port}{parts.path}"
        users = directory / "users.txt"
        users.write_text(f'"{parts.username}" ""\n', encoding="utf-8")
        given = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self._port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(users),
            "pool_mode": "transaction",
            "logfile": str(directory / "pgbouncer.log"),
            **settings,
        }
        lines = ["[databases]", f"* = host={server.name} port={server.port}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in given.items()]
        self._config = directory / "pgbouncer.ini"
        self._config.write_text("\n".join(lines) + "\n", encoding="utf-8")

    @property
    def log(self) -> str:
        return (self._directory / "pgbouncer.log").read_text(encoding="utf-8")

    async def start(self) -> None:
        words = ["pgbouncer", "--quiet", str(self._config)]
        if os.geteuid() == 0:  # it refuses to run as root
            account = system_account()
            shutil.chown(self._directory, account.pw_name)
            words += ["-u", account.pw_name]
        self._process = await asyncio.create_subprocess_exec(*words)
        await until(self._answers)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.close()
        return True


@asynccontextmanager
async def pgbouncer(server_url: str, **settings: str) -> AsyncIterator[PgBouncer]:
    if shutil.which("pgbouncer") is None:
        pytest.skip("NOT TESTED WITH PGBOUNCER: there is none; on Debian, apt-get install pgbouncer")
    with tempfile.TemporaryDirectory(prefix="evertick-pgbouncer-") as directory:
        pooler = PgBouncer(Path(directory), server_url, **settings)
        await pooler.start()
        try:
            yield pooler
        finally:
            await pooler.stop()
