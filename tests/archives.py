"""Archives for tests: in a directory, in a real S3-compatible server, and on storage that fails when a test says so."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from engine import until
from evertick.config import Settings
from evertick.runtime.archive import Archive, open_archive
from evertick.store.archive.parquet import ParquetArchive

BUCKET = "history"
STOP_SECONDS = 60


class S3Server:
    """A server like S3, as a child process on a free port. It keeps nothing over a stop."""

    def __init__(self) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self._port = int(listener.getsockname()[1])
        self._process: asyncio.subprocess.Process | None = None
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.settings = Settings(
            archive_url=f"s3://{BUCKET}/evertick",
            archive_endpoint=self.endpoint,
            archive_region="us-east-1",
            archive_access_key="key",
            archive_secret_key="secret",
        )
        self.filesystem = pafs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            endpoint_override=self.endpoint,
            region="us-east-1",
            allow_bucket_creation=True,
        )

    async def start(self) -> None:
        program = Path(sys.prefix) / "moto" / "bin" / "moto_server"
        if not program.exists():
            pytest.skip("NOT TESTED WITH S3: there is no moto_server; `make test` installs it")
        quiet = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(
            program, "-H", "127.0.0.1", "-p", str(self._port), stdout=quiet, stderr=quiet
        )

        async def answers() -> bool:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.close()
                return True
            return False

        await until(answers)
        await asyncio.to_thread(self.filesystem.create_dir, BUCKET)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()


@asynccontextmanager
async def s3_server() -> AsyncIterator[S3Server]:
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # no test asks the network for credentials
    server = S3Server()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


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
