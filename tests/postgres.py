"""PostgreSQL servers for tests: each test process has its own, and each test a database copied from a template."""

import asyncio
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from evertick.store.database import connect
from evertick.store.migrate import migrate
from evertick.store.server.embedded import DATABASE, EmbeddedServer

EMBEDDED = "embedded-18"
DEBIAN = "debian-15"
DEBIAN_PROGRAMS = Path("/usr/lib/postgresql/15/bin")
VERSIONS = {EMBEDDED: None, DEBIAN: DEBIAN_PROGRAMS}

# Nobody needs a test's data after a power cut. Commits still go the way they go for users.
SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "'64MB'", "max_wal_size": "'512MB'"}

_TEMPLATE = "template_evertick"
_numbers = itertools.count(1)


class Server:
    """One version's server of this test process."""

    def __init__(self, version: str, root: Path, name: str = "") -> None:
        self.version = version
        self.embedded = EmbeddedServer(root / f"{version}-{os.getpid()}{name}", SETTINGS, VERSIONS[version])
        self._has_template = False
        self._admin: psycopg.Connection | None = None

    def url(self, database: str) -> str:
        return self.embedded.url.replace(f"/{DATABASE}?", f"/{database}?")

    @asynccontextmanager
    async def database(self, *, empty: bool = False) -> AsyncIterator[str]:
        """The URL of a new database, with the current schema or `empty`, which goes away afterwards."""
        name = f"test_{next(_numbers)}"
        template = "template1" if empty else await self._template()
        # Copying files takes a third of the time that logging each page does, and nobody needs the log.
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        yield self.url(name)
        await self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def _execute(self, statement: str) -> None:
        # In a thread: servers of other tests may run in this event loop.
        await asyncio.to_thread(self._execute_now, statement)

    def _execute_now(self, statement: str) -> None:
        """On one connection for all tests, whose event loops differ: two for each took a fifth of the CPU time."""
        if self._admin is None or self._admin.closed:
            self._admin = psycopg.connect(self.embedded.url, autocommit=True)
        self._admin.execute(statement.encode())

    async def _template(self) -> str:
        """A database in which the migrations were run once, for all tests of this process."""
        if not self._has_template:
            await self._execute(f"CREATE DATABASE {_TEMPLATE}")
            connection = await connect(self.url(_TEMPLATE))
            try:
                await migrate(connection)
            finally:
                await connection.close()
            self._has_template = True
        return _TEMPLATE

    def stop(self) -> None:
        if self._admin is not None:
            self._admin.close()
        self.embedded.stop()


class Servers:
    """The servers of this test process, each started when first asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._started: dict[str, Server] = {}

    def get(self, version: str) -> Server:
        if version not in self._started:
            server = Server(version, self._root)
            self._started[version] = server
            server.embedded.start()
        return self._started[version]

    def overwriting(self, version: str) -> Server:
        """A server of its own that overwrites memory when it frees it: where it uses it afterwards, it crashes."""
        name = f"{version}-overwriting"
        if name not in self._started:
            server = Server(version, self._root, "-overwriting")
            self._started[name] = server
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MALLOC_PERTURB_", "165")  # of glibc
                server.embedded.start()
        return self._started[name]

    def stop(self) -> None:
        for server in self._started.values():
            server.stop()


def remove(root: Path) -> None:
    """Stop what killed test processes may have left, and remove everything."""
    for data_dir in root.iterdir():
        version = next(version for version in VERSIONS if data_dir.name.startswith(version))
        EmbeddedServer(data_dir, programs=VERSIONS[version]).stop()
    shutil.rmtree(root)
