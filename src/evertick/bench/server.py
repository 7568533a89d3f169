"""Starts the PostgreSQL server of a measurement and creates a database on it. Both are removed afterwards."""

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from evertick.store import migrate
from evertick.store.server.embedded import EmbeddedServer
from evertick.wiring import migrate_database

DATABASE = "evertick_bench"


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """Which server to use: the one of a URL, the embedded one of a directory, or by default a temporary one.

    `keep`: the database that is created on the server of a URL is not dropped.
    """

    database_url: str | None = None
    data_dir: Path | None = None
    keep: bool = False


@dataclass(frozen=True, slots=True)
class BenchServer:
    """A running server and a folder for logs. `postmaster` is the pid of an embedded server.

    `keeps_database`: the database is not dropped after a successful measurement.
    """

    kind: str
    url: str
    postmaster: int | None
    folder: Path
    keeps_database: bool

    @property
    def is_shared(self) -> bool:
        """Whether other programs may use the server, including other benches."""
        return self.postmaster is None


@contextmanager
def start_server(choice: ServerChoice) -> Iterator[BenchServer]:
    """The chosen server. An embedded one is stopped at the end, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="evertick-bench-"))
    folder.chmod(0o711)  # started by root, the embedded server runs as another user, which needs access
    try:
        if choice.database_url is not None:
            yield BenchServer("database_url", choice.database_url, None, folder, choice.keep)
            return
        embedded = EmbeddedServer(choice.data_dir or folder / "data")
        try:
            url = embedded.start()
            kind = "temporary" if choice.data_dir is None else "data_dir"
            yield BenchServer(kind, url, _postmaster(embedded), folder, keeps_database=choice.data_dir is not None)
        finally:
            embedded.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def create_database(server: BenchServer, *, reuse: bool) -> AsyncIterator[str]:
    """The URL of a migrated database for one measurement.

    In a directory that the user chose, the database stays, and scenarios with `reuse` use it again. It is dropped if
    the measurement did not complete.
    """
    name = DATABASE if reuse else f"{DATABASE}_fresh"
    if server.is_shared:
        name = f"{DATABASE}_{secrets.token_hex(4)}"
    elif not reuse:
        await migrate.drop_database(server.url, name)
    is_done = False
    try:
        url = await migrate.create_database(server.url, name)
        await migrate_database(url)
        yield url
        is_done = True
    finally:
        if not (is_done and server.keeps_database):
            await migrate.drop_database(server.url, name)


def _postmaster(embedded: EmbeddedServer) -> int:
    first, _, _ = (embedded.cluster / "postmaster.pid").read_text(encoding="utf-8").partition("\n")
    return int(first)
