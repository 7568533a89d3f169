"""Archives for tests: in a directory, in a real S3-compatible server, and on storage that fails when a test says so."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from evertick.config.settings import Settings
from evertick.runtime.archive import Archive, open_archive
from evertick.store.archive.parquet import ParquetArchive
from servers.aws import REGION, AwsServer

BUCKET = "history"


class S3Server:
    """The S3 of moto, whose bucket is made at each start: it keeps nothing over a stop."""

    def __init__(self, server: AwsServer) -> None:
        self._server = server
        self.settings = Settings(
            archive_url=f"s3://{BUCKET}/evertick",
            archive_endpoint=server.url,
            archive_region=REGION,
            archive_access_key="key",
            archive_secret_key="secret",
        )
        self.filesystem = pafs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            endpoint_override=server.url,
            region=REGION,
            allow_bucket_creation=True,
        )

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)
        await asyncio.to_thread(self.filesystem.create_dir, BUCKET)


@asynccontextmanager
async def s3_server(directory: Path) -> AsyncIterator[S3Server]:
    """A server that was not started yet."""
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # no test asks the network for credentials
    server = AwsServer(directory)
    try:
        yield S3Server(server)
    finally:
        await asyncio.to_thread(server.close)


@asynccontextmanager
async def directory_archive(directory: Path) -> AsyncIterator[Archive]:
    async with open_archive(Settings(archive_url=str(directory))) as archive:
        assert archive is not None
        yield archive


class FailingStorage:
    """A directory in place of pyarrow's file system. `fails` is asked before each call, with its name and path."""

    def __init__(self) -> None:
        self._real = pafs.LocalFileSystem()
        self.calls: list[tuple[str, str]] = []
        self.fails: Callable[[str, str], bool] = lambda _call, _path: False
        self.after: Callable[[str, str], None] = lambda _call, _path: None

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)

        def call(path: str, *arguments: Any, **options: Any) -> Any:
            self.calls.append((name, path))
            if self.fails(name, path):
                raise OSError(f"{name} fails")
            result = real(path, *arguments, **options)
            self.after(name, path)
            return result

        return call


@contextmanager
def failing_archive(directory: Path) -> Iterator[tuple[FailingStorage, Archive]]:
    storage = FailingStorage()
    archive = Archive(ParquetArchive(storage, str(directory), is_local=True), str(directory))
    try:
        yield storage, archive
    finally:
        archive.close()


def files_in(directory: Path) -> list[str]:
    """All files of an archive in a directory, but for manifests."""
    found = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if path.parts[0] != "manifests")
