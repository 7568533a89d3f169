"""Where a measurement takes place: a server, and on it a database of the bench's own, gone when it is over."""

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from evertick.store import scratch_databases
from evertick.store.embedded import EmbeddedServer
from evertick.wiring import bring_up_to_date

DATABASE = "evertick_bench"


@dataclass(frozen=True, slots=True)
class Place:
    """Which server: of a URL, the embedded one of a directory that stays, or by default one that is made for this.

    `keep`: a database that is made on the server of a URL stays too.
    """

    database_url: str | None = None
    data_dir: Path | None = None
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Ground:
    """A running server, its process if that is ours to see, and a folder for logs.

    `keeps`: the database stays when all went well.
    """

    kind: str
    url: str
    postmaster: int | None
    folder: Path
    keeps: bool

    @property
    def is_shared(self) -> bool:
        """Whether others may use the server, and perhaps measure on it at this moment."""
        return self.postmaster is None


@contextmanager
def server(place: Place) -> Iterator[Ground]:
    """The server, for as long as it is needed, and whatever happens meanwhile."""
    folder = Path(tempfile.mkdtemp(prefix="evertick-bench-"))
    folder.chmod(0o711)  # root's embedded server runs as another user, who has to pass
    try:
        if place.database_url is not None:
            yield Ground("database_url", place.database_url, None, folder, place.keep)
            return
        embedded = EmbeddedServer(place.data_dir or folder / "data")
        try:
            url = embedded.start()
            kind = "temporary" if place.data_dir is None else "data_dir"
            yield Ground(kind, url, _postmaster(embedded), folder, keeps=place.data_dir is not None)
        finally:
            embedded.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def database(ground: Ground, *, reuse: bool) -> AsyncIterator[str]:
    """The URL of an up-to-date database of the bench's own.

    In a directory that stays it stays too, to be looked at or, by scenarios whose jobs are quiet afterwards, used
    again; but not if it was left in the middle of something.
    """
    name = DATABASE if reuse else f"{DATABASE}_fresh"
    if ground.is_shared:
        name = f"{DATABASE}_{secrets.token_hex(4)}"
    elif not reuse:
        await scratch_databases.drop(ground.url, name)
    is_done = False
    try:
        url = await scratch_databases.create(ground.url, name)
        await bring_up_to_date(url)
        yield url
        is_done = True
    finally:
        if not (is_done and ground.keeps):
            await scratch_databases.drop(ground.url, name)


def _postmaster(embedded: EmbeddedServer) -> int:
    first, _, _ = (embedded.cluster / "postmaster.pid").read_text(encoding="utf-8").partition("\n")
    return int(first)
